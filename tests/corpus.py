"""The ONNX backend test corpus as pairs of graphs: unmodified, and with one thing changed.

`onnx.backend.test` makes its node tests in memory: a graph of one operation (or of what it expands
to), and inputs. What ONNX Runtime cannot load, or cannot be fed, is counted and left out.
"""

from __future__ import annotations

import faulthandler
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime as ort
from onnx import AttributeProto, TensorProto, numpy_helper

import driftwalk
from driftwalk.errors import DriftwalkError

NOT_LOADED, NOT_FED, NOT_RUN = "ORT cannot load it", "no arrays of numbers or text", "ORT fails"
INITIALISER, ATTRIBUTE, INPUT = "initialiser", "attribute", "input made an initialiser"
WHOLE_INPUT = f"{INPUT}, all of it changed"

MOST_TRIED = 10
"""Attributes of one case that are changed; operations that expand to many nodes have hundreds."""


@dataclass(frozen=True)
class Case:
    """A graph and its inputs."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """A pair of graphs that differ in one thing."""

    kind: str
    what: str
    good: onnx.ModelProto
    bad: onnx.ModelProto
    inputs: dict[str, Any]


@dataclass
class Tally:
    """What came of it."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """False alarms, and faults that were observable and not caught."""
    within: list[str] = field(default_factory=list)
    """Faults that change some bits, by less than the tolerance; a larger one was tried then."""


@contextmanager
def _inputs_alone() -> Iterator[None]:
    """What a case is expected to give, and how it is documented, are never read here, and take
    nine tenths of the time: windows that Python pools, sources of functions that are looked up.
    """
    from onnx.backend.test.case import base
    from onnx.reference.ops import op_pool_common

    def pooled(padded: Any, x_shape: Any, kernel: Any, strides: Any, out: Any, *_: Any) -> Any:
        return np.zeros([x_shape[0], x_shape[1], *out], dtype=padded.dtype)

    with (
        patch.object(op_pool_common, "pool", lambda *a, **_: pooled(*a)),
        patch.object(base, "process_snippet", lambda *_: ("", "")),
    ):
        yield


@cache
def all_cases() -> tuple[Any, ...]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), _inputs_alone():
        warnings.simplefilter("ignore")
        return tuple(sorted(collect_testcases(None), key=lambda case: case.name))


def options(level: str = "ORT_ENABLE_ALL") -> Any:
    made = ort.SessionOptions()
    made.log_severity_level = 4
    made.intra_op_num_threads = 1
    made.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    return made


def outputs(
    model: onnx.ModelProto, inputs: dict[str, Any], level: str = "ORT_DISABLE_ALL"
) -> list[Any] | None:
    """What ONNX Runtime gives, or None where it refuses."""
    feed: dict[str, Any] = {}
    for name, value in inputs.items():
        if "[" in name:
            feed.setdefault(name.partition("[")[0], []).append(value)
        else:
            feed[name] = value
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), options(level), providers=["CPUExecutionProvider"]
        )
        found: list[Any] = session.run(None, feed)
    except Exception:  # ONNX Runtime's errors share no base class but Exception
        return None
    return found


def survives(model: onnx.ModelProto, inputs: dict[str, Any]) -> bool:
    """Whether ONNX Runtime outlives a changed graph: some make it abort, so a child tries first."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        os.close(2)
        found = [outputs(model, inputs, level) for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")]
        os._exit(1 if None in found else 0)
    return os.waitpid(child, 0)[1] == 0


def read(case: Any) -> Case | str:
    """A test of the corpus as a case, or why it is none."""
    try:
        ort.InferenceSession(
            case.model.SerializeToString(), options(), providers=["CPUExecutionProvider"]
        )
    except Exception:  # likewise; `onnx_corpus.py` counts how many
        return NOT_LOADED
    inputs: dict[str, Any] = {}
    for value, given in zip(case.model.graph.input, case.data_sets[0][0], strict=False):
        for name, item in named(value.name, given):
            stored_item = isinstance(item, TensorProto)
            found = numpy_helper.to_array(item) if stored_item else item
            if not isinstance(found, np.ndarray | np.generic):
                return NOT_FED
            array = np.asarray(found)
            inputs[name] = array.astype(str) if array.dtype.kind == "O" else array
    if any(a.dtype.kind not in "fiubU" for a in inputs.values()):
        return NOT_FED
    if outputs(case.model, inputs) is None:
        return NOT_RUN
    return Case(case.name, case.model, inputs)


def named(name: str, given: Any) -> list[tuple[str, Any]]:
    if isinstance(given, list):
        return [(f"{name}[{i}]", item) for i, item in enumerate(given)]
    return [(name, given)]


def pair(
    folder: Path, good: onnx.ModelProto, bad: onnx.ModelProto, inputs: dict[str, Any]
) -> driftwalk.Report:
    """Both graphs in files, verified: the one as written against the other as it is optimised."""
    a, b = folder / "a.onnx", folder / "b.onnx"
    a.write_bytes(good.SerializeToString())
    b.write_bytes(bad.SerializeToString())
    return driftwalk.verify(str(a), f'onnxruntime,threads=1,file="{b}"', probe=inputs)


def faults(case: Case) -> Iterator[Fault]:
    """One thing changed: a stored tensor, an attribute; where neither shows, an input that is
    stored in both graphs and changed in one."""
    graph = case.model.graph
    for number, tensor in enumerate(graph.initializer):
        changed = spoilt(numpy_helper.to_array(tensor))
        if changed is not None:
            bad = copy(case.model)
            bad.graph.initializer[number].CopyFrom(numpy_helper.from_array(changed, tensor.name))
            yield Fault(INITIALISER, tensor.name, case.model, bad, case.inputs)
    for number, node in enumerate(graph.node):
        for place, attribute in enumerate(node.attribute):
            bad = copy(case.model)
            if change(bad.graph.node[number].attribute[place]):
                what = f"{node.op_type}.{attribute.name}"
                yield Fault(ATTRIBUTE, what, case.model, bad, case.inputs)
    for kind in (INPUT, WHOLE_INPUT):
        for name, array in case.inputs.items():
            changed = spoilt(array, kind == WHOLE_INPUT)
            if changed is None or "[" in name:
                continue
            good, bad = (stored(case.model, name, value) for value in (array, changed))
            rest = {n: a for n, a in case.inputs.items() if n != name}
            yield Fault(kind, name, good, bad, rest)


def copy(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


def stored(model: onnx.ModelProto, name: str, array: np.ndarray) -> onnx.ModelProto:
    """The graph with one of its inputs stored in it."""
    made = copy(model)
    kept = [value for value in model.graph.input if value.name != name]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made


def spoilt(array: np.ndarray, whole: bool = False) -> np.ndarray | None:
    """One element changed, by much; or all of them."""
    if not array.size or array.dtype.kind not in "fiub":
        return None
    if whole:
        return ~array if array.dtype.kind in "iub" else 1 - 3 * array
    made = array.copy().reshape(-1)
    at = made.size // 2
    if made.dtype.kind == "b":
        made[at] = not made[at]
    elif made.dtype.kind == "f":
        made[at] = made[at] + (1 + abs(made[at])) if np.isfinite(made[at]) else 1
    else:
        made[at] = made[at] + 1 if made[at] < np.iinfo(made.dtype).max else made[at] - 1
    return made.reshape(array.shape)


def change(attribute: AttributeProto) -> bool:
    """Another value of the same type; graphs and texts have none that makes sense."""
    if attribute.type == AttributeProto.FLOAT:
        attribute.f = attribute.f * 1.5 + 0.5
    elif attribute.type == AttributeProto.INT:
        attribute.i = 1 - attribute.i if attribute.i in (0, 1) else attribute.i - 1
    elif attribute.type == AttributeProto.FLOATS and attribute.floats:
        attribute.floats[0] = attribute.floats[0] * 1.5 + 0.5
    elif attribute.type == AttributeProto.INTS and attribute.ints:
        attribute.ints[0] += 1
    elif attribute.type == AttributeProto.TENSOR:
        changed = spoilt(numpy_helper.to_array(attribute.t))
        if changed is None:
            return False
        attribute.t.CopyFrom(numpy_helper.from_array(changed, attribute.t.name))
    else:
        return False
    return True


def same(a: list[Any], b: list[Any]) -> bool:
    """Bit by bit, sequences item by item."""
    if len(a) != len(b):
        return False
    for one, other in zip(a, b, strict=True):
        if isinstance(one, list):
            if not isinstance(other, list) or not same(one, other):
                return False
            continue
        x, y = np.asarray(one), np.asarray(other)
        if x.dtype != y.dtype or x.shape != y.shape:
            return False
        if x.dtype.kind in "OU":
            if x.tolist() != y.tolist():
                return False
        elif x.tobytes() != y.tobytes():
            return False
    return True


def try_clean(case: Case, folder: Path, tally: Tally) -> None:
    """An unmodified pair may never drift."""
    try:
        report = pair(folder, case.model, case.model, case.inputs)
    except DriftwalkError as error:
        tally.counts["clean: error"] += 1
        tally.wrong.append(f"{case.name}: clean: {error}"[:300])
        return
    why = f" ({report.reason[:44]}...)" if report.verdict == "unverified" else ""
    tally.counts[f"clean: {report.verdict}{why}"] += 1
    if report.verdict == "drift":
        row = report.first_divergence
        tally.wrong.append(f"{case.name}: clean: {row and (row.point.name, row.verdict, row.note)}")


def try_faults(case: Case, folder: Path, tally: Tally, most: int) -> None:
    """Of a case's faults the first few that show in ONNX Runtime's own outputs must be caught."""
    shown, tried = 0, 0
    for fault in faults(case):
        tried += 1
        if shown >= most or (fault.kind in (INPUT, WHOLE_INPUT) and shown):
            break
        if fault.kind == ATTRIBUTE and tried > MOST_TRIED:
            continue
        if not survives(fault.bad, fault.inputs):
            tally.counts[f"{fault.kind}: refused by ONNX Runtime"] += 1
            continue
        good, bad = (outputs(model, fault.inputs) for model in (fault.good, fault.bad))
        again = outputs(fault.good, fault.inputs)
        if good is None or bad is None or again is None:
            tally.counts[f"{fault.kind}: refused by ONNX Runtime"] += 1
            continue
        if not same(good, again):
            tally.counts[f"{fault.kind}: the graph draws random numbers"] += 1
            continue
        if same(good, bad):
            tally.counts[f"{fault.kind}: not observable, outputs bit-identical"] += 1
            continue
        shown += 1
        try:
            report = pair(folder, fault.good, fault.bad, fault.inputs)
        except DriftwalkError as error:
            tally.counts[f"{fault.kind}: error"] += 1
            tally.wrong.append(f"{case.name}: {fault.kind} {fault.what}: {error}"[:300])
            continue
        why = f" ({report.reason[:44]}...)" if report.verdict == "unverified" else ""
        verdict = "caught" if report.verdict == "drift" else report.verdict
        if report.verdict == "pass" and fault.kind != WHOLE_INPUT:
            # Observable in bits, and inside what the table allows: more must be changed to see it.
            needed = max(row.tolerance.needed for row in report.layers if row.tolerance)
            words = f"{fault.kind} {fault.what} moves the outputs by {needed:.2g} of the tolerance"
            tally.within.append(f"{case.name}: {words}")
            shown -= 1
            continue
        tally.counts[f"{fault.kind}: {verdict}{why}"] += 1
        if report.verdict == "pass":
            tally.wrong.append(f"{case.name}: {fault.kind} {fault.what}: pass")
    if not shown:
        tally.counts["cases without an observable fault"] += 1
