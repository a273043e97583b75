"""The sentences: facts of a result in words, without any markup, shared by every report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from driftwalk.layer_drift import INTRODUCED, Allowed, LayerDrift
from driftwalk.measure.decisions import Decisions
from driftwalk.result import Observer, Report

from .embedding_words import embedding_sentence
from .format_words import begun, beyond, costs, misstored_besides
from .layout import Fact
from .numbers import apart, count, cut, ints, names, number, part_of, share, used
from .point_words import name_of
from .probe_words import set_sentence
from .weight_words import accusation

MOST_MISSTORED = 2
"""Weights that a headline names; the section on the format has all."""

CHANCE = 0.5
"""More than this share of the top choices within the noise, and a reader is told."""

VERDICT_WORDS = {"pass": "PASS", "drift": "DRIFT", "unverified": "UNVERIFIED"}


def headline(report: Report) -> str:
    """The one sentence that matters."""
    if report.verdict == "pass":
        body = _passed(report)
    elif report.verdict == "drift":
        body = _drifted(report)
    else:
        body = f"{reason(report) or 'nothing was compared'}."
    worst = ""
    if report.probe_set is not None:
        name = next(iter(report.probe_set.worst), "one")
        worst = f"{set_sentence(report.probe_set)}; of the worst, {cut(name, 60)}: "
    return f"{VERDICT_WORDS[report.verdict]}: {worst}{body}"


def reason(report: Report) -> str:
    return cut(report.reason, 600).rstrip(". ")


def closest_call(layers: Sequence[LayerDrift]) -> tuple[LayerDrift, str] | None:
    """The point that used most of its allowance, and how much; None where all are equal."""
    compared = [layer for layer in layers if layer.metrics is not None]
    if all(layer.metrics and layer.metrics.max_abs == 0 for layer in compared):
        return None
    closest = max(compared, key=lambda layer: layer.tolerance.needed if layer.tolerance else 0)
    return closest, used(closest.tolerance.needed) if closest.tolerance else "an unknown share"


def _passed(report: Report) -> str:
    text = _agreement(report)
    return text if report.format is None else f"{text} {begun(costs(report))}."


def _agreement(report: Report) -> str:
    """That all points agree, and how close that was."""
    compared = sum(layer.metrics is not None for layer in report.layers)
    several = compared > 1
    text = f"all {count(compared)} points agree" if several else "the one point compared agrees"
    if report.format is not None:
        where = f"all {count(compared)} points" if several else "the one point compared"
        text = f"the kernel computes what the format declares at {where}"
    if closest := closest_call(report.layers):
        layer, part = closest
        text += f" within tolerance; the closest call is {name_of(layer)}, at {part} of its"
        text += " allowance"
    else:
        text += " exactly, element by element"
    unmet = [layer.point.name for layer in report.layers if layer.allowed]
    if unmet:
        text += f"; not compared, as a pattern allows: {names(unmet)}"
    return f"{text}."


def _drifted(report: Report) -> str:
    first, last, root = report.first_divergence, report.last_ok, report.root_cause
    if first is None:
        kernel = f" {begun(_agreement(report))}" if beyond(report) else ""
        return f"{reason(report) or 'the candidate drifted'}.{kernel}"
    text = f"first divergence at {name_of(first)}: {what_happened(first, report)}"
    if root is not None and (weight := accusation(report)):
        text = f"{name_of(root)}: {weight}; {text}"
    if first.verdict not in ("missing", "extra"):
        # Points without a partner explain a drift elsewhere: other layers, another model.
        missing, extra = (_unmatched(report.layers, kind) for kind in ("missing", "extra"))
        text += f"; the candidate has no {names(missing)}" if missing else ""
        text += f"; the reference has no {names(extra)}" if extra else ""
    if last is not None:
        text += f"; {name_of(last)} was the last point within tolerance"
    elif first.index:
        text += "; no point before it was within tolerance"
    else:
        text += "; it is the very first point"
    if root is not None:
        same = root.point.name == first.point.name
        also, by = f"{name_of(root)} is also the root cause", f"the root cause is {name_of(root)}"
        text += f"; {also if same else by}{or_before(report)}"
        why = why_elsewhere(first, root)
        text += f" ({why})" if why else ""
    if found := inside(report):
        text += f": {': '.join(filter(None, found))}"
    text += "."
    # Which side is wrong, where that is not the candidate, as everybody expects.
    if report.at_fault == "reference":
        text += " It is the reference that is wrong; the candidate is within its allowance."
    elif report.at_fault == "both":
        text += " Both sides are wrong: the reference is beyond its own allowance, too."
    text += _of_format(report)
    if report.as_expected:  # drift that turns no build red says so in the same breath
        until = min(cut(item.expires, 40) for item in report.expected)
        reasons = dict.fromkeys(cut(item.reason, 200).rstrip(". ") for item in report.expected)
        text += f" All of it is expected until {until}: {'; '.join(list(reasons)[:3])}."
    return text


def _of_format(report: Report) -> str:
    """What a quantised candidate's stored weights, and its format's cost, add to a drift."""
    wrong = misstored_besides(report)
    said, more = wrong[:MOST_MISSTORED], len(wrong[MOST_MISSTORED:])
    said += [f"So are {count(more)} more."] if more > 0 else []
    said += [f"Beside it, {reason(report)}."] if beyond(report) else []
    return "".join(f" {text}" for text in said)


def or_before(report: Report) -> str:
    """Where else the cause may lie: what has no state shows its error where the next state is."""
    if not report.cause_among or accusation(report):
        return ""
    return f", or what comes before it and gave no state: {names(report.cause_among)}"


def why_elsewhere(first: LayerDrift, root: LayerDrift) -> str:
    """Why the root cause is not where the difference shows first, where a reader would wonder."""
    if root.index > first.index:
        if first.verdict in ("missing", "extra"):
            return "after it: a point that only one side has is not to blame for other layers"
        if first.blame is None:
            return f"after it: what {name_of(first)} made itself could not be told"
        return (
            f"after it: up to {name_of(first)} each layer made no more error than honest "
            "arithmetic may, and what shows there has built up"
        )
    if root.index < first.index and root.verdict == "ok" and root.tolerance is not None:
        return "within its allowance as a whole; what it made itself grows on the way"
    return ""


def inside(report: Report) -> Fact | None:
    """Where inside the root cause (nothing, where it is all of it), and what that part did.

    A culprit's sentence names the root cause again, which stands before it wherever it is shown.
    """
    culprit, root = report.culprit, report.root_cause
    if culprit is None:
        return None
    sentence = cut(culprit.sentence, 300).rstrip(". ")
    who, _, did = sentence.partition(": ")
    layer, space, path = who.partition(" ")  # `layer.3 mlp.c_proj`, but `layer.3, before ln_2`
    whole = who if layer.endswith(",") or not space else f"{layer}.{path}"
    name = cut(root.point.name, 80) if root is not None else ""
    rest = whole.removeprefix(name)
    if not did or not whole.startswith(name) or rest[:1] not in ("", ".", ","):
        return "", sentence
    return rest.lstrip("., "), did


def _unmatched(layers: Sequence[LayerDrift], verdict: str) -> list[str]:
    return [x.point.name for x in layers if x.verdict == verdict and not x.allowed]


def what_happened(layer: LayerDrift, report: Report | None = None) -> str:
    """One point in a clause; with the report, unmatched points are named together."""
    match layer.verdict:
        case "ok":
            return _within(layer)
        case "drift":
            return _beyond(layer)
        case "nonfinite":
            return _nonfinite(layer)
        case "shape":
            return f"the shapes differ: {cut(layer.note, 200)}"
        case "unknown":
            return cut(layer.note, 400) or "it cannot be told from a signature"
        case "missing" | "extra":
            side = "candidate" if layer.verdict == "missing" else "reference"
            same = _unmatched(report.layers if report is not None else (layer,), layer.verdict)
            tail = ", as a pattern allows" if layer.allowed else ""
            return f"the {side} has no {names(same or [layer.point.name])}{tail}"


def _within(layer: LayerDrift) -> str:
    if layer.metrics is None or layer.tolerance is None:
        return "within tolerance"
    if layer.metrics.max_abs == 0:
        return "equal in every element"
    if bound(layer):
        return cut(layer.note, 400)
    return f"within tolerance, at {share_used(layer.tolerance.needed)}"


def bound(layer: LayerDrift) -> str:
    """What stands before a number that a signature only bounds; nothing before all others."""
    if layer.bounds is None or layer.bounds.exact:
        return ""
    return "≥ " if layer.verdict == "drift" else "≤ "


def share_used(needed: float) -> str:
    """How much of its allowance a point used."""
    return f"{used(needed)} {'of ' if needed <= 1 else ''}the allowance"


def _beyond(layer: LayerDrift) -> str:
    metrics, tolerance = layer.metrics, layer.tolerance
    if metrics is None or tolerance is None:
        return cut(layer.note, 200) or "beyond tolerance"
    if bound(layer):
        return cut(layer.note, 400)
    if tolerance.k is not None:
        return _beyond_yardstick(tolerance)
    elements = f"{count(metrics.mismatched)} of {count(metrics.total)} elements beyond"
    room = allowance_at_worst(layer)
    if room is not None and metrics.max_abs <= room:
        # With rtol, the largest difference may sit on a large value and be within its own room.
        return f"{elements}, at up to {share_used(tolerance.needed)}"
    if room is None:
        return f"max abs {number(metrics.max_abs)} ({elements})"
    found, allowed = apart(metrics.max_abs, room)
    return f"max abs {found} where {allowed} was allowed ({elements})"


NORM_WORDS = {
    "choices": "what it chooses",
    "l2": "L2",
    "max_abs": "its largest element",
    "channel": "its worst channel",
    "spectral": "its strongest pattern",
    "spread": "L2",
    "peak": "its largest element",
    "token_middle": "its median token",
    "token_upper": "its worst tokens",
    "token_worst": "its worst token",
    "channel_middle": "its median channel",
}


def _beyond_yardstick(tolerance: Allowed) -> str:
    """Calibrated drift: how much more wrong than honest arithmetic, and in which norm."""
    own = tolerance.by_own_doing
    norm = tolerance.norm.removeprefix(INTRODUCED)
    where = NORM_WORDS.get(norm, cut(norm, 40))
    whose = "the reference's" if tolerance.side == "reference" else "its"
    what = f"{whose} own error is" if own else f"{whose} error is"
    return f"{what} {share_used(tolerance.needed)} by {where}"


def in_norm(tolerance: Allowed) -> str:
    """Which of a point's errors used most of its allowance, in which norm."""
    if tolerance.k is None:
        return "by the element that needs most of it"
    norm = tolerance.norm.removeprefix(INTRODUCED)
    whose = "the reference's " if tolerance.side == "reference" else ""
    made = "error made here" if tolerance.by_own_doing else "error"
    return f"{whose}{made}, by {NORM_WORDS.get(norm, cut(norm, 40))}"


def _nonfinite(layer: LayerDrift) -> str:
    metrics = layer.metrics
    if metrics is None:
        return cut(layer.note, 200) or "NaN or Inf in the candidate"
    bad, worst = metrics.nonfinite.candidate, metrics.worst
    verb = "is" if bad == 1 else "are"
    text = f"{count(bad)} of {count(metrics.total)} candidate values {verb} NaN or infinite"
    if worst is not None:
        text += f", the first at {ints(worst.index)}: {number(worst.candidate)} "
        text += f"where the reference has {number(worst.reference)}"
    return text


def allowance_at_worst(layer: LayerDrift) -> float | None:
    """What the element with the largest difference was allowed; None where that has no meaning."""
    if layer.metrics is None or layer.metrics.worst is None or layer.tolerance is None:
        return None
    tolerance = layer.tolerance
    room = tolerance.atol * tolerance.scale + tolerance.rtol * abs(layer.metrics.worst.reference)
    return room if math.isfinite(room) else None


def decision_impact(report: Report) -> str:
    """What the difference does to what is decided: by the model's choices, by its embeddings."""
    chosen = (_choices(report.outputs),) if report.outputs is not None else ()
    return " ".join((*chosen, *map(embedding_sentence, report.embeddings)))


def _choices(found: Decisions) -> str:
    where = f"{count(found.positions)} position{'s' if found.positions != 1 else ''}"
    if not found.flips:
        text = f"No decision changes: the top choice is the same at all {where}"
    else:
        text = f"The top choice flips at {count(found.flips)} of {where}"
        if found.ties:
            text += f" ({count(found.ties)} inside the noise: a tie, not a bug)"
    text = (
        f"{text}; top-5 overlap {share(found.top5_overlap)}; "
        f"KL divergence {number(found.kl_mean)} on average, {number(found.kl_max)} at most."
    )
    if found.close is None or found.close <= CHANCE * found.positions:
        return text
    return (
        f"{text} At {count(found.close)} of {where} the top choice leads by no more than noise may "
        "move: it hangs on noise, whoever computes it."
    )


def observer_effect(side: str, seen: Observer) -> str:
    """Whether looking changed the numbers of one side."""
    who = cut(side, 80)
    if not seen.checked:
        return f"Whether capturing states changes the {who}'s outputs was not checked."
    if seen.bit_identical:
        return f"Capturing states left the {who}'s outputs bit-identical."
    limit = "within tolerance" if seen.within_tolerance else "more than the tolerance"
    return (
        f"Capturing states changed the {who}'s output {cut(seen.output, 80)} "
        f"{cut(seen.amount, 200)}, {limit}."
    )


def in_meaning(report: Report) -> str:
    """Drift in units of meaning; empty where no contrast was measured."""
    if report.contrast is None:
        return ""
    pair = (report.contrast.first, report.contrast.second)
    worst = report.contrast.largest
    if worst is None:
        return f"No drift could be told in units of {quoted(*pair)}."
    return in_units(report.candidate.spec, worst[1], quoted(*pair), worst[0])


def quoted(first: str, second: str) -> str:
    """What to call two inputs."""
    return f"“{cut(first, 60)}” and “{cut(second, 60)}”"


def in_units(spec: str, part: float, pair: str, point: str) -> str:
    return (
        f"The drift of {cut(spec, 60)} is at most {part_of(part)} of the distance between "
        f"{pair} (at {cut(point, 60)})."
    )


def covered(report: Report) -> str:
    """How much was compared, and what was not."""
    coverage = report.coverage
    text = f"{count(coverage.compared)} of {count(coverage.points)} reference points compared"
    for what, which in (
        ("missing from the candidate", coverage.missing),
        ("only in the candidate", coverage.extra),
        ("allowed by a pattern", coverage.allowed),
        ("outputs that are not compared", coverage.outputs_skipped),
    ):
        text += f"; {what}: {names(which, 8)}" if which else ""
    return f"{text}."
