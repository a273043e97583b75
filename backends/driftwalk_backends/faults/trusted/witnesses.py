"""Whoever is asked lies: a wrong reference, a truth that computes something else, a yardstick that
is coarser than its name, a cache that was filled by an earlier version of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial, wraps
from typing import Any

import torch
from torch import nn

from driftwalk.registry import create

from ...loaded import LoadedModel
from ...precision import copied
from ...tensors import output_tensors, with_stream_output
from ..planning import FaultyModel, OtherModel, inject
from .lie import Absent, Ground, Liar, Lie, Setup, Weighed

Change = Callable[[nn.Module], nn.Module]
"""What becomes of a copy, changed in place or in another copy."""


# ---- the reference: a port with a bug, a golden trace from before the bug was mended ----


def wrong_reference(ground: Ground) -> Iterator[Lie]:
    """In turn: the reference alone is wrong; both sides are wrong in the same way."""
    for number in range(8):
        both = number % 2 == 1
        dtypes = ("fp32", ground.dtype) if both else ("fp32",)
        weighed = ground.owed(f"wrong_reference|{number}", dtypes, first=number)
        who = "reference and candidate both have it" if both else "only the reference has it"
        text = f"{who}: {weighed.fault.description}"
        yield Lie("wrong_reference", text, partial(_with_reference, ground, weighed, both))


def _with_reference(ground: Ground, weighed: Weighed, both: bool) -> Setup:
    reference = create("torch", FaultyModel(ground.model, weighed.fault))
    candidate = ground.faulty(weighed.fault) if both else ground.candidate
    wrong: Liar = "both" if both else "reference"
    return ground.setup(candidate, wrong, weighed.points, reference=reference)


# ---- the cache: what is stored under the key in use was made from an earlier version ----


class EarlierModel(OtherModel):
    """A version of a model that no fingerprint can tell from it, as if a function was patched."""

    def __init__(self, clean: LoadedModel, module: nn.Module) -> None:
        super().__init__(clean, module, f"{clean.label} (an earlier version)")
        self.fingerprint = clean.fingerprint

    @property
    def has_known_code(self) -> bool:
        return self.clean.has_known_code


_OF_EARLIER_VERSION: dict[Liar, str] = {
    "candidate": "the candidate is one, too",
    "both": "both sides are",
    "nobody": "no side is, but a graph is stored",
}


def stale_cache(ground: Ground) -> Iterator[Lie]:
    """In turn: the candidate is of the earlier version, both sides are; with an exporter, none."""
    if not ground.model.has_known_code:
        raise Absent("its code is of no known version, so that nothing made from it is stored")
    liars: list[Liar] = ["candidate", "both"]
    if ground.candidate.name == "onnxruntime":
        liars.insert(1, "nobody")
    for number in range(len(liars) * 3):
        weighed = ground.owed(f"stale_cache|{number}", (ground.dtype, "fp32"), first=3 * number)
        wrong = liars[number % len(liars)]
        text = f"{weighed.fault.description}; {_OF_EARLIER_VERSION[wrong]}"
        build = partial(_after_earlier_version, ground, weighed, wrong)
        yield Lie("stale_cache", f"stored for an earlier version: {text}", build)


def _after_earlier_version(ground: Ground, weighed: Weighed, wrong: Liar) -> Setup:
    fault = weighed.fault
    before = EarlierModel(ground.model, inject(ground.model.module, fault))
    if wrong == "nobody":  # the candidate looks for an export in the cache, and finds another's
        return ground.setup(str(ground.candidate.spec), wrong, before=before)
    both = wrong == "both"
    reference = create("torch", FaultyModel(ground.model, fault)) if both else "torch"
    candidate = ground.faulty(fault)
    return ground.setup(candidate, wrong, weighed.points, reference=reference, before=before)


# ---- the truth ----


class LossyModel(OtherModel):
    """A model that loses something on its way into some dtypes: its copies in these are changed."""

    def __init__(self, clean: LoadedModel, changes: Mapping[str, Change]) -> None:
        super().__init__(clean, clean.module, clean.label)
        self._changes = changes

    def at(self, dtype: str, device: str, attn: str | None = None, **options: Any) -> nn.Module:
        module = self.clean.at(dtype, device, attn, **options)
        if dtype not in self._changes:
            return module
        with torch.no_grad():
            return self._changes[dtype](copied(module))


def void_truth(ground: Ground) -> Iterator[Lie]:
    """In turn: the ways in which a truth is wrong; mostly the candidate is wrong as well."""
    for number in range(8):
        weighed = ground.owed(f"void_truth|{number}", first=number, plain=True)
        ways = list(_ways(ground, weighed, number))
        text, change = ways[(ground.seed + number) % len(ways)]
        build = partial(_with_truth, ground, change)
        fault = weighed.fault.description
        yield Lie("void_truth", f"{text}; the candidate: {fault}", partial(build, weighed))
        if number % 2:
            yield Lie("void_truth", f"{text}; the candidate is right", build)


def _with_truth(ground: Ground, change: Change, weighed: Weighed | None = None) -> Setup:
    model = LossyModel(ground.model, {"fp64": change})
    if weighed is None:
        return Setup(model, ground.candidate, ground.probe, "nobody")
    faulty = ground.faulty(weighed.fault)
    return Setup(model, faulty, ground.probe, "candidate", weighed.points)


def _ways(ground: Ground, weighed: Weighed, number: int) -> Iterator[tuple[str, Change]]:
    """What may be wrong with a truth, each in words."""
    yield "the truth has the candidate's own fault", partial(inject, fault=weighed.fault)
    yield "the truth's weights were rounded to bf16", partial(_rounded_weights, dtype="fp32")
    with suppress(Absent):
        other = ground.owed(f"void_truth|other|{number}", ("fp32",), first=number + 3).fault
        yield f"in the truth {other.description}", partial(inject, fault=other)
    if any(_is_float(b) for b in ground.model.module.buffers()):
        yield "the truth's buffers were lost", _lost_buffers
    blocks = list(dict.fromkeys(ground.anatomy.blocks.values()))
    path = ground.random(f"void_truth|widened|{number}").choice(blocks)
    dodged, halved = (partial(_hooked, paths=(path,), hook=hook) for hook in (_dodged, _halved))
    yield f"{path} computes something else where casts are widened", dodged
    yield f"the truth attends to half of what {path} is given", halved


def _lost_buffers(module: nn.Module) -> nn.Module:
    for buffer in module.buffers():
        if _is_float(buffer):
            buffer.zero_()
    return module


def _hooked(module: nn.Module, paths: tuple[str, ...], hook: Any) -> nn.Module:
    for path in paths:
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
    points = ground.anatomy.blocks
    for number in range(6):
        first = 0 if number < 4 else number
        # A lookup is exact in every dtype: no yardstick is coarser there.
        weighed = ground.owed(f"swollen_yardstick|{number}", first=first, plain=True, within=points)
        text, change = _SWOLLEN[(ground.seed + number) % len(_SWOLLEN)]
        blocks = tuple(dict.fromkeys(points.values()))
        alone = number % 2 and ground.dtype != "fp32"
        dtypes = [ground.dtype] if alone else dict.fromkeys(("fp32", ground.dtype))
        changes = {dtype: partial(change, blocks=blocks, dtype=dtype) for dtype in dtypes}
        said = f"the {' and '.join(dtypes)} yardstick {text}"
        build = partial(_with_yardstick, ground, weighed, changes)
        yield Lie("swollen_yardstick", f"{said}; the candidate: {weighed.fault.description}", build)


def _with_yardstick(ground: Ground, weighed: Weighed, changes: Mapping[str, Change]) -> Setup:
    model = LossyModel(ground.model, changes)
    # The reference is run by a copy of its own, which is not coarser than its name.
    reference = create("torch", ground.model)
    candidate = ground.faulty(weighed.fault)
    return Setup(model, candidate, ground.probe, "candidate", weighed.points, reference)


def _autocast(module: nn.Module, blocks: tuple[str, ...], dtype: str) -> nn.Module:
    if dtype != "fp32":  # autocast narrows float32 alone
        return _rounded_states(module, blocks, dtype)
    forward = module.forward

    @wraps(forward)
    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return forward(*args, **kwargs)

    module.forward = cast
    return module


def _rounded_states(module: nn.Module, blocks: tuple[str, ...], dtype: str) -> nn.Module:
    def rounded(_: nn.Module, args: Any, output: Any) -> Any:
        return with_stream_output(output, keep_bits(output_tensors(output)[0], _BITS[dtype]))

    return _hooked(module, blocks, rounded)


def _rounded_weights(module: nn.Module, blocks: tuple[str, ...] = (), dtype: str = "") -> nn.Module:
    for parameter in module.parameters():
        if _is_float(parameter):
            parameter.copy_(keep_bits(parameter.data, _BITS[dtype]))
    return module


_BITS = {"fp32": 8, "tf32": 5, "fp16": 5, "bf16": 4, "fp8": 2}
"""What is left of the digits that the name of a dtype promises."""
_SWOLLEN: tuple[tuple[str, Callable[..., nn.Module]], ...] = (
    ("ran under autocast", _autocast),
    ("rounded its states", _rounded_states),
    ("rounded its weights", _rounded_weights),
)


def keep_bits(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """The nearest numbers with so many significant bits, of any size."""
    mantissa, exponent = torch.frexp(tensor.double())
    return torch.ldexp(torch.round(mantissa * 2**bits) / 2**bits, exponent).to(tensor.dtype)


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 1
