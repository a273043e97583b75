"""A job's own JSON result, read in the words that all kinds of jobs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...document import read as read_document
from ...errors import UsageError
from ...result import Report, from_dict
from ..hardware import result as hardware
from .job import Job
from .result import Check, Finding, Verdict

_HARDWARE: dict[hardware.Verdict, Verdict] = {
    "no fault found": "pass",
    "fault": "fault",
    "not comparable": "unsure",
}
_GATE: dict[int, Verdict] = {0: "pass", 1: "fault"}
_COUNTERS = ("ecc", "remap")
"""Readings that belong to the device; a temperature belongs to the moment."""
_STEP = 100.0
"""MHz: clocks that differ by less are the same."""


def read(job: Job, data: Any, code: int) -> Finding:
    """What a job found; raises a UsageError where that is no result of such a job.

    A result and an exit code that contradict each other are no result.
    """
    return _hardware(job, data, code) if job.kind == "hwcheck" else _verification(data, code)


def _hardware(job: Job, data: Any, code: int) -> Finding:
    report = read_document(hardware.HardwareReport, data)
    if code != report.exit_code:
        raise UsageError(f"The result says {report.verdict!r}, the exit code was {code}.")
    if len(report.devices) != 1:
        raise UsageError(f"A hardware check of one device speaks of {len(report.devices)}.")
    (device,) = report.devices
    checks = tuple(
        Check(check.name, _HARDWARE[check.verdict], check.sentence) for check in device.checks
    )
    verdict, said = _HARDWARE[report.verdict], report.reason
    held = next((check for check in checks if check.name == "golden"), None)
    if job.golden and verdict == "pass" and (held is None or held.verdict != "pass"):
        verdict = "unsure"
        said = f"not held against the golden: {held.said if held else 'there was no such check'}"
    return Finding(
        verdict,
        said,
        checks,
        device=_model(device.identity) or device.device,
        patterns={name: digest for name, digest in device.digests.items() if digest},
        basis={**_about(report), **device.identity},
        environment={**report.environment, **device.identity, **device.details, **_clocks(device)},
    )


def _about(report: hardware.HardwareReport) -> dict[str, str]:
    """What was run: two nodes with other weights under one name are no evidence of anything."""
    return {
        "level": report.level,
        "probe": report.probe,
        "driftwalk": report.tool.version,
        "weights": report.model.get("fingerprint", ""),
    }


def _model(identity: Mapping[str, str]) -> str:
    return identity.get("model", "")


def _clocks(device: hardware.DeviceResult) -> dict[str, str]:
    """How fast it went at most, what it has counted, and whether it was held back."""
    found = {}
    for name in ("clock", "memory clock"):
        seen = [reading.values[name] for reading in device.readings if name in reading.values]
        if seen:
            found[f"highest {name}"] = f"about {_STEP * round(max(seen) / _STEP):.0f} MHz"
    last = device.readings[-1].values if device.readings else {}
    found |= {k: f"{v:g}" for k, v in last.items() if any(word in k for word in _COUNTERS)}
    why = dict.fromkeys(word for reading in device.readings for word in reading.throttled)
    return found | {"throttled": ", ".join(sorted(why)) or "never"}


def _verification(data: Any, code: int) -> Finding:
    """The gate's word counts: it knows which drift was expected."""
    report = from_dict(data)
    passed = report.ok or (report.verdict == "drift" and bool(report.expected))
    if (code == 0 and not passed) or (code == 3 and report.verdict != "unverified"):
        raise UsageError(f"The result says {report.verdict!r}, the exit code was {code}.")
    sides = (report.reference, report.candidate)
    return Finding(
        _GATE.get(code, "unsure"),
        _said(report),
        (Check(report.candidate.spec, _GATE.get(code, "unsure"), _said(report)),),
        device=report.candidate.device,
        environment={**report.environment, **{k: v for s in sides for k, v in s.versions.items()}},
    )


def _said(report: Report) -> str:
    first, cause = report.first_divergence, report.root_cause
    if report.verdict == "drift" and first is not None:
        made = f", made in {cause.point.name}" if cause is not None else ""
        return f"drift at {first.point.name}{made}"
    return report.reason or f"{report.coverage.compared} points within tolerance"
