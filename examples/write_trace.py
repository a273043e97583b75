"""A trace written without driftwalk: the format is docs/trace-format.md."""

import json
import os
import struct
from pathlib import Path


def write_trace(folder, states, decoding=None):
    """`states`: a dict of name -> (shape, float32 values as little-endian bytes), in order.

    `decoding` is what the probe file asked for, where the sequence was fed step by step.
    """
    header, at = {}, 0
    for name, (shape, data) in states.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    with open(path / "states.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, data in states.values():
            file.write(data)
    manifest = {"schema_version": 1, "points": [{"name": name} for name in states]}
    if decoding:
        manifest |= {"schema_version": 2, "decoding": decoding}
    (path / "manifest.tmp").write_text(json.dumps(manifest))
    os.replace(path / "manifest.tmp", path / "manifest.json")
