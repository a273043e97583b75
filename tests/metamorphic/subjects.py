"""Backends x modules, each clean and with one weight that is wrong; every report is made once."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.adapter import Backend
from driftwalk.errors import BackendError
from driftwalk.layer_drift import LayerDrift
from driftwalk.result import Report
from driftwalk.tasks.generation.result import Generation

COPY, INT8 = "copy", "int8"
"""Given modules: a copy of the model, and what `quantize_dynamic` of torch makes of one."""
GRAPH = "onnxruntime,dynamic=on"
"""With open axes, as sets of probes ask for: one graph serves all lengths."""
GRAPH8 = "onnxruntime,quantize=dynamic-int8"

MIDDLE = {
    "gpt2": "transformer.h.1.mlp.c_proj",
    "llama": "model.layers.1.mlp.down_proj",
    "bert": "bert.encoder.layer.1.output.dense",
}
OTHER_DRAW = 0.25
"""By how much the used share of an allowance may differ where its random draw of roundoffs falls on
other numbers; measured: 0.18 for rows in another order, 0.14 for a run that keeps a cache."""
IDS = np.random.default_rng(0).integers(4, zoo.VOCABULARY, (2, 8))


@dataclass(frozen=True)
class Subject:
    """A model, and a candidate that is the same model on a backend, or another one."""

    model: str
    candidate: str
    faulty: bool = False

    def __str__(self) -> str:
        return f"{self.model}-{self.candidate}-{'fault' if self.faulty else 'clean'}"

    @property
    def is_spec(self) -> bool:
        return self.candidate not in (COPY, INT8)

    @property
    def is_slow(self) -> bool:
        """Whether its allowance is that of a model quantised alike, which is made for each run."""
        return self.candidate in (INT8, GRAPH8)

    @property
    def decodes(self) -> bool:
        """Whether the model writes on, and `generate` takes the candidate."""
        return self.model != "bert" and self.candidate != GRAPH8

    @property
    def probe(self) -> dict[str, np.ndarray]:
        return {"input_ids": IDS}

    @property
    def module(self) -> nn.Module:
        """What is verified: where there is a fault, it differs from what the candidate runs.

        So an ONNX graph of the right model serves both.
        """
        if not self.faulty:
            return right(self.model)
        return scaled(self.model, 1.5 if self.candidate.startswith("emulated") else 1.05)

    @contextmanager
    def opened(self) -> Iterator[object]:
        """What `candidate=` is given."""
        model = right(self.model)
        if self.candidate == COPY:
            yield copy.deepcopy(model)
        elif self.candidate == INT8:
            yield quantised(self.model)
        elif self.candidate in (GRAPH, GRAPH8):  # an export takes longer than all the rest
            yield graph_of(self.model, self.candidate)
        elif self.faulty:
            with driftwalk.backend(self.candidate, model) as backend:
                yield backend
        else:
            yield self.candidate


PAIRS = (
    ("gpt2", "torch"),
    ("gpt2", "torch,attn=eager"),
    ("llama", COPY),
    ("llama", "emulated:bf16"),
    ("llama", INT8),
    ("llama", GRAPH),
    ("llama", GRAPH8),
    ("bert", COPY),
    ("bert", "emulated:fp16"),
)
TABLE = tuple(Subject(*pair, faulty) for pair in PAIRS for faulty in (False, True))


def cases(subjects: Iterable[Subject], known: dict[str, str] | None = None) -> pytest.MarkDecorator:
    """A test for each subject; `known` has the reasons of those that fail today."""
    reasons, listed = known or {}, list(subjects)
    assert set(reasons) <= set(map(str, listed)), "a reason for a subject that is not there"

    def marks(subject: Subject) -> Sequence[pytest.MarkDecorator]:
        reason = reasons.get(str(subject))
        if not reason:
            return []
        said = (AssertionError, BackendError)  # any other error is one of the test
        return [pytest.mark.xfail(strict=True, raises=said, reason=reason)]

    params = [pytest.param(one, id=str(one), marks=marks(one)) for one in listed]
    return pytest.mark.parametrize("subject", params)


@cache
def right(name: str) -> nn.Module:
    return zoo.build(name)


@cache
def graph_of(name: str, spec: str) -> Backend:
    """Open until the last test has run: see conftest.py."""
    return driftwalk.backend(spec, right(name))


@cache
def scaled(name: str, times: float) -> nn.Module:
    """A copy with one weight of its middle block so many times what it should be."""
    made = copy.deepcopy(right(name))
    with torch.no_grad():
        made.get_submodule(MIDDLE[name]).weight.mul_(times)
    return made


@cache
def quantised(name: str) -> nn.Module:
    made: nn.Module = torch.ao.quantization.quantize_dynamic(
        copy.deepcopy(right(name)), {nn.Linear}
    )
    return made


def run(subject: Subject, **options: Any) -> Report:
    """`driftwalk.verify`, made anew; without blame, on which no verdict hangs."""
    with subject.opened() as candidate:
        given = {"blame": False, **options}
        if "probes" not in given:
            given = {"probe": subject.probe, **given}
        return driftwalk.verify(subject.module, candidate, **given)


@cache
def verified(subject: Subject, policy: str = "calibrated") -> Report:
    return run(subject, policy=policy)


@cache
def generated(subject: Subject) -> Generation:
    """One token after the prompt, which is the probe."""
    with subject.opened() as candidate:
        prompt = subject.probe
        return driftwalk.generate(subject.module, candidate, prompt=prompt, steps=1, blame=False)


@cache
def compared(subject: Subject) -> Report:
    """Of the traces of both sides alone, by the dtype table."""
    reference = driftwalk.record(subject.module, "torch", subject.probe)
    with subject.opened() as candidate:
        if isinstance(candidate, Backend):
            return driftwalk.compare(reference, candidate.trace(reference.probe), policy="dtype")
        spec, model = (
            (candidate, subject.module) if isinstance(candidate, str) else ("torch", candidate)
        )
        with driftwalk.backend(spec, model) as backend:
            return driftwalk.compare(reference, backend.trace(reference.probe), policy="dtype")


def metrics(rows: Iterable[LayerDrift]) -> dict[str, tuple[float, float] | None]:
    """How far the sides are apart at each point: no allowance is part of it."""
    return {
        row.point.name: (row.metrics.rel_l2, row.metrics.max_abs) if row.metrics else None
        for row in rows
    }


def numbers(rows: Iterable[LayerDrift]) -> dict[str, tuple[Any, ...]]:
    """The same with the verdict, and the share of the allowance that is used, in which norm."""
    return {
        row.point.name: (
            row.verdict,
            row.metrics and (row.metrics.rel_l2, row.metrics.max_abs),
            row.tolerance and (row.tolerance.needed, row.tolerance.norm, row.tolerance.side),
        )
        for row in rows
    }


def used(rows: Iterable[LayerDrift]) -> dict[str, float]:
    return {row.point.name: row.tolerance.needed for row in rows if row.tolerance}
