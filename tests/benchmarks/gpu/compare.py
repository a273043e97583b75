"""What capturing and comparing cost on a GPU, next to the forward pass. Prints Markdown.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/gpu/compare.py [--verify]

`--verify` also times all of `verify`, with the states on the device and with them on the host.
"""

from __future__ import annotations

import datetime
import platform
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import transformers as tf

import driftwalk
from driftwalk.measure.metrics import Measured
from driftwalk.measure.reduction import begin
from driftwalk.states import HeldState, State
from driftwalk.tolerance import BY_DTYPE
from driftwalk_backends.calls import call, inputs_for, quietly
from driftwalk_backends.hooks import capture
from driftwalk_backends.on_device.batching import _line
from driftwalk_backends.on_device.states import Holding
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.torch_eager import TorchEager

LAYERS, WIDTH, TOKENS, ROUNDS = 8, 4096, 2048, 15


def llama() -> Any:
    config = tf.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=11008,
        num_hidden_layers=LAYERS,
        num_attention_heads=32,
        num_key_value_heads=32,
        vocab_size=32000,
        max_position_embeddings=TOKENS,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        return tf.LlamaForCausalLM(config).half().eval()


def wall(run: Callable[[], object]) -> float:
    """Seconds until the device is done and the host has what it waits for."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def on_device(run: Callable[[], object]) -> float:
    """Seconds of the device alone: it is kept busy until all is queued."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(40_000_000)
    first.record()
    run()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3


class Runs:
    """The forward pass: bare, with states kept on the device, with each compared as it is made."""

    def __init__(self) -> None:
        module = llama()
        loaded = open_model(module)
        probe = make_probe(loaded, None, batch=1, length=TOKENS)
        self.module, self.device = module, torch.device("cuda")
        with quietly(module):
            self.inputs = inputs_for(module, probe, self.device)
            self.layout = loaded.layout(module, self.inputs, lambda **m: call(module, self.inputs))
        self.keep = probe.keep("layer.0", (1, TOKENS, WIDTH))
        self.reference = {state.point.name: state for state in self.captured()}
        random = torch.Generator("cuda").manual_seed(0)
        for state in self.reference.values():  # honest noise: the same run would give the same bits
            tensor = state.held.tensor
            noise = torch.randn(tensor.shape, generator=random, device="cuda", dtype=tensor.dtype)
            tensor.add_(1e-3 * tensor.float().square().mean().sqrt().to(tensor.dtype) * noise)

    def bare(self) -> object:
        with quietly(self.module):
            return call(self.module, self.inputs)

    def _run(self, meet: Callable[[HeldState], None]) -> None:
        room = Holding(self.device)

        def sink(point: Any, tensor: torch.Tensor) -> None:
            held = room.keep(tensor)
            assert held is not None
            meet(HeldState(point, held))

        with quietly(self.module), capture(self.module, self.layout, sink) as finish:
            finish(call(self.module, self.inputs))

    def captured(self) -> list[HeldState]:
        kept: list[HeldState] = []
        self._run(kept.append)
        return kept

    def begin(self, state: State) -> Callable[[], Measured]:
        begun = begin(self.reference[state.point.name], state, BY_DTYPE["fp16"], self.keep)
        assert begun is not None
        return begun

    def walked(self) -> list[Measured]:
        begun: list[Callable[[], Measured]] = []
        self._run(lambda state: begun.append(self.begin(state)))
        return [measured() for measured in begun]


def main() -> None:
    out = sys.stdout.write
    with torch.inference_mode():
        runs = Runs()
        other = runs.captured()

        waiting: list[object] = []

        def compared() -> list[Measured]:
            return [measured() for measured in [runs.begin(state) for state in other]]

        def queued() -> None:
            begun = [runs.begin(state) for state in other]
            _line(torch.device("cuda", 0), torch.float16, torch.float16, True)._launch()
            waiting.append(begun)

        kinds: dict[str, Callable[[], float]] = {
            "forward": lambda: wall(runs.bare),
            "captured": lambda: wall(runs.captured),
            "walked": lambda: wall(runs.walked),
            "alone": lambda: wall(compared),
            "forward, device": lambda: on_device(runs.bare),
            "device": lambda: on_device(queued),
        }
        for _ in range(3):
            for measure in kinds.values():
                measure()
        seconds: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(ROUNDS):
            for name, measure in kinds.items():
                seconds[name].append(measure())
        states = len(runs.captured())

    def against(name: str, base: str | None) -> tuple[float, float]:
        """Median of the cost, and of its ratio to the forward pass, round by round."""
        cost = [one - (seconds[base][i] if base else 0.0) for i, one in enumerate(seconds[name])]
        share = [one / forward for one, forward in zip(cost, seconds["forward"], strict=True)]
        return median(cost), median(share)

    out(
        f"{datetime.datetime.now(datetime.UTC).date()}, {torch.cuda.get_device_name()}, torch "
        f"{torch.__version__}, transformers {tf.__version__}, Python {platform.python_version()}; "
        f"Llama, {LAYERS} layers, {WIDTH} wide, {TOKENS} tokens, fp16; {states} states with the "
        f"logits; medians of {ROUNDS} rounds in turns.\n\n"
        "| what | time | of the forward pass |\n|---|---:|---:|\n"
        f"| forward pass, wall | {median(seconds['forward']) * 1e3:.2f} ms | |\n"
        f"| forward pass, device | {median(seconds['forward, device']) * 1e3:.2f} ms | |\n"
    )
    for text, name, base in (
        ("capturing all states, wall", "captured", "forward"),
        ("comparing them as they are made, wall", "walked", "captured"),
        ("comparing them, device", "device", None),
        ("comparing two traces afterwards, wall", "alone", None),
    ):
        cost, share = against(name, base)
        out(f"| {text} | {cost * 1e3:.2f} ms | {share:.1%} |\n")


def whole() -> None:
    """All of `verify`, observer check remembered, and the two plain runs it cannot do without."""
    module = llama()
    sides = [TorchEager.around(module), TorchEager.around(module)]
    probe = make_probe(open_model(module), None, batch=1, length=TOKENS)

    def verified() -> object:
        return driftwalk.verify(module, sides[1], sides[0], probe, policy="dtype", blame=False)

    kinds = {"two plain runs": lambda: [side.run(probe) for side in sides], "held": verified}
    for run in kinds.values():
        run()
    seconds = {name: median(wall(run) for _ in range(5)) for name, run in kinds.items()}
    TorchEager.holds_on = ""  # type: ignore[assignment, method-assign]
    seconds["copied to the host"] = wall(verified)
    for name, took in seconds.items():
        sys.stdout.write(f"verify, {name}: {took:.3f} s\n")


if __name__ == "__main__":
    main()
    if "--verify" in sys.argv:
        whole()
