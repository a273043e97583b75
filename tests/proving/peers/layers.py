"""What the peers compare in PyTorch: the outputs of the repeated blocks, and of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..places import blocks, run

INNER = "inner."
OUTPUT = "output"
TOKENS = 4
"""That are generated, at temperature 0."""


class TensorsOnly(nn.Module):
    """A model whose outputs are its tensors by name: `torch.export` takes no cache objects."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.training = inner.training

    def forward(self, **inputs: Any) -> dict[str, torch.Tensor]:
        return dict(tensors_in(self.inner(**inputs)))


class Generating(nn.Module):
    """A model whose forward pass is a short greedy generation, with the logits of every step."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **inputs: Any) -> Any:
        if not hasattr(self.inner, "generate"):
            raise TypeError(f"{type(self.inner).__name__} has no generate")
        return self.inner.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            return_dict_in_generate=True,
            output_logits=True,
        )


def tensors_in(value: Any, name: str = OUTPUT) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of an output by its name; caches and other objects are left out."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from tensors_in(part, f"{name}.{key}")
    elif isinstance(value, tuple | list):
        for number, part in enumerate(value):
            yield from tensors_in(part, f"{name}[{number}]")


def hooked(module: nn.Module) -> list[str]:
    """Paths of the repeated blocks; of T5's, too, that have one child and are none to `blocks`."""
    if paths := blocks(module):
        return paths
    lists = [
        path
        for path, part in module.named_modules()
        if isinstance(part, nn.ModuleList) and len({type(child) for child in part}) == 1 < len(part)
    ]
    outer = [path for path in lists if not any(path.startswith(f"{home}.") for home in lists)]
    return [f"{path}.{n}" for path in outer for n, _ in module.get_submodule(path).named_children()]


Recorded = dict[str, tuple[str, torch.Tensor]]
"""Module path ("" for the model's own outputs) and tensor, by name, in order of execution."""


def recorded(
    module: nn.Module, inputs: Mapping[str, Any], dtype: torch.dtype | None = None
) -> Recorded:
    """Outputs of all repeated blocks in one run, and then of the model."""
    layers: Recorded = {}
    calls: dict[str, int] = {}

    def keep(path: str, value: Any) -> None:
        call = calls[path] = calls.get(path, 0) + 1
        label = path if call == 1 else f"{path}#{call}"
        for name, tensor in tensors_in(value, label):
            layers[name] = path, tensor.detach().clone()

    handles = [
        module.get_submodule(path).register_forward_hook(
            lambda _module, _inputs, value, path=path: keep(path.removeprefix(INNER), value)
        )
        for path in hooked(module)
    ]
    try:
        output = run(module, inputs, dtype or dtype_of(module))
    finally:
        for handle in handles:
            handle.remove()
    return layers | {name: ("", tensor.detach()) for name, tensor in tensors_in(output)}


def outputs(layers: Recorded) -> dict[str, torch.Tensor]:
    """Of the model itself."""
    return {name: tensor for name, (path, tensor) in layers.items() if not path}


def both(
    reference: nn.Module, candidate: nn.Module, inputs: Mapping[str, Any]
) -> tuple[Recorded, Recorded]:
    """Both sides recorded: by block where these have the same names, else by output only."""
    sides = recorded(reference, inputs), recorded(candidate, inputs)
    if sides[0].keys() == sides[1].keys():
        return sides
    left, right = ({n: ("", t) for n, t in outputs(side).items()} for side in sides)
    return left, right


def dtype_of(module: nn.Module) -> torch.dtype:
    """The dtype that a module computes in: of its first floating parameter."""
    floats = (p.dtype for p in module.parameters() if p.is_floating_point())
    return next(floats, torch.float32)


def first_line(error: BaseException) -> str:
    """An exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
