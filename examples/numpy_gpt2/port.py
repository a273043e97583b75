"""GPT-2 in plain numpy, from the same safetensors file that PyTorch loads.

    python port.py MODEL_FOLDER [--gelu erf] [--lose-slot LAYER] PROBE OUT

It knows nothing of driftwalk, torch or transformers: it reads the probe, runs the model, and writes
every state under names of its own; map.toml says which points those are. Where the probe asks for
steps, it feeds the sequence step by step, on a cache. Two bugs that ports really have: `--gelu erf`
(GPT-2 was trained with the tanh approximation of GELU), and `--lose-slot`, an off-by-one where the
cache of a layer grows.
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

PAGE = 8
"""Slots by which a cache grows."""
DTYPES = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "BOOL": "|b1", "U8": "|u1"}


def read_safetensors(path):
    """The whole format: a length, a header of JSON, bytes. Also gives what a probe asks for."""
    raw = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in DTYPES:
            first, last = (8 + length + at for at in entry["data_offsets"])
            array = np.frombuffer(raw[first:last], DTYPES[entry["dtype"]])
            tensors[name.removeprefix("transformer.")] = array.reshape(entry["shape"])
    asked = json.loads(header.get("__metadata__", {}).get("driftwalk.probe", "{}"))
    return tensors, asked.get("decoding")


def tanh_gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def erf_gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))).astype(x.dtype)


class Cache:
    """Keys and values of one layer, in pages: where one is full, all is copied to a larger place.

    With `loses`, the copy ends one slot early.
    """

    def __init__(self, loses=False):
        self.length, self.loses = 0, loses
        self.held = {}

    def add(self, **new):
        """Keep what is new, (row, head, slot, channel), and give all that is held."""
        for name, x in new.items():
            rows, heads, more, channels = x.shape
            old = self.held.get(name, np.empty((rows, heads, 0, channels), x.dtype))
            if self.length + more > old.shape[2]:
                pages = -(-(self.length + more) // PAGE)
                larger = np.zeros((rows, heads, pages * PAGE, channels), x.dtype)
                copied = max(0, self.length - self.loses)
                larger[:, :, :copied] = old[:, :, :copied]
                old = larger
            old[:, :, self.length : self.length + more] = x
            self.held[name] = old
        self.length += more
        return [self.held[name][:, :, : self.length] for name in new]


class GPT2:
    """One method per kind of module; `states` keeps what each of them gave, step after step."""

    def __init__(self, folder, gelu, lose_slot=None):
        self.config = json.loads((Path(folder) / "config.json").read_text())
        self.weights, _ = read_safetensors(Path(folder) / "model.safetensors")
        self.gelu = gelu
        self.caches = [Cache(n == lose_slot) for n in range(self.config["n_layer"])]
        self.states = {}

    def keep(self, name, x):
        self.states.setdefault(name, []).append(x)
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

    def attention(self, name, x, hidden, cache):
        rows, length, width = x.shape
        heads = self.config["n_head"]
        mixed = self.linear(f"{name}.c_attn", x)
        q, k, v = (
            part.reshape(rows, length, heads, width // heads).transpose(0, 2, 1, 3)
            for part in np.split(mixed, 3, axis=-1)
        )
        k, v = cache.add(key=k, value=v)
        scores = q @ k.transpose(0, 1, 3, 2) / np.float32(math.sqrt(width // heads))
        scores = np.where(hidden, np.finfo(np.float32).min, scores)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        weights = scores / scores.sum(-1, keepdims=True)
        given = (weights @ v).transpose(0, 2, 1, 3).reshape(rows, length, width)
        return self.keep(name, self.linear(f"{name}.c_proj", given))

    def mlp(self, name, x):
        inner = self.keep(f"{name}.act", self.gelu(self.linear(f"{name}.c_fc", x)))
        return self.keep(name, self.linear(f"{name}.c_proj", inner))

    def step(self, ids, mask, positions):
        """The next tokens; `mask` and `positions` are those of the sequence up to its end."""
        seen, length = mask.shape[1] - ids.shape[1], mask.shape[1]
        hidden = np.triu(np.ones((length, length), bool), 1)[seen:] | (mask == 0)[:, None, None, :]
        embedded = self.weights["wte.weight"][ids] + self.weights["wpe.weight"][positions]
        x = self.keep("embeddings", embedded)
        for n, cache in enumerate(self.caches):
            x = x + self.attention(f"h.{n}.attn", self.norm(f"h.{n}.ln_1", x), hidden, cache)
            x = self.keep(f"h.{n}", x + self.mlp(f"h.{n}.mlp", self.norm(f"h.{n}.ln_2", x)))
        self.keep("lm_head", self.norm("ln_f", x) @ self.weights["wte.weight"].T)

    def joined(self, shows_cache):
        """All states along their tokens; then what the caches hold, (row, slot, channel)."""
        made = {name: np.concatenate(parts, axis=1) for name, parts in self.states.items()}
        for n, cache in enumerate(self.caches if shows_cache else ()):
            for name, held in cache.held.items():
                used = held[:, :, : cache.length].transpose(0, 2, 1, 3)
                made[f"h.{n}.{name}"] = used.reshape(*used.shape[:2], -1)
        return made


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--gelu", choices=["tanh", "erf"], default="tanh")
    parser.add_argument("--lose-slot", type=int, metavar="LAYER")
    parser.add_argument("probe")
    parser.add_argument("out")
    given = parser.parse_args()
    probe, decoding = read_safetensors(given.probe)
    ids = probe["input_ids"]
    mask = probe.get("attention_mask", np.ones_like(ids))
    positions = probe.get("position_ids", np.arange(ids.shape[1])[None])
    gelu = {"tanh": tanh_gelu, "erf": erf_gelu}[given.gelu]
    model, start = GPT2(given.model, gelu, given.lose_slot), 0
    for tokens in decoding["chunks"] if decoding else [ids.shape[1]]:
        end = start + tokens
        model.step(ids[:, start:end], mask[:, :end], positions[:, start:end])
        start = end
    states = model.joined(shows_cache=bool(decoding))
    arrays = {name: np.ascontiguousarray(x, "<f4") for name, x in states.items()}
    told = {name: (list(x.shape), x.tobytes()) for name, x in arrays.items()}
    write_trace(given.out, told, decoding)


main()
