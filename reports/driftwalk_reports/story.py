"""The top of a page, read in five seconds: what, where, whence, so what, what next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from driftwalk.layer_drift import LayerDrift
from driftwalk.result import Report

from . import sentences
from .numbers import count, cut, used


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
class Step:
    """Something to do next, and the command that does it, where there is one."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class Story:
    sentence: tuple[Part, ...]
    tiles: tuple[Tile, ...]
    steps: tuple[Step, ...]


def tell(report: Report, model: str) -> Story:
    """What a reader must know first."""
    return Story(tuple(_sentence(report, model)), tuple(_tiles(report)), tuple(_steps(report)))


def _sentence(report: Report, model: str) -> Iterator[Part]:
    """The verdict in one sentence, with model, both sides, policy, and links."""
    word = sentences.VERDICT_WORDS[report.verdict]
    candidate, reference = cut(report.candidate.spec, 60), cut(report.reference.spec, 60)
    first, root = report.first_divergence, report.root_cause
    if report.verdict == "pass":
        points = f"all {count(report.coverage.compared)} points" if report.coverage.compared else ""
        yield Part(f"{word}: {candidate} agrees with {reference} on {model} at {points or 'none'}")
    elif report.verdict == "unverified":
        yield Part(f"{word}: {candidate} could not be held against {reference} on {model}")
    else:
        yield Part(f"{word}: {_departs(report, candidate, reference)} on {model}")
        if first is not None:
            yield Part(" at ")
            yield _link(first)
        if root is not None and first is not None and root.point != first.point:
            yield Part(", caused by ")
            yield _link(root)
        elif root is not None:
            yield Part(", which is also the root cause")
        if report.at_fault == "reference":
            yield Part(f"; the candidate, {candidate}, is right")
    yield Part(f" (policy {cut(report.policy.name, 40)}).")
    if report.as_expected:
        yield Part(" All of it is expected.")


def _departs(report: Report, candidate: str, reference: str) -> str:
    """Who departs from whom: the side that is wrong from the truth, where that is known."""
    if report.at_fault == "reference":
        return f"the reference, {reference}, departs from the truth"
    if report.at_fault == "both":
        return f"both {candidate} and {reference} depart from the truth"
    return f"{candidate} departs from {reference}"


def _link(layer: LayerDrift) -> Part:
    return Part(cut(layer.point.name, 80), layer.point.name)


def _tiles(report: Report) -> Iterator[Tile]:
    first, root, last = report.first_divergence, report.root_cause, report.last_ok
    if report.verdict == "unverified":
        reason = cut(report.reason, 600).rstrip(". ") or "nothing was compared"
        yield Tile("Why there is no verdict", (Part(f"{_upper(reason)}."),))
    if first is not None:
        before = f"{cut(last.point.name, 80)} was the last point within tolerance." if last else ""
        what = sentences.what_happened(first, report)
        yield Tile("Where it shows first", (_link(first), Part(f": {what}.")), before)
    elif report.verdict == "pass":
        yield _closest(report)
    if root is not None:
        yield Tile("Where it comes from", (_link(root), Part(f": {_why(report, root)}.")))
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
    if report.layers and report.layers[-1].truth is not None:
        yield _closer(report)


def _closest(report: Report) -> Tile:
    """A pass: how near it came to not being one."""
    judged = [layer for layer in report.layers if layer.tolerance and layer.metrics]
    if not judged:
        return Tile("How close it was", (Part("No point has a tolerance."),))
    worst = max(judged, key=lambda layer: layer.tolerance.needed if layer.tolerance else 0.0)
    needed = worst.tolerance.needed if worst.tolerance else 0.0
    if all(layer.metrics and layer.metrics.max_abs == 0 for layer in judged):
        return Tile("How close it was", (Part("Equal in every element of every point."),))
    said = (
        Part("The closest call is "),
        _link(worst),
        Part(f", at {used(needed)} of its allowance."),
    )
    return Tile("How close it was", said)


def _why(report: Report, root: LayerDrift) -> str:
    if report.culprit is not None:
        said = cut(report.culprit.sentence, 300).rstrip(". ")
        return said.removeprefix(f"{cut(root.point.name, 80)} ")
    if root.blame is not None:
        return f"its own error is {sentences.times(root.blame.ratio)} that of honest arithmetic"
    return sentences.what_happened(root)


def _closer(report: Report) -> Tile:
    """Which side is right: counted over the points."""
    told = [layer.truth.closer for layer in report.layers if layer.truth]
    if len(set(told)) == 1:
        words = {
            "tie": "Both are equally close to the truth at every point.",
            "candidate": "The candidate is closer to the truth at every point.",
            "reference": "The reference is closer to the truth at every point.",
        }
        return Tile("Who is closer to the truth?", (Part(words[told[0]]),))
    parts = [
        f"{'neither' if side == 'tie' else f'the {side}'} at {told.count(side)}"
        for side in ("reference", "candidate", "tie")
        if side in told
    ]
    text = f"Of {len(told)} points: {', '.join(parts)}."
    return Tile("Who is closer to the truth?", (Part(text),))


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _steps(report: Report) -> Iterator[Step]:
    command = report.command
    if command:
        yield Step("Run it again", command)
    first, root = report.first_divergence, report.root_cause
    verifies = command.startswith("driftwalk verify ") and " --depth" not in command
    verifies &= " --only " not in command  # of a configuration, which has its own depth and rules
    if report.verdict == "drift" and verifies:
        inside = root or first
        where = cut(inside.point.name, 80) if inside else "the layers"
        yield Step(f"Look inside {where}", f"{command} --depth module")
    if first is not None and first.verdict == "nonfinite" and report.candidate.dtype == "fp16":
        yield Step("fp16 ends at 65504: try bf16, which has the range of fp32.")
    if first is not None and first.verdict == "drift" and verifies:
        rule = shlex.quote(sentences.would_pass(first))
        yield Step(
            "If this difference is meant, allow it at this point", f"{command} --rule {rule}"
        )
