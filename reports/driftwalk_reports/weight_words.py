"""What became of a weight, in words: shared by drift reports and by `driftwalk weights`."""

from __future__ import annotations

import math

from driftwalk.result import Report
from driftwalk.weight_change import WeightChange, WeightFindings

from .numbers import apart, count, cut, ints, number

_LONGEST = 100


def what_became(change: WeightChange) -> str:
    """One weight in a clause: one entry [7, 11] is off by 0.5."""
    match change.verdict:
        case "same" | "cast":
            return _equal(change)
        case "transposed":
            return "it is transposed"
        case "permuted":
            return f"its {change.axis} are in another order: {cut(change.order, 200)}"
        case "shape":
            one, other = (ints(shape or ()) for shape in change.shapes)
            return f"its shape is {other}, not {one}"
        case "missing":
            return "the candidate has none"
        case "extra":
            return "the reference has none"
        case "absent":
            return "not found in the graph, which may have folded it into another"
        case "differs":
            return _differs(change) + (" (compared transposed)" if change.turned else "")


def _equal(change: WeightChange) -> str:
    dtype = change.dtypes.candidate or "another dtype"
    text = f"the same numbers in {cut(dtype, 20)}" if change.verdict == "cast" else "the same"
    text += ", stored transposed" if change.turned else ""
    if change.tied:
        text += f"; tied to another weight in the {change.tied} only"
    return text


def _differs(change: WeightChange) -> str:
    if change.differing == 1 or not math.isfinite(change.max_abs):
        return _one_entry(change)
    what = f"all entries of {change.place}" if change.place else "all entries"
    if change.factor is not None:
        return f"{what} are {_times(change.factor)}"
    if change.offset is not None:
        return f"{number(change.offset)} was added to {what}"
    where = f", all in {change.place}" if change.place else ""
    text = f"{count(change.differing)} of {count(change.total)} entries differ{where}"
    if change.worst is not None:
        text += f", by up to {number(change.max_abs)} at {ints(change.worst.index)}"
    return f"{text} (rel L2 {number(change.rel_l2)})"


def _one_entry(change: WeightChange) -> str:
    worst = change.worst
    if worst is None:
        return "it differs"
    where = f"entry {ints(worst.index)}" if worst.index else "its one entry"
    one = f"one {where}" if change.differing == 1 and worst.index else where
    expected, got = apart(worst.reference, worst.candidate)
    if not math.isfinite(change.max_abs):
        text = f"{where} is {got}, not {expected}"
        more = change.differing - 1
        return f"{text}; {count(more)} more differ" if more else text
    return f"{one} is off by {number(change.max_abs)} ({got}, not {expected})"


def _times(factor: float) -> str:
    if factor == 0:
        return "zero"
    if factor == -1:
        return "of the other sign"
    return f"{number(factor, 4)} times as large"


def findings_of(report: Report) -> WeightFindings | None:
    """What is said of weights, where some were compared."""
    return report.weights if report.weights and report.weights.compared else None


def accusation(report: Report) -> str:
    """Which weight of the root cause is the cause, in a clause; empty where none is."""
    found = findings_of(report)
    change = found.guilty if found else None
    root = report.root_cause
    if found is None or change is None or root is None:
        return ""
    name = cut(change.name.removeprefix(f"{root.point.module}."), _LONGEST)
    whose, right = ("its", "the reference's")
    if found.side == "reference":
        whose, right = "the reference's", "the model's"
    return f"{whose} {name} is not {right}: {what_became(change)}"


def weights_sentence(report: Report) -> str:
    """What the weights say beside the headline; empty where nothing was compared."""
    found, root = findings_of(report), report.root_cause
    if found is None or root is None:
        return ""
    where = cut(root.point.name, 80)
    others = [one for one in found.changes if one.name != found.cause]
    if found.cause:
        if not others:
            return ""
        listed = "; ".join(f"{cut(one.name, 80)}: {what_became(one)}" for one in others[:3])
        more = f"; and {count(len(others) - 3)} more" if len(others) > 3 else ""
        return f"Weights that differ beside it: {listed}{more}."
    if others:
        return ""  # of a port that stores them in another way, or elsewhere: no cause
    if found.unmatched:
        return ""
    whose = "the reference's" if found.side == "candidate" else "the model's"
    return f"All {count(found.inside)} weights of {where} are {whose}: the cause is no weight."
