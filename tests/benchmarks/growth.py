"""How the memory of `verify` grows with layers, width and tokens where weights are streamed.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/growth.py [docs/img/growth.svg]

Llama shapes in bf16, each written to a folder; `torch:cpu:fp32` against `emulated:bf16`,
calibrated, one row of tokens, in a process of its own; the peak of its anonymous memory less what
it has after a tiny model was verified. Writes a table, and a drawing of it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path
from threading import Event, Thread
from typing import Any

WIDTH, LAYERS, TOKENS = 1024, 16, 128
AXES: dict[str, list[tuple[int, int, int]]] = {
    "layers": [(layers, WIDTH, TOKENS) for layers in (4, 8, 16, 32)],
    "width": [(LAYERS, width, TOKENS) for width in (256, 512, 1024)],
    "tokens": [(LAYERS, WIDTH, tokens) for tokens in (64, 128, 256, 512)],
}
"""Layers, width and tokens: one of them grows."""
VOCABULARY = 8000


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_model(folder: Path, layers: int, width: int) -> None:
    import torch
    import transformers as tf

    torch.manual_seed(0)
    config = tf.LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=VOCABULARY,
        max_position_embeddings=2048,
    )
    tf.LlamaForCausalLM(config).bfloat16().save_pretrained(folder)


def anonymous() -> float:
    kib = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(kib[1]) / 1024 if kib else 0.0


def measured(folder: str, tokens: int) -> dict[str, float]:
    """MiB over what the process had before, and those of all states of a trace."""
    import numpy as np

    import driftwalk
    from driftwalk_backends import lending

    driftwalk.verify("demo:decoder", "emulated:bf16", cache=False)  # all that is to be imported is
    lending.LARGE = 0
    ids = np.arange(tokens)[None] * 7 % VOCABULARY
    before, most, done = anonymous(), [0.0], Event()

    def look() -> None:
        while not done.wait(0.005):
            most[0] = max(most[0], anonymous())

    Thread(target=look, daemon=True).start()
    report = driftwalk.verify(folder, "emulated:bf16", probe={"input_ids": ids}, cache=False)
    done.set()
    assert report.verdict == "pass", report.verdict
    states = sum(np.prod(layer.shape) * 4 for layer in report.layers) / 2**20
    return {"over": most[0] - before, "states": float(states)}


def rows() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in AXES}
    say("| layers | width | tokens | weights, MiB | states of one trace, MiB | over, MiB |")
    say("|---:|---:|---:|---:|---:|---:|")
    for name, shapes in AXES.items():
        for layers, width, tokens in shapes:
            with tempfile.TemporaryDirectory() as folder:
                write_model(Path(folder), layers, width)
                weights = sum(f.stat().st_size for f in Path(folder).glob("*.safetensors")) / 2**20
                command = [sys.executable, __file__, "one", folder, str(tokens)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
            row = json.loads(done.stdout.splitlines()[-1]) | {"weights": weights}
            row |= {"layers": layers, "width": width, "tokens": tokens}
            found[name].append(row)
            numbers = f"{weights:.0f} | {row['states']:.1f} | {row['over']:.0f}"
            say(f"| {layers} | {width} | {tokens} | {numbers} |")
    return found


def drawn(found: dict[str, list[dict[str, Any]]]) -> str:
    """Three small charts side by side: MiB over the axis that grows, and the weights beside it."""
    wide, tall, left, top = 250, 190, 46, 34
    size = f"0 0 {3 * (wide + left) + 20} {tall + 84}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        "<title>Memory of verify with streamed weights</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for number, (name, some) in enumerate(found.items()):
        x0 = left + number * (wide + left)
        most_x = max(row[name] for row in some)
        most_y = max(max(row["over"], row["weights"]) for row in some) * 1.1

        def at(x: float, y: float, x0=x0, most_x=most_x, most_y=most_y) -> str:
            return f"{x0 + x / most_x * wide:.1f},{top + tall - y / most_y * tall:.1f}"

        parts.append(f'<text x="{x0}" y="20" font-weight="600">MiB by {escape(name)}</text>')
        parts.append(f'<path d="M{x0} {top}V{top + tall}H{x0 + wide}" fill="none" stroke="#888"/>')
        for share in (0.5, 1.0):
            y = most_y / 1.1 * share
            line = at(0, y).split(",")[1]
            parts.append(
                f'<text x="{x0 - 6}" y="{line}" text-anchor="end" dy="4">{y:.0f}</text>'
                f'<path d="M{x0} {line}h{wide}" stroke="#e4e4e4"/>'
            )
        for key, colour, dash in (("weights", "#999", "4 4"), ("over", "#1f6feb", "")):
            points = " ".join(at(row[name], row[key]) for row in some)
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" '
                f'stroke-dasharray="{dash}"/>'
            )
            for row in some:
                x, y = at(row[name], row[key]).split(",")
                parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
        for row in some:
            x = at(row[name], 0).split(",")[0]
            parts.append(
                f'<text x="{x}" y="{top + tall + 18}" text-anchor="middle">{row[name]}</text>'
            )
    legend = top + tall + 40
    parts.append(
        f'<circle cx="{left}" cy="{legend - 4}" r="4" fill="#1f6feb"/>'
        f'<text x="{left + 10}" y="{legend}">anonymous memory of verify, less what a tiny '
        "model takes</text>"
        f'<circle cx="{left + 420}" cy="{legend - 4}" r="4" fill="#999"/>'
        f'<text x="{left + 430}" y="{legend}">weights on disk, bf16 (mapped)</text></svg>'
    )
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["one", folder, tokens]:
            say(json.dumps(measured(folder, int(tokens))))
        case [] | [_]:
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
            result = rows()
            if len(sys.argv) == 2:
                Path(sys.argv[1]).write_text(drawn(result))
