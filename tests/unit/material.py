"""What the unit tests are made of: number formats, arrays, small traces and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from driftwalk.adapter import BackendInfo
from driftwalk.dtypes import FORMATS, Array, Format
from driftwalk.layer_drift import Allowed, Dtypes, LayerDrift
from driftwalk.measure.decisions import Decisions, Flip
from driftwalk.measure.metric_list import Metrics, Nonfinite, Worst
from driftwalk.result import (
    Coverage,
    InputInfo,
    Observer,
    PolicyInfo,
    ProbeInfo,
    Report,
    RuleInfo,
    Tool,
)
from driftwalk.states import Point, Probe, State, Trace

FLOATS = [FORMATS[name] for name in ("fp64", "fp32", "fp16", "bf16")]
"""The formats states come in."""

_WIDTH_AND_LARGEST = {
    "fp64": (64, 1e300),
    "fp32": (32, float(np.finfo(np.float32).max)),
    "fp16": (16, 65504.0),
    "bf16": (32, float.fromhex("0x1.fep127")),
}
_SMALLEST = {"fp64": 5e-324, "fp32": 2.0**-149, "fp16": 2.0**-24, "bf16": 2.0**-133}

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=4)


def numbers(known: Format) -> st.SearchStrategy[float]:
    """Finite values of a format: any, with zeros, subnormals and the largest drawn often."""
    width, largest = _WIDTH_AND_LARGEST[known.name]
    smallest = _SMALLEST[known.name]
    special = [0.0, -0.0, 1.0, -1.0, smallest, -smallest, 5 * smallest, largest, -largest]
    return st.one_of(
        st.floats(-largest, largest, width=width),
        st.floats(-4, 4, width=width),
        st.sampled_from(special),
    )


def seeds() -> st.SearchStrategy[np.random.Generator]:
    return st.integers(0, 2**32 - 1).map(np.random.default_rng)


@st.composite
def pairs(draw: st.DrawFn, known: Format, shapes: Any = SHAPES) -> tuple[Array, Array]:
    """Reference and candidate of one format and shape: unrelated, close together, or both."""
    shape, rng = draw(shapes), draw(seeds())
    # A handful of values, dealt out at random: far faster than to draw every element.
    palette = np.array(draw(st.lists(numbers(known), min_size=1, max_size=6))).astype(known.dtype)
    reference, other = rng.choice(palette, shape), rng.choice(palette, shape)
    close = np.asarray(reference, np.float64) * (1 - 4 * known.roundoff)
    chosen = np.where(rng.random(shape) < draw(st.sampled_from([0, 0.5, 1])), close, other)
    return np.asarray(reference, known.dtype), np.asarray(chosen, np.float64).astype(known.dtype)


def probe(**inputs: Any) -> Probe:
    """A probe of the given arrays; two rows of three ids when none are given."""
    return Probe(inputs or {"input_ids": np.arange(6).reshape(2, 3)})


def info(spec: str = "torch") -> BackendInfo:
    return BackendInfo(
        spec, spec.partition(":")[0], "cpu", "fp32", {"torch": "2.9"}, {"tf32": "off"}
    )


def trace(states: Mapping[str, Any], of: Probe | None = None, spec: str = "torch") -> Trace:
    """A trace with one state per name, in the order given."""
    made = tuple(State(Point(name, f"model.{name}"), np.asarray(a)) for name, a in states.items())
    return Trace(made, of or probe(), info(spec))


def layer(name: str, verdict: Any = "ok", index: int = 0, **more: Any) -> LayerDrift:
    """One row of a report, with numbers in it where the verdict says that some were compared."""
    compared = verdict in ("ok", "drift", "nonfinite")
    bad = Nonfinite(0, 1 if verdict == "nonfinite" else 0)
    worst = Worst((0, 2, 1), 1.5, float("nan") if verdict == "nonfinite" else 1.25)
    numbers = Metrics(0.25, float("inf"), 0.1, 0.1, 0.1, 0.99, 20.0, 3.0, 2.0, 1, 12, bad, worst)
    given: dict[str, Any] = {
        "metrics": numbers if compared else None,
        "tolerance": Allowed(1e-5, 1e-6, 1.0, 2.5) if compared else None,
        "tokens": ((0.1, None, 0.3),) if compared else None,
    }
    both = Dtypes("fp32", None if verdict == "missing" else "fp16")
    return LayerDrift(Point(name, f"h.{index}"), index, (1, 3, 4), both, verdict, **(given | more))


def report(verdict: Any = "drift", layers: Sequence[LayerDrift] | None = None) -> Report:
    """A report that has something in every field."""
    rows = layers or (layer("embed"), layer("layer.0", "drift", 1), layer("norm", "missing", 2))
    return Report(
        tool=Tool("driftwalk", "0.1.0"),
        created="2026-01-01T00:00:00+00:00",
        command="driftwalk verify tiny",
        model={"label": "tiny"},
        probe=ProbeInfo("ab" * 32, "text", {"input_ids": InputInfo((1, 3), "int64")}, ("hé",)),
        reference=info(),
        candidate=info("onnxruntime"),
        policy=PolicyInfo("rules", (RuleInfo("layer.*", 1e-3, None),), ("norm",)),
        verdict=verdict,
        layers=tuple(rows),
        coverage=Coverage(3, 2, ("norm",), (), ()),
        reason="",
        outputs=Decisions(3, 1, 0, 0.8, 0.01, 0.02, (Flip((0, 1), 5, 7, 0.5, False),)),
        observer={"candidate": Observer(True, False, True, 1e-7, "logits")},
        timings={"reference": {"load": 1.5, "trace": 0.25}},
        environment={"python": "3.11"},
        notes=("a note",),
    )
