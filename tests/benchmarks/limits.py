"""What the limits of honest.py are chosen by: how far honest pairs go in each judged norm.

python3 tests/benchmarks/limits.py [MODEL ...] > rows.jsonl
python3 tests/benchmarks/limits.py table rows.jsonl ...

A model is a name of tests/zoo.py, `wide:gpt2`, `wide:llama`, `wide:bert` (12 layers, 768 wide),
`sinks:llama` (with planted attention sinks) or a folder. One JSON line for each candidate: in each
norm the largest ratio to the yardstick's noise, over all points, and which point that is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as tf

import zoo
from driftwalk.errors import DriftwalkError
from driftwalk.judge.calibrate import Calibration, calibrate, yardstick_spec
from driftwalk.judge.replay import introduced_errors
from driftwalk.measure.norms import NORM_NAMES, Norms, ratio
from driftwalk.registry import create
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import LoadedModel, open_model

CPU = (
    "torch:cpu:fp32,attn=eager",
    "torch:cpu:fp32,compile=inductor",
    "onnxruntime",
    "emulated:fp16,attn=eager",
    "emulated:bf16,attn=eager",
)
GPU = (
    "torch:cuda:fp32",
    "torch:cuda:fp32,attn=eager",
    "torch:cuda:fp32,tf32=on",
    "torch:cuda:fp16",
    "torch:cuda:fp16,attn=eager",
    "torch:cuda:bf16",
    "torch:cuda:bf16,attn=eager",
    "torch:cuda:bf16,compile=inductor",
)


def build(name: str, seed: int) -> LoadedModel:
    if Path(name).is_dir():
        return open_model(name)
    kind, _, what = name.rpartition(":")
    if not kind:
        return open_model(zoo.build(name, seed))
    torch.manual_seed(seed)
    size = {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12}
    if what == "gpt2":
        module = tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=8192))
    elif what == "bert":
        module = tf.BertModel(tf.BertConfig(vocab_size=8192, **size))
    else:
        config = tf.LlamaConfig(vocab_size=8192, intermediate_size=2048, **size)
        module = tf.LlamaForCausalLM(config)
    if kind == "sinks":
        plant_sinks(module)
    return open_model(module.eval())


def plant_sinks(module: torch.nn.Module) -> None:
    """From layer 3 to 9 one channel of the tokens that start a row is four orders larger."""
    layers = module.model.layers
    with torch.no_grad():
        layers[3].mlp.down_proj.weight[7] *= 3000
        layers[9].mlp.down_proj.weight[7] *= -1


def probes(model: LoadedModel, seed: int) -> Iterator[Any]:
    if model.source == "folder":
        for text in ("The capital of France is", "def f(x):\n    return x + 1\n", "Hello"):
            yield make_probe(model, text)
    else:
        yield make_probe(model, None, seed=seed)
        yield make_probe(model, None, batch=2, length=64, seed=seed)


def largest(errors: dict[str, Norms], noise: dict[str, Norms]) -> dict[str, tuple[float, str]]:
    found: dict[str, tuple[float, str]] = {}
    for norm in NORM_NAMES:
        pairs = [
            (ratio(getattr(error, norm), getattr(noise[point], norm)), point)
            for point, error in errors.items()
            if point in noise and getattr(noise[point], norm) > 0
        ]
        found[norm] = max(pairs, default=(0.0, ""))
    return found


def used(errors: dict[str, Norms], allowed: Any) -> tuple[float, str, str]:
    pairs = [(*error.over(allowed(point)), point) for point, error in errors.items()]
    return max(pairs, default=(0.0, "", ""))


def row(model: LoadedModel, candidate: str, probe: Any, known: Calibration, truth: Any) -> dict:
    with create(candidate, model) as backend:
        trace = backend.trace(probe)
    errors = {s.point.name: e for s in trace if (e := known.error(s)) is not None}
    own = introduced_errors(truth, trace, known.own_error)
    room = known.room(own)
    return {
        "dtype": known.dtype,
        "rows": int(np.prod(next(iter(probe.inputs.values())).shape[:2])),
        "total": largest(errors, {n: h.noise for n, h in known.total.items()}),
        "own": largest(own, {n: h.noise for n, h in known.own.items()}),
        "used": used(errors, known.allowed),
        "used_own": used(own, lambda point: known.allowed_own(point, room)),
    }


def measure(name: str) -> None:
    candidates = CPU + (GPU if torch.cuda.is_available() else ())
    for seed in (0, 1):
        model = build(name, seed)
        for probe in probes(model, seed):
            known: dict[str, Calibration] = {}
            with create("truth", model) as truth:
                for candidate in candidates:
                    try:
                        dtype = create(candidate, model).info.dtype
                        if dtype not in known:
                            with create(yardstick_spec(dtype), model) as yardstick:
                                known[dtype] = calibrate(truth, yardstick, probe)
                        found = row(model, candidate, probe, known[dtype], truth)
                    except DriftwalkError as error:
                        sys.stderr.write(f"{name} {candidate}: {error}\n")
                        continue
                    line = {"model": name, "seed": seed, "candidate": candidate, **found}
                    sys.stdout.write(json.dumps(line | {"doubt": known[dtype].doubt}) + "\n")
                    sys.stdout.flush()


def table(files: list[str]) -> None:
    rows = [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]
    out = sys.stdout.write
    out(f"| dtype | candidate | pairs | {' | '.join(NORM_NAMES)} | used | own used |\n")
    out(f"|---|---|---|{'---|' * (len(NORM_NAMES) + 2)}\n")
    for key in sorted({(r["dtype"], r["candidate"]) for r in rows}):
        ours = [r for r in rows if (r["dtype"], r["candidate"]) == key]
        cells = [
            " / ".join(f"{max(r[part][norm][0] for r in ours):.2f}" for part in ("total", "own"))
            for norm in NORM_NAMES
        ]
        most = [max(r[part] for r in ours) for part in ("used", "used_own")]
        told = [f"{m[0]:.2f} ({m[1]} at {m[2]})" for m in most]
        out(f"| {key[0]} | `{key[1]}` | {len(ours)} | {' | '.join(cells + told)} |\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["table"]:
        table(sys.argv[2:])
    else:
        for chosen in sys.argv[1:] or zoo.NAMES:
            measure(chosen)
