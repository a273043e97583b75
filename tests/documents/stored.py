"""Stored documents of every kind: written by older code, never by the code that is tested.

Of tests/data/documents: bench by `bench demo:decoder -b torch -b emulated:fp16 --batch 1,2`; fleet
and job by `fleet hwcheck --address local --check repeat`; generation by `generate` of a three-layer
GPT-2 whose positions are one too high from step 2 on, and patched, with the rows of each step as a
table, by `generate --patch` of one of two layers with a wrong block; hwcheck by `hwcheck --check
repeat --check units --check invariance`; result by `verify demo:decoder --contrast default
--propagation --patch --bench`; selftest by `selftest demo:decoder -c emulated:bf16 --faults 8`;
bisect by `bisect` of a graph whose truncation a session entry throws away; repair by `repair
demo:decoder -c onnxruntime,quantize=dynamic-int8 --goal kl=0.00005`;
reduction by `reduce pool.onnx -c onnxruntime`, of the graph of tests/reduce;
visibility by `visibility demo:decoder --text "ab c"`; weights by `weights a b`, two folders of a
few tensors each that differ in every way there is; wrong_weight by `demo --fault 3`; bundle, which
is no result, by `extract`; probe_set by `verify --probes` of a tiny GPT-2 with one wrong row of its
embedding, three probes, one of which is outside the vocabulary.
"""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
HEAD = ("schema_version", "tool", "created", "command", "model", "environment", "notes")
STORED = sorted(
    path
    for folder in ("documents", "results", "studies")
    for path in (DATA / folder).glob("*.json")
    if path.name != "bundle.json"
)


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"
