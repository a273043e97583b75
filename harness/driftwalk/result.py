"""The outcome of a run: numbers and names only, never tensors. Every report is made from this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from .adapter import BackendInfo
from .errors import UsageError
from .exercised import Exercised
from .files import read_json
from .jsonable import decode, encode, to_text, versioned
from .layer_drift import AtFault, Culprit, LayerDrift
from .measure.decisions import Decisions
from .registry import REPORT_PUBLISHER, load_target
from .studies.meaning import Meaning
from .studies.patching_result import Patching
from .studies.propagation_result import Propagation

SCHEMA_VERSION = 1

RunVerdict = Literal["pass", "drift", "unverified"]


@dataclass(frozen=True)
class Coverage:
    """How much of the reference was compared, and how much of the model took part."""

    points: int
    compared: int
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    outputs_skipped: tuple[str, ...] = ()
    """What of the model's output has numbers in it and is no point: caches, losses, objects."""
    exercised: Exercised | None = None
    """What of the model the probe used; None where the model itself was not run."""


@dataclass(frozen=True)
class Observer:
    """Whether looking changed the numbers: plain outputs against instrumented ones."""

    checked: bool
    bit_identical: bool = True
    within_tolerance: bool = True
    max_abs: float = 0.0
    output: str = ""


@dataclass(frozen=True)
class InputInfo:
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class ProbeInfo:
    sha256: str
    origin: str
    inputs: Mapping[str, InputInfo]
    texts: tuple[str, ...] = ()
    tokens: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class RuleInfo:
    glob: str
    atol: float | None
    rtol: float | None


@dataclass(frozen=True)
class PolicyInfo:
    name: str
    rules: tuple[RuleInfo, ...] = ()
    allow_missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Benchmark:
    """Plain runs of one backend, timed one by one after warm-up; all in seconds."""

    samples: tuple[float, ...]
    layers: Mapping[str, float] = field(default_factory=dict)
    """Spent in each point's block, where that is known."""
    cold: Mapping[str, float] = field(default_factory=dict)
    """What comes before the steady state: load, export, the first run."""
    copy_in: float = 0.0
    copy_out: float = 0.0
    """Median copies between host and device, not part of the samples."""
    device: float | None = None
    """Median by the device's own clock, where it has one."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Peaks in bytes: `rss` of the process, and what the device tells."""


@dataclass(frozen=True)
class ExpectedDrift:
    """Drift that was known, and no larger than it was known to be (project/expected.py)."""

    point: str
    metric: str
    bound: float
    found: float
    reason: str
    expires: str


@dataclass(frozen=True)
class Tool:
    name: str
    version: str


@dataclass(frozen=True)
class Report:
    """What `verify` and `compare` return."""

    tool: Tool
    created: str
    command: str
    model: Mapping[str, str]
    probe: ProbeInfo
    reference: BackendInfo
    candidate: BackendInfo
    policy: PolicyInfo
    verdict: RunVerdict
    layers: tuple[LayerDrift, ...]
    coverage: Coverage
    reason: str = ""
    outputs: Decisions | None = None
    observer: Mapping[str, Observer] = field(default_factory=dict)
    timings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Seconds this run took, by side and phase."""
    benchmarks: Mapping[str, Benchmark] = field(default_factory=dict)
    """By side; empty where nothing was benchmarked."""
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    cause: str | None = None
    """The name of the root cause."""
    culprit: Culprit | None = None
    at_fault: AtFault | None = None
    """Whose error it is; None where nothing drifted, or no truth can tell."""
    expected: tuple[ExpectedDrift, ...] = ()
    """Known deviations that were found; the verdict does not hide them."""
    contrast: Meaning | None = None
    """Drift in units of meaning, where that was asked for."""
    propagation: Propagation | None = None
    """The drift that linear theory predicts beside the one measured, where that was asked for."""
    patching: Patching | None = None
    """The flips that each restored layer takes away, where that was asked for."""

    @property
    def ok(self) -> bool:
        return self.verdict == "pass"

    @property
    def as_expected(self) -> bool:
        """Whether it drifts, and all of the drift was known."""
        known = {item.point for item in self.expected}
        bad = [layer for layer in self.layers if not layer.ok]
        fits = all(layer.verdict == "drift" and layer.point.name in known for layer in bad)
        return self.verdict == "drift" and bool(bad) and fits

    @property
    def first_divergence(self) -> LayerDrift | None:
        """The first point, in order of execution, that is not ok; unknown is no divergence."""
        bad = (layer for layer in self.layers if not layer.ok and layer.verdict != "unknown")
        return next(bad, None)

    @property
    def last_ok(self) -> LayerDrift | None:
        """The last compared point before the first divergence."""
        good: LayerDrift | None = None
        for layer in self.layers:
            if not layer.ok:
                break
            good = layer if layer.verdict == "ok" else good
        return good

    @property
    def root_cause(self) -> LayerDrift | None:
        """The layer whose own computation went wrong; None where no blame was computed."""
        return next((layer for layer in self.layers if layer.point.name == self.cause), None)

    def layer(self, name: str) -> LayerDrift:
        for layer in self.layers:
            if layer.point.name == name:
                return layer
        raise KeyError(name)

    def save(self, folder: str | Path, formats: Iterable[str] | None = None) -> Path:
        """Write result.json, report.html, summary.md, junit.xml and layers.csv, or some of them."""
        load_target(REPORT_PUBLISHER)((self,), folder, formats)
        return Path(folder)

    def __bool__(self) -> NoReturn:
        raise TypeError("A report is neither true nor false: ask report.ok.")

    def __repr__(self) -> str:
        first = self.first_divergence
        where = f", first divergence at {first.point.name}" if first else ""
        return f"<Report {self.verdict}{where}; {self.coverage.compared} points compared>"


def to_dict(report: Report) -> dict[str, Any]:
    """The JSON document: DESIGN's keys, in DESIGN's order."""
    first = report.first_divergence
    data: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    for name in ("tool", "created", "command", "model", "probe", "reference", "candidate"):
        data[name] = encode(getattr(report, name))
    data["policy"] = encode(report.policy)
    data["verdict"] = report.verdict
    data["reason"] = report.reason
    data["first_divergence"] = first.point.name if first else None
    data["root_cause"] = report.cause
    data["at_fault"] = report.at_fault
    data["culprit"] = encode(report.culprit)
    data["layers"] = [_layer_to_dict(layer) for layer in report.layers]
    for name in ("outputs", "observer", "coverage", "timings", "benchmarks"):
        data[name] = encode(getattr(report, name))
    for name in ("environment", "notes"):
        data[name] = encode(getattr(report, name))
    if report.expected:
        data["expected"] = encode(report.expected)
    for name in ("contrast", "propagation", "patching"):
        if getattr(report, name) is not None:
            data[name] = encode(getattr(report, name))
    return data


def _layer_to_dict(layer: LayerDrift) -> dict[str, Any]:
    data: dict[str, Any] = encode(layer)
    found = {"found": layer.point.found} if layer.point.found else {}
    if layer.bounds is None:
        del data["bounds"]
    return {"point": layer.point.name, "index": layer.index, "module": layer.point.module} | (
        found | {key: value for key, value in data.items() if key not in ("point", "index")}
    )


def to_json(report: Report) -> str:
    """The document as strict JSON."""
    return to_text(to_dict(report))


def from_dict(data: Any) -> Report:
    """Rebuild a report; a result of a newer schema is refused by name."""
    data = versioned(data, SCHEMA_VERSION, "result")
    layers = data.get("layers")
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        raise UsageError("Not a driftwalk result: it has no list of layers.")
    nested = [
        layer
        | {
            "point": {
                "name": layer.get("point"),
                "module": layer.get("module", ""),
                "found": layer.get("found", ""),
            }
        }
        for layer in layers
    ]
    return decode(Report, data | {"layers": nested, "cause": data.get("root_cause")})


def load(path: str | Path) -> Report:
    """Read a result.json of this or any older version."""
    return from_dict(read_json(path))
