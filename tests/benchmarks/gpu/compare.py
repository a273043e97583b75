"""What comparing and capturing cost on a GPU, next to the forward pass. Prints Markdown.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/gpu/compare.py
"""

from __future__ import annotations

import datetime
import platform
import sys
from collections.abc import Callable
from statistics import median

import torch
import transformers as tf

from benchmarks.gpu.reduce import RowSums, reduce_pairs
from driftwalk_backends.calls import call, inputs_for, quietly
from driftwalk_backends.hooks import capture
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

LAYERS, WIDTH, TOKENS, ROUNDS = 8, 4096, 2048, 15


def model() -> torch.nn.Module:
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


def timed(run: Callable[[], object]) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    run()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3


def main() -> None:
    out = sys.stdout.write
    module = model()
    loaded = open_model(module)
    probe = make_probe(loaded, None, batch=1, length=TOKENS)
    device = torch.device("cuda")
    with quietly(module):
        inputs = inputs_for(module, probe, device)
        layout = loaded.layout(module, inputs, lambda **extra: call(module, inputs, **extra))

        def plain() -> object:
            return call(module, inputs)

        def captured() -> list[torch.Tensor]:
            kept: list[torch.Tensor] = []
            with capture(module, layout, lambda p, t: kept.append(t.clone())) as finish:
                finish(call(module, inputs))
            return kept

        one, other = captured(), captured()
        other = [t + 1e-3 * torch.randn_like(t) for t in other]

        def compare() -> list[RowSums]:
            return reduce_pairs(list(zip(one, other, strict=True)), 1e-3, 1e-3, by_rms=True)

        for _ in range(3):
            plain(), captured(), compare()
        rows = {"forward": plain, "captured": captured, "compare": compare}
        seconds: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(ROUNDS):
            for name, run in rows.items():
                seconds[name].append(timed(run))
    base = median(seconds["forward"])
    extra = median(c - f for c, f in zip(seconds["captured"], seconds["forward"], strict=True))
    out(
        f"{datetime.datetime.now(datetime.UTC).date()}, {torch.cuda.get_device_name()}, torch "
        f"{torch.__version__}, transformers {tf.__version__}, Python {platform.python_version()}; "
        f"Llama, {LAYERS} layers, {WIDTH} wide, {TOKENS} tokens, fp16; {len(one)} states; medians "
        f"of {ROUNDS}.\n\n| what | time | of the forward pass |\n|---|---|---|\n"
        f"| forward pass | {base * 1e3:.2f} ms | |\n"
        f"| capturing all states (copies) | {extra * 1e3:.2f} ms | {extra / base:.1%} |\n"
        f"| comparing two traces on the device | {median(seconds['compare']) * 1e3:.2f} ms | "
        f"{median(seconds['compare']) / base:.1%} |\n"
    )


if __name__ == "__main__":
    main()
