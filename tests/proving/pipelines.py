"""The ways in which driftwalk is asked about a case, and its answer as plain data."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import driftwalk
from driftwalk.selftest import selftest

from .case import Done, NoPlace
from .places import copied, tensors

STEPS = 4
"""Tokens that are decoded."""


@dataclass(frozen=True)
class Answer:
    """What driftwalk says of one case."""

    verdict: str
    """`pass`, `drift`, `unverified`."""
    first: str = ""
    """Name of the first point that diverges."""
    cause: str = ""
    """Name of the root cause, and its module's path ..."""
    module: str = ""
    culprit: str = ""
    """... and that of the part inside it."""
    at_fault: str = ""
    used: float = 0.0
    """The largest share of its allowance that a point used."""
    reason: str = ""
    ties: int = 0
    """Choices that flip, and that are called ties."""
    weight: str = ""
    """Name of the weight that is said to be the cause ..."""
    no_weight: bool = False
    """... or that there is none: all of the root cause are said to be the reference's."""
    points: tuple[tuple[str, str], ...] = ()
    """Name and module of each point, in order of execution."""


def answer_of(report: Any) -> Answer:
    """The same facts of a report of any kind."""
    layers = report.layers
    first, cause = report.first_divergence, report.root_cause
    decisions, weights = getattr(report, "outputs", None), getattr(report, "weights", None)
    needed = [row.tolerance.needed for row in layers if row.tolerance is not None]
    finite = [float(size) for size in needed if np.isfinite(float(size))]
    return Answer(
        report.verdict,
        first.point.name if first else "",
        cause.point.name if cause else "",
        cause.point.module if cause else "",
        report.culprit.module if report.culprit else "",
        report.at_fault or "",
        max(finite, default=float("inf") if needed else 0.0),
        report.reason,
        decisions.ties if decisions is not None else 0,
        weights.cause if weights is not None else "",
        weights is not None and not weights.changes and not weights.unmatched,
        tuple((row.point.name, row.point.module) for row in layers),
    )


@dataclass(frozen=True)
class Pair:
    """Two sides that are to be compared, and the inputs."""

    model: nn.Module
    """What is right: the truth is made of it."""
    reference: nn.Module | None
    """Where the reference computes something else than the model; else the model runs."""
    candidate: object
    inputs: Mapping[str, Any]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, subject: nn.Module, done: Done, inputs: Mapping[str, Any]) -> Pair:
        model, reference = subject, done.reference
        if done.at_fault == "candidate" and reference is not None:
            model, reference = reference, None  # type: ignore[assignment]
        assert isinstance(reference, nn.Module | None)
        return cls(model, reference, done.candidate, inputs, done.options)

    @property
    def module(self) -> nn.Module:
        """The candidate as a module; a spec has none."""
        if not isinstance(self.candidate, nn.Module):
            raise NoPlace
        return self.candidate

    @property
    def first(self) -> nn.Module:
        """The reference as a module."""
        return self.model if self.reference is None else self.reference


def _verified(pair: Pair, candidate: object, **more: Any) -> Answer:
    options = {"probe": dict(pair.inputs), **pair.options, **more}
    return answer_of(driftwalk.verify(pair.model, candidate, pair.reference, **options))


def plain(pair: Pair) -> Answer:
    """The candidate as it is: a module in float32, or a backend's spec."""
    return _verified(pair, pair.candidate)


def emulated(dtype: str, pair: Pair) -> Answer:
    return _verified(pair, driftwalk.backend(f"emulated:{dtype}", pair.module))


def whole_numbers(pair: Pair) -> Answer:
    """The candidate with its products quantised to eight bits, as PyTorch does it dynamically."""
    return _verified(pair, quantised(pair.module))


def quantised(module: nn.Module) -> nn.Module:
    if not any(type(part) is nn.Linear for part in module.modules()):
        raise NoPlace
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(copied(module), {nn.Linear}, torch.qint8)


def decoded_in_whole_numbers(pair: Pair) -> Answer:
    return decoded(replace(pair, candidate=quantised(pair.module)))


def tested(pair: Pair) -> Answer:
    """The clean run of a self-test, which refuses a candidate that drifts without any fault."""
    made = selftest(pair.model, pair.candidate, probe=dict(pair.inputs), faults=1)
    return Answer("pass" if made.counted or made.trials else "unverified")


def exported(pair: Pair) -> Answer:
    return _verified(pair, driftwalk.backend("onnxruntime", pair.module))


def inner(pair: Pair) -> Answer:
    return _verified(pair, pair.candidate, depth="module")


def compared(pair: Pair) -> Answer:
    """Two traces alone, recorded on both sides; no model runs when they are compared."""
    probe = driftwalk.Probe(dict(pair.inputs))
    sides = (pair.first, pair.module)
    first, second = (driftwalk.backend("torch", side).trace(probe) for side in sides)
    return answer_of(driftwalk.compare(first, second))


def several(pair: Pair) -> Answer:
    """A set of probes: the inputs, their rows alone, and their rows the other way round."""
    rows = {name: np.asarray(value) for name, value in pair.inputs.items()}
    if any(not array.ndim for array in rows.values()):
        raise NoPlace
    turned = {name: array[::-1].copy() for name, array in rows.items()}
    alone = {name: array[:1].copy() for name, array in rows.items()}
    probes = [dict(pair.inputs), turned, alone]
    sides = (pair.model, pair.candidate, pair.reference)
    return answer_of(driftwalk.verify(*sides, probes=probes, **pair.options))


def decoded(pair: Pair) -> Answer:
    """Decoding, token by token, on a cache."""
    if not hasattr(pair.model, "generate") or "input_ids" not in pair.inputs:
        raise NoPlace
    if getattr(pair.model.config, "is_encoder_decoder", False) or not _decodes(pair.model):
        raise NoPlace
    prompt = {"input_ids": np.asarray(pair.inputs["input_ids"])[:1, :12]}
    sides = (pair.model, pair.candidate, pair.reference)
    made = driftwalk.generate(*sides, prompt=prompt, steps=STEPS)
    return answer_of(made)


def _decodes(module: nn.Module) -> bool:
    return bool(getattr(module, "can_generate", lambda: False)())


def graphs(pair: Pair) -> Answer:
    """Both sides exported with PyTorch's own exporter: one graph against the other."""
    if pair.reference is not None:
        raise NoPlace
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.onnx" for name in ("before", "after")]
        for path, side in zip(paths, (pair.model, pair.module), strict=True):
            graph(side, pair.inputs, path)
        candidate = f"onnxruntime,file={paths[1]}"
        report = driftwalk.verify(paths[0], candidate, probe=fed(pair.inputs, paths[0]))
        return answer_of(report)


def fed(inputs: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The inputs that a graph takes, in the types that it declares."""
    import onnx

    taken = {item.name for item in onnx.load(path, load_external_data=False).graph.input}
    return {name: np.asarray(value) for name, value in inputs.items() if name in taken}


def graph(module: nn.Module, inputs: Mapping[str, Any], path: Path) -> None:
    """A module as PyTorch itself exports it: nothing of driftwalk's."""

    class Plain(nn.Module):
        """First output alone, whatever a model gives around it."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, **given: Any) -> Any:
            return main_output(self.inner(**given))

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(Plain().eval(), (), path, kwargs=tensors(inputs), dynamo=True)


def main_output(output: Any) -> torch.Tensor:
    """The first float tensor in a model's output."""
    if isinstance(output, torch.Tensor):
        return output
    values = output.values() if isinstance(output, Mapping) else output
    return next(main_output(value) for value in values if value is not None)


RUNS: dict[str, Callable[[Pair], Answer]] = {
    "fp32": plain,
    "bf16": partial(emulated, "bf16"),
    "fp16": partial(emulated, "fp16"),
    "int8": whole_numbers,
    "int8-generate": decoded_in_whole_numbers,
    "selftest": tested,
    "onnx": exported,
    "generate": decoded,
    "compare": compared,
    "set": several,
    "pair": graphs,
    "module": inner,
}
SAYS = {
    "fp32": "`verify`, module against module",
    "bf16": "`verify`, the candidate in emulated bf16",
    "fp16": "`verify`, the candidate in emulated fp16",
    "int8": "`verify`, the candidate quantised dynamically",
    "int8-generate": "`generate`, the candidate quantised dynamically",
    "selftest": "`selftest`: the clean candidate, before any fault",
    "onnx": "`verify`, the candidate in ONNX Runtime",
    "generate": "`generate`, token by token",
    "compare": "`compare`, two traces alone",
    "set": "`verify` over a set of probes",
    "pair": "`verify`, one ONNX graph against another",
    "module": "`verify --depth module`",
}
