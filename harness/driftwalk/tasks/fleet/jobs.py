"""Each kind of job: made of what is to be checked, and its JSON result read in shared words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...document import read as read_document
from ...errors import UsageError
from ...project.config import Run
from ...result import Report, from_dict
from ...spec import Spec
from ...tolerance import Policy
from ..constants import SAME_CLOCK
from ..hardware import result as hardware
from .job import DEVICE, GOLDEN, Device, Job, Place
from .result import Check, Finding, Verdict

_HARDWARE: dict[hardware.Verdict, Verdict] = {
    "no fault found": "pass",
    "fault": "fault",
    "not comparable": "unsure",
}
_GATE: dict[int, Verdict] = {0: "pass", 1: "fault"}
_COUNTERS = ("ecc", "remap")
"""Readings that belong to the device; a temperature belongs to the moment."""


def hwcheck_jobs(
    places: Sequence[Place], options: Sequence[str] = (), golden: str = ""
) -> list[Job]:
    """One check for every device; `golden` is the hash of what all are held against."""
    held = ("--golden", GOLDEN) if golden else ()
    words = ("--device", DEVICE, *options, *held, "--json")
    return [
        Job("hwcheck", words, place.name, place.name, place.kind, golden)
        for place in places
        if place.slot == 0
    ]


def verify_jobs(runs: Iterable[Run], home: Path | None = None) -> list[Job]:
    """Every model on every probe with every candidate; `home` is where paths are seen from."""
    folder = str(home.resolve()) if home is not None else ""
    return [
        Job(
            "verify",
            (run.model, "--candidate", candidate, *_words(run), "--json"),
            f"{run.title} on {candidate}",
            needs=_needs(candidate, run.common.reference),
            folder=folder,
        )
        for run in runs
        for candidate in run.common.candidates
    ]


def _needs(*specs: str | None) -> Device:
    devices = [Spec.parse(spec).device or "" for spec in specs if spec]
    return "cuda" if any(device.startswith("cuda") for device in devices) else "cpu"


def _words(run: Run) -> Iterator[str]:
    """A run's options, as they are typed."""
    common, inputs = run.common, run.inputs
    if common.reference is not None:
        yield from ("--reference", common.reference)
    yield from policy_words(common.policy)
    for glob in common.allow_missing:
        yield from ("--allow-missing", glob)
    if common.depth != "block":
        yield from ("--depth", common.depth)
    if common.expected is not None:
        yield from ("--expected", str(common.expected))
    yield from _probe(run.title, inputs.given)
    for name in ("batch", "length", "seed"):
        if value := getattr(inputs, name):
            yield from (f"--{name}", str(value))
    if run.blocks is not None:
        yield from ("--blocks", run.blocks)
    if run.trust_remote_code:
        yield "--trust-remote-code"


def _probe(title: str, given: object) -> Iterator[str]:
    match given:
        case None:
            return
        case Path():
            yield from ("--probe", str(given))
        case [[*_]] as rows if isinstance(rows, list):
            yield from ("--ids", " ".join(map(str, rows[0])))
        case [str(), *_] as texts if isinstance(texts, list):
            for text in texts:
                yield f"--prompt={text}"  # in one word: a text may begin with a dash
        case _:
            raise UsageError(
                f"{title}: several rows of ids cannot be sent to another machine as words. "
                "Put them into a safetensors file and name it with 'file'."
            )


def policy_words(policy: Policy) -> Iterator[str]:
    """The options that make this very policy again."""
    yield from ("--policy", "calibrated" if policy.calibrated else "dtype")
    for rule in policy.rules:
        given = rule.tolerance
        tolerance = "dtype" if given is None else f"{given.atol!r},{given.rtol!r}"
        yield from ("--rule", f"{rule.glob}={tolerance}")


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
    verdict, said = _HARDWARE[report.verdict], report.reason
    golden = device.check("golden")
    if job.golden and verdict == "pass" and (golden is None or golden.verdict != "no fault found"):
        verdict = "unsure"
        why = golden.sentence if golden else "there was no such check"
        said = f"not held against the golden: {why}"
    # Two nodes with other weights under one name are no evidence of anything.
    asked = {
        "level": report.level,
        "probe": report.probe,
        "driftwalk": report.tool.version,
        "weights": report.model.get("fingerprint", ""),
    }
    return Finding(
        verdict,
        said,
        tuple(Check(item.name, _HARDWARE[item.verdict], item.sentence) for item in device.checks),
        device=device.identity.get("model") or device.device,
        patterns={name: digest for name, digest in device.digests.items() if digest},
        basis={**asked, **device.identity},
        environment={**report.environment, **device.identity, **device.details, **_clocks(device)},
    )


def _clocks(device: hardware.DeviceResult) -> dict[str, str]:
    """How fast it went at most, what it has counted, and whether it was held back."""
    facts = {}
    for name in ("clock", "memory clock"):
        seen = [reading.values[name] for reading in device.readings if name in reading.values]
        if seen:
            facts[f"highest {name}"] = f"about {SAME_CLOCK * round(max(seen) / SAME_CLOCK):.0f} MHz"
    last = device.readings[-1].values if device.readings else {}
    facts |= {k: f"{v:g}" for k, v in last.items() if any(word in k for word in _COUNTERS)}
    why = dict.fromkeys(word for reading in device.readings for word in reading.throttled)
    return facts | {"throttled": ", ".join(sorted(why)) or "never"}


def _verification(data: Any, code: int) -> Finding:
    """The gate's word counts: it knows which drift was expected."""
    report = from_dict(data)
    passed = report.ok or (report.verdict == "drift" and bool(report.expected))
    if (code == 0 and not passed) or (code == 3 and report.verdict != "unverified"):
        raise UsageError(f"The result says {report.verdict!r}, the exit code was {code}.")
    verdict, said = _GATE.get(code, "unsure"), _said(report)
    return Finding(
        verdict,
        said,
        (Check(report.candidate.spec, verdict, said),),
        device=report.candidate.device,
        environment={
            **report.environment,
            **report.reference.versions,
            **report.candidate.versions,
        },
    )


def _said(report: Report) -> str:
    first, cause = report.first_divergence, report.root_cause
    if report.verdict == "drift" and first is not None:
        made = f", made in {cause.point.name}" if cause is not None else ""
        return f"drift at {first.point.name}{made}"
    return report.reason or f"{report.coverage.compared} points within tolerance"
