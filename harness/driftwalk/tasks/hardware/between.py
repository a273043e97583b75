"""Between devices: those of one model, with the same libraries, must give the same bits."""

from __future__ import annotations

from collections.abc import Sequence

from .majority import Vote, vote
from .result import Case, Check, DeviceResult, Mismatch, Verdict, worst_verdict

NAME = "devices"


def between(devices: Sequence[DeviceResult]) -> Check:
    """All devices against each other, group by group of what decides the bits."""
    groups: dict[tuple[tuple[str, str], ...], list[DeviceResult]] = {}
    for device in devices:
        groups.setdefault(tuple(sorted(device.identity.items())), []).append(device)
    cases: list[Case] = []
    mismatches: list[Mismatch] = []
    told: list[str] = []
    for identity, members in groups.items():
        model = dict(identity).get("model", "device")
        named = ", ".join(device.device for device in members)
        if len(members) < 2:
            note = f"{named} is the only one of its kind ({model})"
            cases.append(Case(f"{model}: {named}", "not comparable", note=note))
            told.append(note)
            continue
        found = vote({device.device: device.digests for device in members})
        verdict: Verdict = "no fault found"
        if not found.compared:
            verdict = "not comparable"
            note = f"{named}: nothing that all of them ran"
        elif found.unanimous:
            note = f"{named} agree in all {len(found.compared)} digests"
        else:
            verdict = "fault"
            note = _odd_ones(found, named)
            mismatches += [
                _mismatch(name, key, "the others give other bits")
                for name, key in found.outliers.items()
            ]
            if found.undecided and not found.outliers:
                text = f"{named} disagree, and none is in the majority: which is wrong is not known"
                mismatches.append(_mismatch(named, found.undecided[0], text))
        cases.append(Case(f"{model}: {named}", verdict, len(members), note=note))
        told.append(note)
    verdict = worst_verdict(case.verdict for case in cases)
    return Check(NAME, verdict, "; ".join(told) + ".", tuple(cases), tuple(mismatches))


def _odd_ones(found: Vote, named: str) -> str:
    if found.outliers:
        return f"the odd one out is {', '.join(found.outliers)}"
    where = found.undecided[0]
    return f"{named} disagree at {where}; by majority it cannot be said which is wrong"


def _mismatch(device: str, key: str, note: str) -> Mismatch:
    *case, state = key.split(" | ")
    return Mismatch(NAME, f"{device}: {' | '.join(case)}", state, 0, 0.0, 0, 0, note=note)
