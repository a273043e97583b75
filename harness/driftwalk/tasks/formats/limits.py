"""The user's limits on what a format costs: a gate of its own, beside the one for the kernel.

    drift   <=>   the mean KL divergence of the declared model from the truth  >  max_kl
            or    the SNR of the declared model, at its worst output           <  min_snr

Neither says anything of the kernel, which is judged as ever. A limit that cannot be applied to a
quantised candidate leaves it unverified; a candidate that is not quantised has none to pay for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...adapter import Backend, BringsModel
from ...errors import UsageError
from ...formats import FormatFindings
from ...layer_drift import AtFault
from ...meeting import Run
from ...result import Report
from ...tolerance import PolicyLike, make_policy
from ...verification import Addition

NO_FORMAT = (
    "The candidate declares no format of its weights: the limits on what a format costs had "
    "nothing to judge."
)
BEYOND = "the format, not the kernel, costs more than is allowed"


class _UnknownCostError(Exception):
    """What a limit is about was not measured."""


@dataclass(frozen=True)
class FormatLimits(Addition):
    """What the user allows a format to cost; None is no limit."""

    max_kl: float | None = None
    min_snr: float | None = None

    @classmethod
    def asked(
        cls, max_kl: float | None, min_snr: float | None, policy: PolicyLike
    ) -> FormatLimits | None:
        """None where nothing was asked for; an error for a limit that means nothing."""
        if max_kl is None and min_snr is None:
            return None
        if max_kl is not None and not (_is_number(max_kl) and max_kl >= 0):
            raise UsageError(f"max_format_kl={max_kl!r}: expected a number, zero or more.")
        if min_snr is not None and not _is_number(min_snr):
            raise UsageError(f"min_format_snr={min_snr!r}: expected a number of decibels.")
        if not make_policy(policy).calibrated:
            raise UsageError(
                "What a format costs is told by the truth, which only the policy 'calibrated' "
                "computes: leave out the limit on the format, or the policy."
            )
        return cls(max_kl, min_snr)

    def refuse_graph(self) -> None:
        raise UsageError(
            "What a format costs is told by the model as it was before: a graph alone has none. "
            "Name the model, and the graph as its candidate: -c onnxruntime,file=GRAPH."
        )

    def add(self, report: Report, candidate: Backend, run: Run) -> Report:
        hidden = report.format is None and _is_quantised(report, candidate)
        return self.judged(report, hidden)

    def judged(self, report: Report, hidden: bool = False) -> Report:
        """The report with its verdict by these limits, too; `hidden` is a format not known."""
        policy = replace(report.policy, max_format_kl=self.max_kl, min_format_snr=self.min_snr)
        report = replace(report, policy=policy)
        found = report.format
        if found is None and not hidden:
            return replace(report, notes=(*report.notes, NO_FORMAT))
        try:
            exceeded = tuple(self._beyond(found))
        except _UnknownCostError as error:
            return _unknown(report, str(error))
        if found is None or not exceeded:
            return report
        report = replace(report, format=replace(found, exceeded=exceeded))
        if report.verdict == "unverified":  # by a truth that is in doubt nothing is accused
            return report
        at_fault: AtFault = "candidate" if report.at_fault in (None, "candidate") else "both"
        reason = f"{BEYOND}: {'; '.join(exceeded)}"
        return replace(report, verdict="drift", reason=reason, at_fault=at_fault)

    def _beyond(self, found: FormatFindings | None) -> Iterator[str]:
        """What is beyond, in a few words each; NaN is beyond every limit."""
        if found is None:
            raise _UnknownCostError("what its format costs could not be told")
        if self.max_kl is not None:
            if found.decisions is None:
                raise _UnknownCostError(
                    "the model decides nothing, so that its format has no KL divergence; "
                    "limit its SNR instead (--min-format-snr)"
                )
            mean = found.decisions.kl_mean
            if not mean <= self.max_kl:
                yield f"KL divergence {mean:.3g} on average, where {self.max_kl:.3g} is allowed"
        if self.min_snr is not None:
            if found.output is None:
                raise _UnknownCostError("no output of the candidate has the shape of the model's")
            name, cost = found.output
            if not cost.snr_db >= self.min_snr:
                asked = f"where at least {self.min_snr:.3g} dB are asked for"
                yield f"SNR {cost.snr_db:.3g} dB at {name}, {asked}"


def _is_number(value: object) -> bool:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return known and math.isfinite(value)  # type: ignore[arg-type]


def _is_quantised(report: Report, candidate: Backend) -> bool:
    """Whether it has a format, of which the report says nothing."""
    if "quantised" in report.candidate.flags:
        return True
    return isinstance(candidate, BringsModel) and candidate.honest_model() is not None


def _unknown(report: Report, why: str) -> Report:
    """A run that would pass is not verified: nobody knows whether it is within the limit."""
    said = f"the format of the candidate has a limit, and {why}"
    if report.verdict == "pass":
        return replace(report, verdict="unverified", reason=said)
    return replace(report, notes=(*report.notes, f"{said[:1].upper()}{said[1:]}."))
