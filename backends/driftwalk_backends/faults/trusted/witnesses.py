"""The witnesses lie: a truth that computes something else, a yardstick coarser than its name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from driftwalk.registry import create

from ...loaded import LoadedModel
from ...precision import copied
from ...tensors import output_tensors, with_stream_output
from ..fault import Fault
from ..planning import inject
from .lie import UNSEEN, Absent, Case, Ground, Lie, OtherModel, Weighed, placed

Change = Callable[[nn.Module], nn.Module]
"""What becomes of a copy, changed in place or in another copy."""


class LossyModel(OtherModel):
    """A model that loses something on its way into some dtypes: its copies in these are changed."""

    def __init__(self, clean: LoadedModel, changes: Mapping[str, Change]) -> None:
        super().__init__(clean, clean.module, clean.label)
        self._changes = changes

    def at(
        self, dtype: str, device: str, attn: str | None = None, *, for_export: bool = False
    ) -> nn.Module:
        module = self.clean.at(dtype, device, attn, for_export=for_export)
        if dtype not in self._changes:
            return module
        with torch.no_grad():
            return self._changes[dtype](copied(module))


# ---- the truth ----


def void_truth(ground: Ground) -> Iterator[Lie]:
    """In turn: the ways in which a truth is wrong; mostly the candidate is wrong as well."""
    for number in range(8):
        weighed = ground.owed(f"void_truth|{number}", first=number, plain=True)
        if weighed is None:
            raise Absent(UNSEEN)
        ways = list(_ways(ground, weighed.fault, number))
        text, change = ways[(ground.seed + number) % len(ways)]

        def build(weighed: Weighed = weighed, change: Change = change) -> Case:
            model = LossyModel(ground.model, {"fp64": change})
            candidate = ground.faulty(weighed.fault)
            return Case(model, candidate, ground.probe, "candidate", placed(weighed))

        def build_clean(change: Change = change) -> Case:
            model = LossyModel(ground.model, {"fp64": change})
            return Case(model, ground.candidate, ground.probe, "nobody")

        yield Lie("void_truth", f"{text}; the candidate: {weighed.fault.description}", build)
        if number % 2:
            yield Lie("void_truth", f"{text}; the candidate is right", build_clean)


def _ways(ground: Ground, fault: Fault, number: int) -> Iterator[tuple[str, Change]]:
    """What may be wrong with a truth, each in words."""
    yield "the truth has the candidate's own fault", lambda m: inject(m, fault)
    yield "the truth's weights were rounded to bf16", _rounded_weights
    other = ground.owed(f"void_truth|other|{number}", ("fp32",), first=number + 3)
    if other is not None:
        text = f"in the truth {other.fault.description}"
        yield text, lambda m: inject(m, other.fault)
    if any(_is_float(b) for b in ground.model.module.buffers()):
        yield "the truth's buffers were lost", _lost_buffers
    blocks = list(dict.fromkeys(ground.anatomy.blocks.values()))
    path = ground.random(f"void_truth|widened|{number}").choice(blocks)
    yield (
        f"{path} computes something else where casts are widened",
        lambda m: _hooked(m, path, _dodged),
    )
    yield f"the truth attends to half of what {path} is given", lambda m: _hooked(m, path, _halved)


def _rounded_weights(module: nn.Module) -> nn.Module:
    return _rounded_copies(module, (), "fp32")


def _lost_buffers(module: nn.Module) -> nn.Module:
    for buffer in module.buffers():
        if _is_float(buffer):
            buffer.zero_()
    return module


def _hooked(module: nn.Module, path: str, hook: Any) -> nn.Module:
    module.get_submodule(path).register_forward_hook(hook)
    return module


def _dodged(_: nn.Module, args: Any, output: Any) -> Any:
    """Off by a thousandth where a cast to float32 does not narrow."""
    tensor = output_tensors(output)[0]
    if tensor.to(torch.float32).dtype is torch.float32:
        return None
    return with_stream_output(output, tensor * 1.001)


def _halved(_: nn.Module, args: Any, output: Any) -> Any:
    """Every second position is what it was before the block."""
    given = next((a for a in args if isinstance(a, torch.Tensor)), None)
    tensor = output_tensors(output)[0]
    if given is None or given.shape != tensor.shape:
        given = torch.zeros_like(tensor)
    odd = torch.arange(tensor.shape[1], device=tensor.device) % 2 == 1
    return with_stream_output(output, torch.where(odd[:, None], given, tensor))


# ---- the yardstick ----


def swollen_yardstick(ground: Ground) -> Iterator[Lie]:
    """In turn: autocast inside, states rounded on the way, weights rounded, the other dtype too."""
    named = dict.fromkeys(("fp32", ground.dtype))
    for number in range(6):
        first, within = 0 if number < 4 else number, ground.anatomy.blocks
        # A lookup is exact in every dtype: no yardstick is coarser there.
        weighed = ground.owed(f"swollen_yardstick|{number}", first=first, plain=True, within=within)
        if weighed is None:
            raise Absent(UNSEEN)
        text, change = _SWOLLEN[(ground.seed + number) % len(_SWOLLEN)]
        blocks = tuple(dict.fromkeys(ground.anatomy.blocks.values()))
        alone = number % 2 and ground.dtype != "fp32"
        dtypes = (ground.dtype,) if alone else tuple(named)
        changes = {dtype: functools.partial(change, blocks=blocks, dtype=dtype) for dtype in dtypes}

        def build(weighed: Weighed = weighed, changes: Mapping[str, Change] = changes) -> Case:
            model = LossyModel(ground.model, changes)
            # The reference is run by a copy of its own, which is not coarser than its name.
            reference = create("torch", ground.model)
            candidate = ground.faulty(weighed.fault)
            return Case(
                model, candidate, ground.probe, "candidate", placed(weighed), reference=reference
            )

        said = f"the {' and '.join(dtypes)} yardstick {text}"
        yield Lie("swollen_yardstick", f"{said}; the candidate: {weighed.fault.description}", build)


def _autocast(module: nn.Module, blocks: tuple[str, ...], dtype: str) -> nn.Module:
    if dtype != "fp32":  # autocast narrows float32 alone
        return _rounded_states(module, blocks, dtype)
    forward = module.forward

    @functools.wraps(forward)
    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return forward(*args, **kwargs)

    module.forward = cast
    return module


def _rounded_states(module: nn.Module, blocks: tuple[str, ...], dtype: str) -> nn.Module:
    bits = _BITS[dtype]

    def rounded(_: nn.Module, args: Any, output: Any) -> Any:
        return with_stream_output(output, keep_bits(output_tensors(output)[0], bits))

    for path in blocks:
        _hooked(module, path, rounded)
    return module


def _rounded_copies(module: nn.Module, blocks: tuple[str, ...], dtype: str) -> nn.Module:
    for parameter in module.parameters():
        if _is_float(parameter):
            parameter.copy_(keep_bits(parameter.data, _BITS[dtype]))
    return module


_BITS = {"fp32": 8, "tf32": 5, "fp16": 5, "bf16": 4, "fp8": 2}
"""What is left of the digits that the name of a dtype promises."""
_SWOLLEN: tuple[tuple[str, Callable[..., nn.Module]], ...] = (
    ("ran under autocast", _autocast),
    ("rounded its states", _rounded_states),
    ("rounded its weights", _rounded_copies),
)


def keep_bits(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """The nearest numbers with so many significant bits, of any size."""
    mantissa, exponent = torch.frexp(tensor.double())
    return torch.ldexp(torch.round(mantissa * 2**bits) / 2**bits, exponent).to(tensor.dtype)


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 1
