"""`driftwalk bisect MODEL --candidate S`: a verification, then its candidate with switches off."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from ...adapter import Backend, HasSwitches
from ...environment import head
from ...errors import UsageError, nearest
from ...json_tables import to_text
from ...jsonable import encode
from ...layer_drift import LayerDrift
from ...meeting import Rows
from ...progress import Progress
from ...result import PolicyInfo, Report
from ...states import BackendInfo, Probe
from ...switches import Switch
from ...tolerance import DEFAULT_POLICY, Policy, PolicyLike, Rule, Tolerance, make_policy
from ...verification import Addition, verify_all
from ..bounds import check_bounds
from ..bundles.extraction import reopened
from ..constants import REPEATS_CONFIDENCE
from ..resuming import earlier, refuse_others
from .oracle import Limits, Oracle, is_bad
from .repeats import Repeats, questions_for, searched
from .result import Bisection, Outcome, Question
from .search import Found

AUTO = "auto"
Keep = Callable[[Bisection], None]


def bisect(
    model: object,
    candidate: object = None,
    reference: object = None,
    probe: object = None,
    policy: PolicyLike = DEFAULT_POLICY,
    *,
    point: str = "",
    only: Sequence[str] = (),
    repeats: str | int = AUTO,
    confidence: float = REPEATS_CONFIDENCE,
    runs: int | None = None,
    minutes: float | None = None,
    resume: object = None,
    keep: Keep | None = None,
    command: str = "",
    progress: Progress | None = None,
    **options: Any,
) -> Bisection:
    """Which switches of a candidate cause its drift: a smallest set, each one confirmed.

    `model` is what `verify` takes, or the report of a run that drifted; the candidate is
    `onnxruntime`, if none is named. It is verified; then it runs again with other switches off
    each time, judged at `point`, the root cause if not said, by the same allowances. `only` are
    globs of switches to search among: all others stay on. `repeats` is how many runs answer a
    question; "auto" finds out whether runs agree, and where they do not, repeats as often as the
    `confidence` needs. `runs` and `minutes` bound the search; `resume` is an earlier result of it,
    or its file, whose runs are not run again; `keep` is called with what is known after each run.
    All other options are those of `verify` (`allow_missing`, `batch`, `length`, `seed`, ...).
    """
    show, times = progress or Progress(), _times(repeats)
    if not 0.5 <= confidence < 1:
        raise UsageError(f"confidence={confidence}: expected a share from 0.5 to below 1.")
    check_bounds(runs, minutes, least=1)
    limits = Limits(runs, minutes)
    before, wanted = earlier(Bisection, resume), tuple(only)
    finder = _Finder(point, wanted, times, confidence, limits, before, keep, command, show)
    if isinstance(model, Report):
        policy = _policy_of(model, policy)
        model, candidate, reference, probe = _of_report(model, candidate, reference, probe, options)
    sides = [candidate or "onnxruntime"], reference, probe, policy
    (report,) = verify_all(
        model, *sides, additions=(finder,), command=command, progress=show, **options
    )
    made = finder.made or finder.document(report, "unverified", report.reason)
    return replace(made, seconds=time.monotonic() - limits.start)


def _of_report(
    report: Report, candidate: object, reference: object, probe: object, options: dict[str, Any]
) -> tuple[object, object, object, object]:
    """What a stored report was made of, or what was given in its place."""
    names = ("batch", "length", "seed", "blocks", "trust_remote_code")
    given = {name: options.pop(name) for name in names if options.get(name)}
    opened = reopened(report, candidate=candidate, probe=probe, **given)
    other = report.reference.spec if reference is None else reference
    return opened[0], opened[1], other, opened[2]


def _policy_of(report: Report, given: PolicyLike) -> PolicyLike:
    """The policy that a report was judged by, unless another one was asked for."""
    if make_policy(given) != make_policy(DEFAULT_POLICY) or report.policy.name == DEFAULT_POLICY:
        return given
    rules = tuple(
        Rule(rule.glob, None if rule.atol is None else Tolerance(rule.atol, rule.rtol or 0.0))
        for rule in report.policy.rules
    )
    calibrated = any(row.truth is not None for row in report.layers)
    return Policy(report.policy.name, rules, calibrated)


def _times(repeats: str | int) -> int:
    if repeats == AUTO:
        return 0
    if not str(repeats).isdecimal() or int(repeats) < 1:
        raise UsageError(f"repeats={repeats!r}: expected auto, or a whole number, 1 or more.")
    return int(repeats)


@dataclass
class _Finder(Addition):
    """Searches while the backends of the verification are open."""

    point: str
    only: tuple[str, ...]
    times: int
    confidence: float
    limits: Limits
    earlier: Bisection | None
    keep: Keep | None
    command: str
    show: Progress
    made: Bisection | None = None
    _known: dict[str, Any] = field(default_factory=dict)

    def document(self, report: Report, outcome: Outcome, reason: str = "") -> Bisection:
        """What is known of a search so far."""
        return Bisection(
            **head(self.command, report.model, report.notes),
            reference=report.reference,
            candidate=report.candidate,
            probe=report.probe,
            policy=report.policy,
            verdict=report.verdict,
            outcome=outcome,
            reason=reason,
            **self._known,
        )

    def inspect(self, report: Report, candidate: Backend, probe: Probe, rows: Rows) -> None:
        if report.verdict == "pass":
            self.made = self.document(report, "nothing", "the candidate is within what is allowed")
            return
        if report.verdict == "unverified":
            self.made = self.document(report, "unverified", report.reason)
            return
        guilty = _guilty(report, self.point)
        if guilty is None:
            reason = "the reference is at fault, not the candidate: bisect it as a candidate"
            self.made = self.document(report, "reference", reason)
            return
        self._known = {"point": guilty.point.name}
        switches: Sequence[Switch] = ()
        if isinstance(candidate, HasSwitches):
            with self.show.stage("which switches there are", extra=True):
                switches = _among(tuple(candidate.switches(probe)), self.only)
        if not switches:
            reason = f"{candidate.spec} has nothing that could be turned off"
            self.made = self.document(report, "no switches", reason)
            return
        self._known |= {"searched": tuple(switches)}
        self._search(report, candidate, rows, guilty, switches)

    def _search(
        self,
        report: Report,
        candidate: Backend,
        rows: Rows,
        guilty: LayerDrift,
        switches: Sequence[Switch],
    ) -> None:
        stored = self._stored(report, guilty.point.name)
        oracle = Oracle(
            candidate,
            rows,
            guilty.point.name,
            switches,
            self.limits,
            self.show,
            stored,
        )
        oracle.begin(report.layers)

        def told(questions: Sequence[Question]) -> None:
            self._known |= {"questions": tuple(questions), "runs": oracle.runs}
            if self.keep is not None:
                self.keep(self.document(report, "stopped", "the search was under way"))

        oracle.keep = told
        repeats = Repeats(oracle.draw, questions_for(len(switches)), self.confidence, self.times)
        names = [switch.name for switch in switches]
        parts = {switch.name: switch.parts for switch in switches if switch.parts}
        needs = {switch.name: [n for n in switch.needs if n in names] for switch in switches}
        with closing(oracle):
            found = searched(names, repeats, parts, needs)
        told(tuple(oracle.questions.values()))
        self._known |= {"rate": repeats.rate}
        self._known |= {} if repeats.steady else {"confidence": self.confidence}
        self._known |= _named(found, candidate)
        outcome, reason = _outcome(found)
        self.made = self.document(report, outcome, reason)

    def _stored(self, report: Report, point: str) -> Mapping[frozenset[str], Question]:
        """The runs of an earlier search, if it asked of the same candidate, probe and point."""
        before = self.earlier
        if before is None:
            return {}
        asked = (
            ("model", report.model.get("fingerprint", ""), before.model.get("fingerprint", "")),
            ("candidate", report.candidate.spec, before.candidate.spec),
            ("reference", report.reference.spec, before.reference.spec),
            ("set of versions", _versions(report.candidate), _versions(before.candidate)),
            ("policy", _policy_text(report.policy), _policy_text(before.policy)),
            ("probe", report.probe.sha256, before.probe.sha256),
            ("point", point, before.point or point),
        )
        refuse_others(asked)
        return {frozenset(one.off): one for one in before.questions}


def _policy_text(policy: PolicyInfo | None) -> str:
    """A policy in a line, with all that it judges by."""
    if policy is None:
        return ""
    return " ".join([policy.name, *map(to_text, encode(policy.rules))])


def _versions(backend: BackendInfo) -> str:
    return ", ".join(f"{name} {text}" for name, text in sorted(backend.versions.items()))


def _among(switches: Sequence[Switch], only: Sequence[str]) -> Sequence[Switch]:
    """Those that a glob names, where some were asked for; one that names none is an error."""
    names = [switch.name for switch in switches]
    for glob in only:
        if not any(fnmatchcase(name, glob) for name in names):
            raise UsageError(f"There is no switch {glob!r} here. {nearest(glob, names)}")
    chosen = [one for one in switches if any(fnmatchcase(one.name, glob) for glob in only)]
    return chosen if only else switches


def _guilty(report: Report, wanted: str) -> LayerDrift | None:
    """The point to judge at: the one asked for, the root cause, the first that drifts."""
    if wanted:
        names = [row.point.name for row in report.layers]
        if wanted not in names:
            raise UsageError(f"There is no point {wanted!r}. {nearest(wanted, names)}")
        chosen = report.layer(wanted)
        if not is_bad(chosen):
            raise UsageError(f"The candidate does not drift at {wanted}: leave the point out.")
        return chosen
    first = (row for row in report.layers if is_bad(row))
    root = report.root_cause
    return root if root is not None and is_bad(root) else next(first, None)


def _named(found: Found, candidate: Backend) -> dict[str, Any]:
    if not found.cure or not isinstance(candidate, HasSwitches):
        return {}
    with candidate.without(found.cure) as other:
        spec = str(other.spec)
    return {"switches": found.cure, "causes": found.causes, "spec": spec}


def _outcome(found: Found) -> tuple[Outcome, str]:
    if found.why:
        return "stopped", found.why
    if not found.curable:
        return "none", (
            "it is there with all switches off, too: what is left are the kernels themselves, and "
            "how the model was exported or written"
        )
    return "found", ""
