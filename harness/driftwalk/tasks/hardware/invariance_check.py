"""Invariance as one of the checks: a matrix, and a fault where the model is not to blame."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...states import Probe
from .invariance import matrix
from .repeats import Findings
from .work import Work

NAME = "invariance"
QUICK = ("fp32", "bf16")


def run(work: Work, findings: Findings, given: bool) -> str:
    """Fill the findings; the sentence that sums them up. `given`: the user named the model."""
    model: Any = work.model
    probe: Probe = work.probe
    if not given:
        model, probe = work.station.token_model()
    pad, positions = work.station.token_facts(model)
    quick = work.level.name == "quick" and work.station.label == "cpu"
    # Float64 is what the others are judged by: for itself there is no noise to allow.
    known = [dtype for dtype in work.model_dtypes if dtype != "fp64"]
    dtypes = tuple(dtype for dtype in known if not quick or dtype in QUICK)
    found = matrix(
        model,
        work.station.label,
        dtypes or tuple(known[:1]),
        probe,
        pad=pad,
        positions=positions,
        threads=work.station.threads(),
    )
    for cell in found:
        findings.cells.append(cell)
    broken = [c for c in findings.cells if c.outcome == "broken" and not c.by_model]
    by_model = [c for c in findings.cells if c.outcome == "broken" and c.by_model]
    ran = [cell for cell in findings.cells if cell.outcome != "not run"]
    findings.verdict = "fault" if broken else "no fault found" if ran else "not comparable"
    if not ran:
        why = {cell.note for cell in findings.cells} or {"float64 alone is not judged"}
        return f"Nothing could be changed: {'; '.join(sorted(why))}."
    counts = Counter(cell.outcome for cell in ran)
    words = [f"{counts[w]} {w}" for w in ("bit-exact", "within noise", "broken") if counts[w]]
    told = f"{len(ran)} changes: {', '.join(words)}"
    if by_model:
        told += f" ({len(by_model)} of them in float64 too, where the model itself depends on it)"
    if broken:
        first = broken[0]
        told += f"; {first.change} in {first.dtype} moves {first.worst_state} beyond noise"
    return told + "."
