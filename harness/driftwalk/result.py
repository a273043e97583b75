"""The outcome of a run: numbers and names only, never tensors. Every report is made from this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Protocol

from .adapter import BackendInfo
from .document import RESULT, Document, Tool, load_documents, read, to_dict, to_json
from .effects import Meaning, Patching, Propagation
from .errors import UsageError
from .exercised import Exercised
from .files import read_json
from .formats import FormatFindings
from .jsonable import Later, Named, Size, Sparse, Table
from .layer_drift import AtFault, Culprit, LayerDrift
from .measure.decisions import Decisions
from .measure.embeddings import Embedding
from .probe_set import ProbeRow, ProbeSet
from .routing import Routing
from .weight_change import WeightFindings

__all__ = ["Report", "Tool", "from_dict", "load", "to_dict", "to_json"]

RunVerdict = Literal["pass", "drift", "unverified"]


@dataclass(frozen=True)
class Coverage:
    """How much of the reference was compared, and how much of the model took part."""

    points: int
    compared: int
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    outputs_skipped: Later[tuple[str, ...]] = ()
    """What of the model's output has numbers in it and is no point: caches, losses, objects."""
    exercised: Later[Exercised | None] = None
    """What of the model the probe used; None where the model itself was not run."""


@dataclass(frozen=True)
class Observer:
    """Whether looking changed the numbers: plain outputs against instrumented ones."""

    checked: bool
    bit_identical: bool = True
    within_tolerance: bool = True
    max_abs: Size = 0.0
    output: str = ""
    change: Sparse[str] = ""
    """What became of that output, where it is not a distance that tells."""

    @property
    def amount(self) -> str:
        """How the output changed, in words."""
        return f"({self.change})" if self.change else f"by up to {self.max_abs:.3g}"


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
    others: Sparse[Mapping[str, str]] = field(default_factory=dict)
    """Inputs that are not one array, each in a few words."""

    @property
    def shape(self) -> str:
        """Of the first input that has axes: `3x16`."""
        first = next((one.shape for one in self.inputs.values() if one.shape), ())
        return "x".join(map(str, first))


@dataclass(frozen=True)
class RuleInfo:
    glob: str
    atol: Size | None
    rtol: Size | None


@dataclass(frozen=True)
class PolicyInfo:
    name: str
    rules: tuple[RuleInfo, ...] = ()
    allow_missing: tuple[str, ...] = ()
    max_format_kl: Sparse[Size | None] = None
    """What a quantised candidate's format may cost: KL divergence, on average ..."""
    min_format_snr: Sparse[float | None] = None
    """... and decibels that the outputs must keep."""


@dataclass(frozen=True)
class Benchmark:
    """Plain runs of one backend, timed one by one after warm-up; all in seconds."""

    samples: tuple[Size, ...]
    layers: Mapping[str, Size] = field(default_factory=dict)
    """Spent in each point's block, where that is known."""
    cold: Later[Mapping[str, Size]] = field(default_factory=dict)
    """What comes before the steady state: load, export, the first run."""
    copy_in: Later[Size] = 0.0
    copy_out: Later[Size] = 0.0
    """Median copies between host and device, not part of the samples."""
    device: Later[Size | None] = None
    """Median by the device's own clock, where it has one."""
    memory: Later[Mapping[str, int]] = field(default_factory=dict)
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


class Sided(Protocol):
    """A result with a candidate, beside which there may be others."""

    @property
    def model(self) -> Mapping[str, str]: ...
    @property
    def candidate(self) -> BackendInfo: ...
    @property
    def probe(self) -> ProbeInfo: ...


def shapes_told(reports: Sequence[Sided]) -> list[str]:
    """The shape of each one's probe, where a model and candidate have several; else nothing."""
    asked = [(item.model.get("label", ""), item.candidate.spec) for item in reports]
    found: dict[tuple[str, str], set[str]] = {}
    for key, item in zip(asked, reports, strict=True):
        found.setdefault(key, set()).add(item.probe.shape)
    return [
        item.probe.shape if len(found[key]) > 1 else ""
        for key, item in zip(asked, reports, strict=True)
    ]


def all_known(layers: Iterable[LayerDrift], expected: Iterable[ExpectedDrift]) -> bool:
    """Whether there is drift, all of it known."""
    known = {item.point for item in expected}
    bad = [layer for layer in layers if not layer.ok]
    fits = all(layer.verdict == "drift" and layer.point.name in known for layer in bad)
    return bool(bad) and fits


@dataclass(frozen=True, kw_only=True)
class Report(Document):
    """What `verify` and `compare` return."""

    kind: ClassVar[str] = RESULT
    WRITTEN: ClassVar[Mapping[str, str]] = {"first_divergence": "first_name"}
    FIRST: ClassVar[tuple[str, ...]] = (
        *("tool", "created", "command", "model", "probe", "reference", "candidate", "policy"),
        *("verdict", "reason", "first_divergence"),
    )
    probe: ProbeInfo
    reference: BackendInfo
    candidate: BackendInfo
    policy: PolicyInfo
    verdict: RunVerdict
    reason: str = ""
    """Why a run is unverified, or which limit its format is beyond; empty otherwise."""
    cause: Annotated[str | None, Named("root_cause")] = None
    """The name of the point whose own computation went wrong; None where no blame was computed."""
    cause_among: Sparse[tuple[str, ...]] = ()
    """Points right before the root cause at which that side has no state: what any of them does
    wrong shows there first, so that each may be the cause as well."""
    at_fault: Later[AtFault | None] = None
    """Whose error it is; None where nothing drifted, or no truth can tell."""
    culprit: Later[Culprit | None] = None
    """Where inside the root cause; None where no blame was computed."""
    layers: tuple[LayerDrift, ...]
    outputs: Decisions | None = None
    """What became of the choices; None where the model makes none."""
    embeddings: Sparse[tuple[Embedding, ...]] = ()
    """What became of the outputs that are embeddings, where there are any."""
    observer: Mapping[str, Observer] = field(default_factory=dict)
    coverage: Coverage
    timings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Seconds this run took, by side and phase."""
    benchmarks: Later[Mapping[str, Benchmark]] = field(default_factory=dict)
    """By side; empty where nothing was benchmarked."""
    expected: Sparse[tuple[ExpectedDrift, ...]] = ()
    """Known deviations that were found; the verdict does not hide them."""
    contrast: Sparse[Meaning | None] = None
    """Drift in units of meaning, where that was asked for."""
    propagation: Sparse[Propagation | None] = None
    """The drift that linear theory predicts beside the one measured, where that was asked for."""
    patching: Sparse[Patching | None] = None
    """The flips that each restored layer takes away, where that was asked for."""
    finer_depth: Sparse[str] = ""
    """A depth at which more of both sides can be compared; empty where there is none."""
    format: Sparse[FormatFindings | None] = None
    """What a quantised candidate's format costs, and what its kernel adds, where that is known."""
    routing: Sparse[Routing | None] = None
    """What became of the choices inside the model, of experts say, where it makes any."""
    weights: Sparse[WeightFindings | None] = None
    """What the weights of the side at fault say, where they are its own and can be read."""
    probe_set: Sparse[ProbeSet | None] = None
    """What all probes of a set came to; everything else is about the worst of them."""
    probes: Sparse[Table[tuple[ProbeRow, ...]]] = ()
    """A row for each probe of a set, in the order of the set."""

    @property
    def ok(self) -> bool:
        return self.verdict == "pass"

    @property
    def as_expected(self) -> bool:
        """Whether it drifts, and all of the drift was known."""
        beyond = self.format is not None and self.format.exceeded
        return self.verdict == "drift" and not beyond and all_known(self.layers, self.expected)

    @property
    def first_divergence(self) -> LayerDrift | None:
        """The first point, in order of execution, that is not ok; unknown is no divergence."""
        bad = (layer for layer in self.layers if not layer.ok and layer.verdict != "unknown")
        return next(bad, None)

    @property
    def first_name(self) -> str | None:
        """The first point, in order of execution, that is not ok."""
        first = self.first_divergence
        return first.point.name if first else None

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

    @property
    def worst(self) -> ProbeRow | None:
        """The row of the worst probe of a set, whose report this is; None without a set."""
        return next((row for row in self.probes if row.sha256 == self.probe.sha256), None)

    def layer(self, name: str) -> LayerDrift:
        for layer in self.layers:
            if layer.point.name == name:
                return layer
        raise KeyError(name)

    def __bool__(self) -> NoReturn:
        raise TypeError("A report is neither true nor false: ask report.ok.")

    def __repr__(self) -> str:
        first = self.first_divergence
        where = f", first divergence at {first.point.name}" if first else ""
        return f"<Report {self.verdict}{where}; {self.coverage.compared} points compared>"


def from_dict(data: Any) -> Report:
    """Rebuild a report; another kind of result is refused."""
    return read(Report, data)


def load(path: str | Path) -> Report:
    """Read a result.json of this or any older version."""
    return from_dict(read_json(path))


def load_results(paths: Iterable[str | Path]) -> list[Report]:
    """Every result of the files and folders named; any but those of `verify` is refused."""
    reports = []
    for document in load_documents(paths, [RESULT]):
        if not isinstance(document, Report):
            raise UsageError(f"A result of `driftwalk verify` is needed, not a {document.kind}.")
        reports.append(document)
    return reports
