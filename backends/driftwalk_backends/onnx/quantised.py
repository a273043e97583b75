"""What a quantised graph may honestly compute: the torch model, with its own weights rounded alike.

Dynamic int8 (`MatMulInteger` behind `DynamicQuantizeLinear`, tables behind `DequantizeLinear`) is
exact arithmetic on whole numbers, so it can be repeated: each weight is rounded again from the
model's own, with the graph's step, and the inputs of those products are rounded as the graph does.
What is left between the two is float rounding, which now and then tips a number over to the next
step. A graph that is off by more is worse than its own quantisation explains.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from driftwalk.dtypes import Array

from ..loaded import LoadedModel
from .graph import OnnxGraph
from .parts import Parts

TRUSTED = 0.01
"""A step this far, relatively, from the one that fits the weights best is the graph's own fault."""
_LARGEST = 16
"""Numbers of a matrix, or of a column, from which its step is told."""
_TIE = 1e-3
"""In steps: how near to half-way a weight may be rounded either way."""
_ALIKE = 0.9
"""Cosine of a rounded matrix with the one it was rounded from; less is another matrix."""
_TIPPING = 2.0**-18
"""Relative noise that makes some roundings of the yardstick tip over, in every product.

Another honest implementation differs by about 2**-20, by which one number in ten thousand tips:
none or a few in a product. A yardstick by whose luck none does would allow nothing."""
_KNOWN = {"MatMulInteger", "DynamicQuantizeLinear", "DequantizeLinear"}


@dataclass(frozen=True)
class Rounded:
    """A matrix as a graph stores it: whole numbers, where zero lies, the step."""

    numbers: Array
    zero: Array
    step: Array
    in_product: bool

    @property
    def values(self) -> Array:
        return (self.numbers.astype(np.float64) - self.zero) * self.step


def honest_model(model: LoadedModel, parts: Parts) -> LoadedModel | None:
    """The model as its quantised graphs should compute it; None where that cannot be told."""
    if not any(graph.quantised for graph in parts.graphs):
        return None
    if not all(map(_is_known, parts.graphs)):
        return None
    return rounded_model(model, [one for graph in parts.graphs for one in _rounded(graph)])


def rounded_model(
    model: LoadedModel, stored: Sequence[Rounded], whole: bool = True
) -> LoadedModel | None:
    """The model with its matrices rounded as stored ones are; None where one is not the model's.

    `whole`: a product's input has one step; otherwise each of its rows has its own.
    """
    module = copy.deepcopy(model.at("fp32", "cpu")).eval()
    rounding = _Rounding(module, whole)
    if not stored or not all(rounding.put(one) for one in stored):
        return None
    return LoadedModel(module, f"{model.label}, quantised", blocks=model.blocks)


def _is_known(graph: OnnxGraph) -> bool:
    words = ("Quant", "Integer", "QLinear", "NBits", "QAttention", "QGemm")
    return all(node.op in _KNOWN for node in graph.nodes if any(w in node.op for w in words))


def _rounded(graph: OnnxGraph) -> Iterator[Rounded]:
    """Every matrix of whole numbers, with the step that its product, or its table, is scaled by."""
    for i, node in enumerate(graph.nodes):
        if node.op == "MatMulInteger":
            _, weight, *zeros = node.proto.input
            numbers, zero = graph.stored(weight), graph.stored(zeros[1] if zeros[1:] else "")
            step = _step_after(graph, i)
            if numbers is not None and step is not None:
                yield Rounded(numbers, zero if zero is not None else np.zeros(()), step, True)
        elif node.op == "DequantizeLinear":
            source = graph.maker(node.inputs[0])
            name = source.inputs[0] if source is not None and source.inputs else node.inputs[0]
            numbers, step = graph.stored(name), graph.stored(node.inputs[1])
            zero = graph.stored(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(())
            if numbers is not None and numbers.ndim == 2 and step is not None and zero is not None:
                yield Rounded(numbers, zero, step, False)


def _step_after(graph: OnnxGraph, product: int) -> Array | None:
    """A product's sums are multiplied by (the input's step times the weight's), found by name."""
    node = graph.nodes[product]
    quantised = graph.maker(node.inputs[0])
    if quantised is None or len(quantised.outputs) < 2:
        return None
    own = quantised.outputs[1]
    sums = {node.outputs[0]}
    for later in graph.nodes[product + 1 :]:
        if later.op == "Cast" and later.inputs[0] in sums:
            sums.add(later.outputs[0])
        if later.op == "Mul" and sums & set(later.inputs):
            made = graph.maker(next((name for name in later.inputs if name not in sums), ""))
            factors = made.inputs if made is not None else ()
            others = [name for name in factors if name != own]
            return graph.stored(others[0]) if own in factors and len(others) == 1 else None
    return None


class _Rounding:
    """Puts a graph's rounded matrices into a module, each where it was made from.

    A parameter that several modules share (an embedding and the head above it) is rounded for each
    use in its own way, so each gets a copy; one that a graph uses many times is rounded once.
    """

    def __init__(self, module: nn.Module, whole: bool) -> None:
        self._hook = _round_input if whole else _round_rows
        self._whole = {
            part: weight
            for part in module.modules()
            if isinstance(weight := getattr(part, "weight", None), nn.Parameter)
            and weight.ndim == 2
        }
        self._done: set[nn.Module] = set()

    def put(self, one: Rounded) -> bool:
        """Whether there is a parameter that this matrix was rounded from; then it is put there."""
        values = one.values
        fits: list[tuple[float, bool, int, nn.Module, bool]] = []
        for part, weight in self._whole.items():
            table = isinstance(part, nn.Embedding)
            own = weight.detach().numpy()
            for turned in (False,) if table else (False, True):
                mine = own.T if turned else own
                if table != one.in_product and mine.shape == values.shape:
                    fresh = part not in self._done  # of two alike, the one that was not found yet
                    fits.append((_cosine(mine, values), fresh, -len(fits), part, turned))
        if not fits or (best := max(fits, key=lambda fit: fit[:3]))[0] < _ALIKE:
            return False
        *_, found, turned = best
        for part, weight in self._whole.items():
            if weight is self._whole[found] and isinstance(part, type(found)):
                self._round(part, weight, one, turned)
        return True

    def _round(self, part: nn.Module, weight: nn.Parameter, one: Rounded, turned: bool) -> None:
        if part in self._done:
            return
        self._done.add(part)
        own = weight.detach().numpy().astype(np.float64)
        fitted = again(own.T if turned else own, one)
        rounded = np.ascontiguousarray(fitted.T if turned else fitted)
        part.weight = nn.Parameter(torch.from_numpy(rounded).to(weight.dtype), requires_grad=False)
        if one.in_product:
            part.register_forward_pre_hook(self._hook)


def again(weights: Array, one: Rounded) -> Array:
    """The model's weights rounded as the graph's were, with its step unless the step is wrong."""
    fit = fitting_step(weights, one)
    step = np.where(np.abs(one.step - fit) <= TRUSTED * np.abs(fit), one.step, fit)
    limits, zero = np.iinfo(one.numbers.dtype), one.zero.astype(np.float64)
    theirs = one.numbers - zero
    mine = np.clip(np.rint(weights / step) + zero, limits.min, limits.max) - zero
    # Half-way between two numbers either is right, and which one a matter of the last bit.
    tied = np.abs(weights / step - theirs) <= 0.5 + _TIE
    return np.where(tied, theirs, mine) * step


def fitting_step(weights: Array, one: Rounded) -> Array:
    """The step by which the graph's numbers become the model's weights, per column if it is so.

    Taken from the largest numbers alone: there a rounding of half a step weighs least.
    """
    numbers = one.numbers.astype(np.float64) - one.zero
    rows = numbers.shape if one.step.ndim else (numbers.size, 1)
    flat, own = numbers.reshape(rows), weights.reshape(rows)
    places = np.argsort(-np.abs(flat), axis=0, kind="stable")[:_LARGEST]
    large, theirs = (np.abs(np.take_along_axis(x, places, 0)) for x in (flat, own))
    counts = large >= large[:1] / 2  # of a matrix with long tails only few are large
    ratios: Array = (theirs * counts).sum(0) / np.maximum((large * counts).sum(0), 1e-30)
    return ratios if one.step.ndim else ratios[0]


def _round_input(part: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """`DynamicQuantizeLinear`: 256 steps between the least and the greatest, zero among them."""
    x, *rest = args
    x = _near(x)
    return _in_steps(x, x.amin(), x.amax()), *rest


def _round_rows(part: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same, with steps of its own for each row, as XNNPACK rounds."""
    x, *rest = args
    x = _near(x)
    return _in_steps(x, x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)), *rest


def _near(x: torch.Tensor) -> torch.Tensor:
    """In the yardstick's dtype: as close to the edge as another runtime may be."""
    if x.dtype != torch.float32:
        return x
    noise = torch.Generator().manual_seed(x.numel())
    return x * (1 + _TIPPING * torch.randn(x.shape, generator=noise))


def _in_steps(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    low, high = low.clamp(max=0), high.clamp(min=0)
    step = (high - low) / 255
    step = torch.where(step == 0, torch.ones_like(step), step)
    zero = (-low / step).round().clamp(0, 255)
    return (((x / step).round() + zero).clamp(0, 255) - zero) * step


def _cosine(a: Array, b: Array) -> float:
    x, y = a.ravel().astype(np.float64), b.ravel()
    size = float(np.linalg.norm(x)) * float(np.linalg.norm(y))
    return float(x @ y) / max(size, 1e-30)
