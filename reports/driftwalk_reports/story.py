"""The top of a page, read in five seconds: what, where, whence, so what, what next."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from driftwalk.layer_drift import LayerDrift
from driftwalk.result import Report

from . import sentences
from .format_words import begun, beyond, costs, misstored_besides
from .next_steps import Step, steps
from .numbers import count, cut, number
from .point_words import name_of
from .probe_words import set_sentence
from .weight_words import accusation, weights_sentence


@dataclass(frozen=True)
class Part:
    """A piece of a sentence; with a target it is a link to that point."""

    text: str
    point: str = ""


@dataclass(frozen=True)
class Tile:
    """One question and its answer."""

    question: str
    answer: tuple[Part, ...]
    more: str = ""


@dataclass(frozen=True)
class Story:
    sentence: tuple[Part, ...]
    tiles: tuple[Tile, ...]
    steps: tuple[Step, ...]


def tell(report: Report, model: str) -> Story:
    """What a reader must know first."""
    return Story(tuple(_sentence(report, model)), tuple(_tiles(report)), tuple(steps(report)))


def _sentence(report: Report, model: str) -> Iterator[Part]:
    """The verdict in one sentence, with model, both sides, policy, and links."""
    word = sentences.VERDICT_WORDS[report.verdict]
    candidate, reference = cut(report.candidate.spec, 60), cut(report.reference.spec, 60)
    first, root = report.first_divergence, report.root_cause
    if report.format is not None and first is None and report.verdict != "unverified":
        yield Part(f"{word}: {_declared(report, candidate, model)}")
    elif report.verdict == "pass":
        points = f"all {count(report.coverage.compared)} points" if report.coverage.compared else ""
        yield Part(f"{word}: {candidate} agrees with {reference} on {model} at {points or 'none'}")
    elif report.verdict == "unverified":
        yield Part(f"{word}: {candidate} could not be held against {reference} on {model}")
    else:
        yield Part(f"{word}: ")
        if root is not None and (weight := accusation(report)):
            yield from (_link(root), Part(f": {weight}; "))
        yield Part(f"{_departs(report, candidate, reference)} on {model}")
        if first is not None:
            yield Part(" at ")
            yield _link(first)
        if root is not None and first is not None and root.point != first.point:
            yield Part(", caused by ")
            yield _link(root)
            yield Part(sentences.or_before(report))
        elif root is not None:
            yield Part(f", which is also the root cause{sentences.or_before(report)}")
        if report.at_fault == "reference":
            yield Part(f"; the candidate, {candidate}, is right")
    yield Part(f" (policy {cut(report.policy.name, 40)}).")
    if report.format is not None and report.verdict == "pass":
        yield Part(f" {begun(costs(report))}.")
    if report.probe_set is not None:
        yield Part(f" This is the worst probe: {set_sentence(report.probe_set)}.")
    if report.as_expected:
        yield Part(" All of it is expected.")


def _declared(report: Report, candidate: str, model: str) -> str:
    """A quantised candidate whose kernel is right: what that means, and what its format may not."""
    kernel = f"computes what its format declares of {model} at all "
    kernel += f"{count(report.coverage.compared)} points"
    if exceeded := beyond(report):
        costly = f"the format of {candidate} costs more than is allowed: {'; '.join(exceeded)}"
        return f"{costly}; it {kernel}"
    return f"{candidate} {kernel}"


def _departs(report: Report, candidate: str, reference: str) -> str:
    """Who departs from whom: the side that is wrong from the truth, where that is known."""
    if report.at_fault == "reference":
        return f"the reference, {reference}, departs from the truth"
    if report.at_fault == "both":
        return f"both {candidate} and {reference} depart from the truth"
    return f"{candidate} departs from {reference}"


def _link(layer: LayerDrift) -> Part:
    return Part(name_of(layer), layer.point.name)


def _tiles(report: Report) -> Iterator[Tile]:
    first, root, last = report.first_divergence, report.root_cause, report.last_ok
    if report.verdict == "unverified":
        why = sentences.reason(report) or "nothing was compared"
        yield Tile("Why there is no verdict", (Part(f"{why[:1].upper()}{why[1:]}."),))
    if first is not None:
        before = f"{name_of(last)} was the last point within tolerance." if last else ""
        what = sentences.what_happened(first, report)
        yield Tile("Where it shows first", (_link(first), Part(f": {what}.")), before)
    elif report.verdict == "pass":
        yield Tile("How close it was", _closest(report))
    elif report.verdict == "drift" and beyond(report):
        yield Tile("How close its kernel was", _closest(report))
    if root is not None:
        said = (_link(root), Part(f": {_why(report, root)}."))
        more = _elsewhere(report, root)
        stored = next(iter(misstored_besides(report)), "")
        beside = " ".join(filter(None, (more, weights_sentence(report), stored)))
        yield Tile("Where it comes from", said, beside)
    elif report.verdict == "drift" and first is None and beyond(report):
        whence = f"The format, not the kernel: {'; '.join(beyond(report))}."
        yield Tile("Where it comes from", (Part(whence),))
    elif report.verdict == "drift":
        yield Tile("Where it comes from", (Part("Not known: nothing could be blamed."),))
    impact = sentences.decision_impact(report)
    if report.layers and report.layers[-1].verdict == "nonfinite":
        last = report.layers[-1]
        yield Tile("Does it matter?", (Part("Yes: NaN or Inf reaches "), _link(last), Part(".")))
    elif impact:
        yield Tile("Does it matter?", (Part(impact),))
    if meaning := sentences.in_meaning(report):
        yield Tile("In units of meaning", (Part(meaning),))
    if report.format is not None:
        yield Tile("What the format costs", (Part(f"{begun(costs(report))}."),))
    elif report.layers and report.layers[-1].truth is not None:
        yield Tile("Who is closer to the truth?", (Part(_closer(report)),))


def _elsewhere(report: Report, root: LayerDrift) -> str:
    """Why the root cause is not where it shows, and what else may be the cause."""
    first, said = report.first_divergence, []
    if first is not None and (why := sentences.why_elsewhere(first, root)):
        said.append(f"{begun(why)}.")
    if sentences.or_before(report):
        several = f"It is one of {count(len(report.cause_among) + 1)} that may be the cause"
        said.append(f"{several}: what comes right before it has no state.")
    return " ".join(said)


def _closest(report: Report) -> tuple[Part, ...]:
    """A pass: how near it came to not being one."""
    if not any(layer.tolerance and layer.metrics for layer in report.layers):
        return (Part("No point has a tolerance."),)
    closest = sentences.closest_call(report.layers)
    if closest is None:
        return (Part("Equal in every element of every point."),)
    layer, part = closest
    return Part("The closest call is "), _link(layer), Part(f", at {part} of its allowance.")


def _why(report: Report, root: LayerDrift) -> str:
    if found := sentences.inside(report):
        return ": ".join(filter(None, found))
    if root.blame is not None:
        ratio = root.blame.ratio
        times = number(ratio) if math.isfinite(ratio) else "infinitely many"
        return f"its own error is {times} times that of honest arithmetic"
    return sentences.what_happened(root)


def _closer(report: Report) -> str:
    """Which side is right: counted over the points."""
    closer = [layer.truth.closer for layer in report.layers if layer.truth]
    if set(closer) == {"tie"}:
        return "Both are equally close to the truth at every point."
    if len(set(closer)) == 1:
        return f"The {closer[0]} is closer to the truth at every point."
    parts = [
        f"{'neither' if side == 'tie' else f'the {side}'} at {closer.count(side)}"
        for side in ("reference", "candidate", "tie")
        if side in closer
    ]
    return f"Of {len(closer)} points: {', '.join(parts)}."
