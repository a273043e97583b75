"""Folders of packed weights, written from the published layouts: GPTQ, AWQ, block-wise fp8.

The bits are put into the words one number at a time, unlike how driftwalk reads them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

Tensors = dict[str, torch.Tensor]
Rounder = Callable[[str, torch.Tensor], Tensors]
"""A layer's path and weight (a row for each output) to its stored tensors."""
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def written(
    model: Any,
    folder: Path,
    rounder: Rounder,
    says: Mapping[str, Any],
    leave: tuple[str, ...] = ("lm_head",),
    half: torch.dtype = torch.float16,
) -> Path:
    """The model's folder with its linear layers as the rounder stores them."""
    tensors = {name: one.detach().to(half) for name, one in model.state_dict().items()}
    for path, part in model.named_modules():
        if not isinstance(part, nn.Linear | Conv1D) or path.endswith(leave):
            continue
        weight = part.weight.detach().float()
        del tensors[f"{path}.weight"]
        stored = rounder(path, weight.T if isinstance(part, Conv1D) else weight)
        tensors |= {f"{path}.{name}": one.contiguous() for name, one in stored.items()}
    seen: set[int] = set()
    for name, one in [*tensors.items()]:  # safetensors takes no tensor twice
        tensors[name] = one.clone() if one.data_ptr() in seen else one
        seen.add(one.data_ptr())
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads(model.config.to_json_string(use_diff=False))
    config |= {"architectures": [type(model).__name__], "quantization_config": dict(says)}
    config["dtype"] = str(half).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def changed(folder: Path, change: Callable[[Tensors], None]) -> Path:
    """The folder, after a change to its tensors."""
    file = folder / "model.safetensors"
    tensors = {name: one.clone() for name, one in load_file(file).items()}
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def grouped(
    weight: torch.Tensor, of: torch.Tensor, bits: int, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Numbers of `bits` bits without a sign; steps and zeros, a column for each group."""
    most, groups = (1 << bits) - 1, int(of.max()) + 1
    scales, zeros = (torch.empty(len(weight), groups) for _ in range(2))
    for group in range(groups):
        mine = weight[:, of == group]
        low, high = mine.amin(1).clamp(max=0), mine.amax(1).clamp(min=0)
        if symmetric:
            high = torch.maximum(-low, high)
            low = -high
        step = ((high - low) / most).clamp(min=1e-8).half().float()
        scales[:, group] = step
        zeros[:, group] = (most + 1) / 2 if symmetric else (-low / step).round().clamp(1, most)
    numbers = (weight / scales[:, of] + zeros[:, of]).round().clamp(0, most)
    return numbers.long(), scales, zeros.long()


def packed(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Along the first axis, the lowest bits first, over the edge of a word where need be."""
    rows = np.zeros((numbers.shape[0] * bits // 32, numbers.shape[1]), np.uint64)
    for place, row in enumerate(numbers.numpy().astype(np.uint64)):
        for bit in range(bits):
            word, at = divmod(place * bits + bit, 32)
            rows[word] |= (row >> np.uint64(bit) & np.uint64(1)) << np.uint64(at)
    return torch.from_numpy(rows.astype(np.uint32).view(np.int32).copy())


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """The other way round, one bit at a time."""
    held = words.numpy().view(np.uint32).astype(np.int64)
    made = np.zeros((held.shape[0] * 32 // bits, held.shape[1]), np.int64)
    for place in range(len(made)):
        for bit in range(bits):
            word, at = divmod(place * bits + bit, 32)
            made[place] |= (held[word] >> at & 1) << bit
    return torch.from_numpy(made)


def packed_awq(numbers: torch.Tensor) -> torch.Tensor:
    """Along the second axis, eight columns a word."""
    rows = np.zeros((numbers.shape[0], numbers.shape[1] // 8), np.uint32)
    for word in range(rows.shape[1]):
        for place, column in enumerate(AWQ_ORDER):
            taken = numbers[:, 8 * word + column].numpy().astype(np.uint32)
            rows[:, word] |= taken << np.uint32(4 * place)
    return torch.from_numpy(rows.view(np.int32).copy())


def unpacked_awq(words: torch.Tensor) -> torch.Tensor:
    """The other way round."""
    held = words.numpy().view(np.uint32).astype(np.int64)
    made = np.zeros((held.shape[0], held.shape[1] * 8), np.int64)
    for word in range(held.shape[1]):
        for place, column in enumerate(AWQ_ORDER):
            made[:, 8 * word + column] = held[:, word] >> 4 * place & 15
    return torch.from_numpy(made)


def farthest(tensors: Mapping[str, torch.Tensor], weight: torch.Tensor, says: Any) -> float:
    """In steps: how far a stored number is from its weight (a row for each output), at most.

    Less what a step may be off that is stored in half precision. A number at an end of its range
    stands for all weights beyond it. Any number within half a step is what rounding to the nearest
    gives: whatever its step was meant to be, nobody can tell.
    """
    weight = weight.detach().double()
    if says["quant_method"] == "fp8":
        high, wide = says["weight_block_size"]
        steps = tensors["weight_scale_inv"].double()
        steps = steps.repeat_interleave(high, 0).repeat_interleave(wide, 1)
        numbers = tensors["weight"].double()
        places = torch.log2(numbers.abs().clamp(min=2.0**-6)).floor() - 3
        off, low, high_end = (weight / steps - numbers) / 2**places, -448.0, 448.0
    else:
        awq, bits = says["quant_method"] == "awq", says["bits"]
        read = unpacked_awq if awq else lambda words: unpacked(words, bits)
        numbers = read(tensors["qweight"]).T
        zeros = read(tensors["qzeros"]).T if awq else unpacked(tensors["qzeros"].T, bits)
        zeros = zeros + (0 if awq or says.get("checkpoint_format") == "gptq_v2" else 1)
        of = torch.arange(weight.shape[1]) // says["group_size"]
        of = tensors.get("g_idx", of).long()
        off = weight / tensors["scales"].double().T[:, of] + zeros[:, of] - numbers
        slack = 2.0**-11 * (numbers - zeros[:, of]).abs()
        off = off.sign() * (off.abs() - slack).clamp(min=0)
        low, high_end = 0, (1 << bits) - 1
    beyond = (numbers >= high_end) & (off > 0) | (numbers <= low) & (off < 0)
    return float(torch.where(beyond, 0.0, off).abs().max())


def gptq(
    bits: int = 4,
    size: int = 32,
    symmetric: bool = True,
    second: bool = False,
    order: bool = False,
    index: bool = True,
) -> Rounder:
    """`second`: zeros as they are (gptq_v2); `order`: columns are grouped by importance."""

    def store(path: str, weight: torch.Tensor) -> Tensors:
        of = torch.arange(weight.shape[1]) // size
        if order:
            draw = torch.Generator().manual_seed(len(path))
            of = of[torch.randperm(weight.shape[1], generator=draw)]
        numbers, scales, zeros = grouped(weight, of, bits, symmetric)
        return gptq_tensors(numbers, scales, zeros, of, bits, second, index)

    return store


def gptq_tensors(
    numbers: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    of: torch.Tensor,
    bits: int,
    second: bool = False,
    index: bool = True,
) -> Tensors:
    stored = zeros if second else zeros - 1
    made = {
        "qweight": packed(numbers.T, bits),
        "qzeros": packed(stored, bits).T,
        "scales": scales.T.half(),
    }
    return made | ({"g_idx": of.int()} if index else {})


def gptq_says(bits: int = 4, size: int = 32, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": size, **more}


def awq(size: int = 32) -> Rounder:
    def store(path: str, weight: torch.Tensor) -> Tensors:
        numbers, scales, zeros = grouped(weight, torch.arange(weight.shape[1]) // size, 4, False)
        made = {"qweight": packed_awq(numbers.T), "qzeros": packed_awq(zeros.T)}
        return made | {"scales": scales.T.half()}

    return store


def awq_scaled(model: Any, seed: int = 0) -> Any:
    """A copy of a Llama whose channels are scaled as AWQ does before it rounds."""
    made = copy.deepcopy(model)
    draw = torch.Generator().manual_seed(seed)

    def factors(size: int) -> torch.Tensor:
        return torch.exp(torch.randn(size, generator=draw) * 0.7).clamp(0.2, 5)

    with torch.no_grad():
        for block in made.model.layers:
            attention, mlp = block.self_attn, block.mlp
            behind = {
                block.input_layernorm: (attention.q_proj, attention.k_proj, attention.v_proj),
                block.post_attention_layernorm: (mlp.gate_proj, mlp.up_proj),
            }
            for norm, layers in behind.items():
                scale = factors(len(norm.weight))
                norm.weight /= scale
                for layer in layers:
                    layer.weight *= scale
            scale = factors(mlp.down_proj.in_features)
            mlp.up_proj.weight /= scale[:, None]
            mlp.down_proj.weight *= scale
    return made


AWQ_SAYS = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}


def fp8(block: tuple[int, int], fixed: float = 0.0) -> Rounder:
    def store(path: str, weight: torch.Tensor) -> Tensors:
        numbers = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
        rows, columns = (-(-n // b) for n, b in zip(weight.shape, block, strict=True))
        steps = torch.empty(rows, columns)
        for row in range(rows):
            for column in range(columns):
                at = (
                    slice(row * block[0], (row + 1) * block[0]),
                    slice(column * block[1], (column + 1) * block[1]),
                )
                steps[row, column] = weight[at].abs().max() / 448
                numbers[at] = (weight[at] / steps[row, column]).to(torch.float8_e4m3fn)
        made = {"weight": numbers, "weight_scale_inv": steps}
        return made | ({"activation_scale": torch.tensor(fixed)} if fixed else {})

    return store


def fp8_says(block: tuple[int, int], scheme: str = "dynamic") -> dict[str, Any]:
    return {
        "quant_method": "fp8",
        "weight_block_size": list(block),
        "activation_scheme": scheme,
    }
