"""What is asked of one model class: a row of docs/zoo.md.

Built, run by transformers itself with the default probe, traced, a copy against itself, half
precision, eager attention, and one seeded fault: a weight matrix times 1.05 in a random block.
"""

from __future__ import annotations

import copy
import math
import random
import time
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

import driftwalk
from driftwalk.errors import DriftwalkError
from driftwalk.result import Report
from driftwalk.states import Probe
from driftwalk_backends.calls import call, explaining, inputs_for, quietly
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.tensors import tensors_in

from .every import MOST_SECONDS, NotBuiltError, builds, first_line, has_stand_in, own_failure

STEPS = ("probe", "self", "bf16", "eager", "fault")
SCALE, VISIBLE = 1.05, 1e-6
"""The fault, and the least relative effect on some output that it must have to count."""
OTHER_FUNCTION = 10.0
"""Times what float32 changes: two attentions that differ by more in float64 are two functions."""
FAR = 1e-3
"""Of an output: no two float32 runs of one function are so far apart in a model this small."""
Row = dict[str, Any]


def check(
    name: str,
    kind: type[PreTrainedModel],
    steps: tuple[str, ...] = STEPS,
    patience: float = MOST_SECONDS,
    largest: float = math.inf,
) -> Row:
    """One row; every step that was not reached is missing from it.

    A class that cannot be built or run in one way is tried in others for `patience` seconds; one
    of more than `largest` parameters is not verified.
    """
    row: Row = {"name": name, "seconds": {}}
    try:
        model, probe = runnable(row, kind, patience)
    except NotBuiltError as error:
        return row | {"built": False, "reason": str(error)}
    if isinstance(probe, DriftwalkError):
        return row | _refused(kind, model, probe)
    shapes = {name: list(array.shape) for name, array in probe.inputs.items()}
    row |= {"probe": True, "inputs": shapes}
    if not set(steps) - {"probe"} or row["parameters"] > largest:
        return row
    if "self" in steps:
        other = copy.deepcopy(model)
        row["self"] = _timed(row, "self", lambda: _verdict(model, other, probe))
    if "bf16" in steps:
        row["bf16"] = _timed(row, "bf16", lambda: _verdict(model, "emulated:bf16", probe))
    if "eager" in steps:
        row["eager"] = _timed(row, "eager", lambda: _eager(model, probe))
    if "fault" in steps and row["self"]["verdict"] == "pass":
        row["fault"] = _timed(row, "fault", lambda: _fault(name, model, probe))
    return row


def _refused(kind: type[PreTrainedModel], model: nn.Module, error: DriftwalkError) -> Row:
    """A class of which no tiny model takes its default probe: whose fault that is."""
    if has_stand_in(kind):
        lacks = "requires the timm library, and does not run with a backbone of transformers"
        return {"built": False, "reason": f"{lacks}: {error}"}
    own = own_failure(kind, model)
    return {"probe": False, "reason": str(error)} | ({"own": own} if own else {})


def runnable(
    row: Row, kind: type[PreTrainedModel], patience: float
) -> tuple[nn.Module, Probe | DriftwalkError]:
    """The first of a few tiny models that transformers runs with the default probe.

    Where there is none, the first of them, and why it was refused.
    """
    refused: tuple[nn.Module, DriftwalkError] | None = None
    begun = time.monotonic()
    for built in builds(kind, patience=patience):
        if refused is not None and time.monotonic() - begun > patience:
            break
        facts = {"built": True, "parameters": built.parameters, "factor": built.factor}
        try:
            probe = _timed(row, "probe", partial(_default_probe, built.model))
        except DriftwalkError as error:
            if refused is None:
                refused, _ = (built.model, error), row.update(facts)
            continue
        row |= facts
        return built.model, probe
    assert refused is not None
    return refused


def _default_probe(model: nn.Module) -> Probe:
    """The default probe; refused where transformers itself does not run the model on it."""
    probe = make_probe(open_model(model))
    with explaining(type(model).__name__, "transformers"):
        _outputs(model, probe)
    return probe


def _timed(row: Row, step: str, work: Callable[[], Any]) -> Any:
    begun = time.perf_counter()
    try:
        return work()
    finally:
        row["seconds"][step] = round(time.perf_counter() - begun, 2)


def _verdict(model: nn.Module, candidate: object, probe: Probe) -> Row:
    try:
        report = driftwalk.verify(model, candidate, probe=probe)
    except DriftwalkError as error:
        return {"verdict": "refused", "reason": f"{type(error).__name__}: {error}"}
    except Exception as error:
        return {"verdict": "crash", "reason": f"{type(error).__name__}: {first_line(error)}"}
    said: Row = {"verdict": report.verdict, "points": report.coverage.compared}
    if report.verdict != "pass":
        first = report.first_divergence
        said["reason"] = report.reason or f"first divergence: {first.point.name if first else ''}"
    return said


def _eager(model: nn.Module, probe: Probe) -> Row:
    """Against eager attention; where that drifts, what transformers itself gives in float64.

    Two implementations of one function differ by float64's roundoffs there, and by no more than
    float32's even where the model casts to float32.
    """
    said = _verdict(model, "torch,attn=eager", probe)
    if said["verdict"] == "drift":
        try:
            said |= _in_float64(model, probe)
        except Exception as error:  # not every model runs in float64
            said["in_float64"] = f"{type(error).__name__}: {first_line(error)}"
            eager = copy.deepcopy(model)
            eager.set_attn_implementation("eager")
            said["in_float32"] = _effect(_outputs(model, probe), _outputs(eager, probe))
            said["true"] = said["in_float32"] > FAR
    return said


def _in_float64(model: nn.Module, probe: Probe) -> Row:
    double = copy.deepcopy(model).double()
    eager = copy.deepcopy(double)
    eager.set_attn_implementation("eager")
    plain, other = _outputs(double, probe), _outputs(eager, probe)
    broken = any(not tensor.isfinite().all() for tensor in other.values())
    differ = float("inf") if broken else _effect(plain, other)
    return {
        "in_float64": differ,
        "true": differ > OTHER_FUNCTION * _effect(plain, _outputs(model, probe)),
    }


def _fault(name: str, model: nn.Module, probe: Probe) -> Row:
    """The first of a few random matrices whose change shows in the outputs."""
    chance = random.Random(zlib.crc32(name.encode()))
    matrices = [n for n, p in model.named_parameters() if p.ndim > 1 and p.is_floating_point()]
    in_blocks = [n for n in matrices if any(part.isdigit() for part in n.split("."))] or matrices
    chance.shuffle(in_blocks)
    for parameter in in_blocks[:6]:
        faulty = copy.deepcopy(model)
        with torch.no_grad():
            faulty.get_parameter(parameter).mul_(SCALE)
        effect = _effect(_outputs(model, probe), _outputs(faulty, probe))
        if effect > VISIBLE:
            effect = min(effect, _effect_in_float64(model, faulty, probe))
        if effect > VISIBLE:
            return {"parameter": parameter, "effect": effect} | _caught(
                model, faulty, probe, parameter
            )
    return {"verdict": "no visible fault"}


def _effect_in_float64(model: nn.Module, faulty: nn.Module, probe: Probe) -> float:
    """What a fault changes where nothing rounds: a weight that is normalised has no scale to lose.

    A model that does not run in float64 is taken at its word.
    """
    try:
        plain, other = (_outputs(copy.deepcopy(m).double(), probe) for m in (model, faulty))
    except Exception:
        return float("inf")
    return _effect(plain, other)


def _caught(model: nn.Module, faulty: nn.Module, probe: Probe, parameter: str) -> Row:
    try:
        report = driftwalk.verify(model, faulty, probe=probe)
    except Exception as error:
        return {"verdict": "crash", "reason": f"{type(error).__name__}: {first_line(error)}"}
    cause = report.root_cause.point if report.root_cause is not None else None
    return {
        "verdict": report.verdict,
        "cause": cause.name if cause else None,
        "module": cause.module if cause else None,
        "placed": cause is not None and placed(cause.module, parameter.rpartition(".")[0], report),
    }


def placed(module: str, faulty: str, report: Report) -> bool:
    """Whether the accused module holds the faulty one, or lies inside it."""
    accused = [module, report.culprit.module if report.culprit else module]
    return any(
        path and (f"{faulty}.".startswith(f"{path}.") or f"{path}.".startswith(f"{faulty}."))
        for path in accused
    )


def _outputs(model: nn.Module, probe: Probe) -> Mapping[str, torch.Tensor]:
    with quietly(model), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        output = call(model, inputs_for(model, probe, torch.device("cpu")))
    return {
        str(slot): tensor.double()
        for slot, tensor in tensors_in(output)
        if tensor.is_floating_point()
    }


def _effect(plain: Mapping[str, torch.Tensor], faulty: Mapping[str, torch.Tensor]) -> float:
    changes = [
        float((faulty[slot] - tensor).norm() / tensor.norm().clamp(min=1e-30))
        for slot, tensor in plain.items()
        if slot in faulty and faulty[slot].shape == tensor.shape and tensor.numel()
    ]
    return max((change for change in changes if np.isfinite(change)), default=0.0)
