"""GPT-2 in plain numpy, from the same safetensors file that PyTorch loads.

    python port.py MODEL_FOLDER [--gelu erf] PROBE OUT

It knows nothing of driftwalk, torch or transformers: it reads the probe, runs the model, and writes
every state under names of its own; map.toml says which points those are. `--gelu erf` is a
bug that ports really have: GPT-2 was trained with the tanh approximation of GELU.
"""

import argparse
import json
import math
import struct
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from write_trace import write_trace

DTYPES = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "BOOL": "|b1", "U8": "|u1"}


def read_safetensors(path):
    """The whole format: a length, a header of JSON, bytes."""
    raw = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in DTYPES:
            first, last = (8 + length + at for at in entry["data_offsets"])
            array = np.frombuffer(raw[first:last], DTYPES[entry["dtype"]])
            tensors[name.removeprefix("transformer.")] = array.reshape(entry["shape"])
    return tensors


def tanh_gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def erf_gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))).astype(x.dtype)


class GPT2:
    """One method per kind of module; `states` keeps what each of them gave."""

    def __init__(self, folder, gelu):
        self.config = json.loads((Path(folder) / "config.json").read_text())
        self.weights = read_safetensors(Path(folder) / "model.safetensors")
        self.gelu = gelu
        self.states = {}

    def keep(self, name, x):
        self.states[name] = x
        return x

    def norm(self, name, x):
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        scaled = (x - mean) / np.sqrt(variance + self.config["layer_norm_epsilon"])
        return self.keep(
            name, scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        )

    def linear(self, name, x):
        return self.keep(name, x @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"])

    def attention(self, name, x, hidden):
        rows, length, width = x.shape
        heads = self.config["n_head"]
        mixed = self.linear(f"{name}.c_attn", x)
        q, k, v = (
            part.reshape(rows, length, heads, width // heads).transpose(0, 2, 1, 3)
            for part in np.split(mixed, 3, axis=-1)
        )
        scores = q @ k.transpose(0, 1, 3, 2) / np.float32(math.sqrt(width // heads))
        scores = np.where(hidden, np.finfo(np.float32).min, scores)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        weights = scores / scores.sum(-1, keepdims=True)
        given = (weights @ v).transpose(0, 2, 1, 3).reshape(rows, length, width)
        return self.keep(name, self.linear(f"{name}.c_proj", given))

    def mlp(self, name, x):
        inner = self.keep(f"{name}.act", self.gelu(self.linear(f"{name}.c_fc", x)))
        return self.keep(name, self.linear(f"{name}.c_proj", inner))

    def __call__(self, ids, mask):
        length = ids.shape[1]
        hidden = np.triu(np.ones((length, length), bool), 1) | (mask == 0)[:, None, None, :]
        x = self.keep(
            "embeddings", self.weights["wte.weight"][ids] + self.weights["wpe.weight"][:length]
        )
        for n in range(self.config["n_layer"]):
            x = x + self.attention(f"h.{n}.attn", self.norm(f"h.{n}.ln_1", x), hidden)
            x = self.keep(f"h.{n}", x + self.mlp(f"h.{n}.mlp", self.norm(f"h.{n}.ln_2", x)))
        self.keep("lm_head", self.norm("ln_f", x) @ self.weights["wte.weight"].T)
        return self.states


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--gelu", choices=["tanh", "erf"], default="tanh")
    parser.add_argument("probe")
    parser.add_argument("out")
    given = parser.parse_args()
    probe = read_safetensors(given.probe)
    ids = probe["input_ids"]
    gelu = {"tanh": tanh_gelu, "erf": erf_gelu}[given.gelu]
    states = GPT2(given.model, gelu)(ids, probe.get("attention_mask", np.ones_like(ids)))
    arrays = {name: np.ascontiguousarray(x, "<f4") for name, x in states.items()}
    write_trace(given.out, {name: (list(x.shape), x.tobytes()) for name, x in arrays.items()})


main()
