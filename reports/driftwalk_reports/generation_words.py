"""A generation in words: the verdict with its cause, where two sides part, and what to run next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from driftwalk.effects import Patching
from driftwalk.tasks.generation.result import At, Generation, Parted

from .next_steps import Step as Advice
from .numbers import count, cut, number
from .sentences import VERDICT_WORDS, closest_call

CAUSES = {
    "cache": "by the cache",
    "backend": "by the backend itself, with a cache and without",
    "shared": "by what all layers share",
}


def headline(report: Generation) -> str:
    """The one sentence that matters."""
    if report.verdict == "pass":
        body = _passed(report)
    elif report.verdict == "drift":
        body = _drifted(report)
    else:
        body = cut(report.reason, 600).rstrip(". ") or "nothing was compared"
    return f"{VERDICT_WORDS[report.verdict]}: {body}.{_whose(report)}"


def step_name(step: int) -> str:
    """What to call a step."""
    return f"step {step}" if step else "the prompt"


def when(report: Generation, at: At) -> str:
    """The step, and of a prompt in pieces the piece and the token."""
    if at.step or at.token is None or not report.chunk:
        return step_name(at.step)
    return f"the prompt, piece {at.token // report.chunk + 1}, token {at.token},"


def place(at: At) -> str:
    """A step, a point, and of a cache the slot: step 6 at layer.2.key, slot 4."""
    slot = "" if at.slot is None else f", slot {at.slot}"
    return f"{step_name(at.step)} at {cut(at.point.name, 80)}{slot}"


def token(text: str, number_: int) -> str:
    """A token as it can be seen: spaces have a sign, and what has no text its number."""
    return cut(text, 24).replace(" ", "␣") or f"#{number_}"


def fed(report: Generation) -> Iterator[tuple[str, str]]:
    """How the tokens were fed, where that is not the prompt at once and then one by one."""
    if report.beams > 1:
        yield "beams", f"{report.beams} for each row"
    if report.chunk:
        yield "prompt", f"in pieces of {report.chunk} tokens"
    if report.draft:
        yield "drafted", f"{report.draft} tokens a run, some of them taken back"


def _steps(report: Generation) -> str:
    made = len(report.steps) - 1
    return f"{count(made)} step{'s' if made != 1 else ''} and the prompt"


def _passed(report: Generation) -> str:
    compared = sum(layer.metrics is not None for layer in report.layers)
    points = f"all {count(compared)} points" if compared > 1 else "the one point compared"
    closest = closest_call(report.layers)
    if closest is None:
        return f"{_steps(report)} agree exactly, element by element, at {points}"
    layer, part = closest
    text = f"{_steps(report)} agree within tolerance at {points}; the closest call is "
    return f"{text}{cut(layer.point.name, 80)}, at {part} of its allowance"


def _drifted(report: Generation) -> str:
    at = report.root_cause or report.first_divergence
    if at is None:
        return cut(report.reason, 600).rstrip(". ") or "decoding parts from the model"
    whose = {"reference": "the reference's decoding", "both": "the decoding of both sides"}
    who = whose.get(report.at_fault or "", "decoding")
    text = f"{who} parts from the model in {when(report, at)} at {cut(at.point.name, 80)}"
    text += f", {CAUSES[report.cause]}" if report.cause else ""
    said = why(report)
    return f"{text}: {said}" if said else text


def why(report: Generation) -> str:
    """The cause in a clause, without the name of the point that stands before it."""
    root, text = report.root_cause, report.explanation
    if not text and report.culprit is not None:
        text = report.culprit.sentence
    name = root.point.name if root is not None else ""
    return cut(text.removeprefix(f"{name}: ").removeprefix(f"{name} "), 300).rstrip(". ")


def _whose(report: Generation) -> str:
    if report.verdict == "drift" and report.at_fault == "reference":
        return " It is the reference that is wrong; the candidate is within its allowance."
    return ""


def shows_first(report: Generation) -> str:
    """Where it shows first, if that is another place than the cause; else nothing."""
    first, root = report.first_divergence, report.root_cause
    if first is None or (root and (first.step, first.point) == (root.step, root.point)):
        return ""
    kept = " (what a cache holds stands in the step of its token)" if first.slot is not None else ""
    return f"The first divergence is in {place(first)}{kept}."


def parting(report: Generation) -> str:
    """Where the two sides, each left to itself, would begin to say different things."""
    found = report.parted
    if report.beams > 1:
        return _beams(report, found)
    if found is None:
        return "Left to themselves, both sides choose the same tokens in every step."
    return (
        f"Left to themselves, the two sides part in {step_name(found.step)}{_choices(found)}: "
        + (_tie(report, found) if found.tie else _no_tie(report, found))
    )


def _beams(report: Generation, found: Parted | None) -> str:
    if found is None:
        return "On the reference's beams, both sides rank the same token first in every step."
    return (
        f"On the reference's beams, the two sides first rank another token first in "
        f"{step_name(found.step)}{_choices(found)}: "
        + (_tie(report, found) if found.tie else _no_tie(report, found))
    )


def _choices(found: Parted) -> str:
    one, other = (token(text, id_) for text, id_ in zip(found.texts, found.tokens, strict=True))
    row = f" of row {found.row}" if found.row else ""
    return f"{row}, where the reference chooses “{one}” and the candidate “{other}”"


def _margin(report: Generation, found: Parted) -> str:
    """How far apart the two choices are, and by whose logits."""
    true = any(layer.truth is not None for layer in report.layers)
    whose = "the truth's" if true else "the reference's"
    turned = ", the candidate's choice being the higher" if found.margin < 0 else ""
    return f"{whose} logits of the two are {number(abs(found.margin))} apart{turned}"


def _tie(report: Generation, found: Parted) -> str:
    return f"a tie. {_capital(_margin(report, found))}: honest noise alone may choose either."


def _no_tie(report: Generation, found: Parted) -> str:
    what = "a consequence of the drift" if report.verdict == "drift" else "no tie"
    text = f"{what}. {_capital(_margin(report, found))}, more than honest noise explains."
    return f"{text} {_whose_drift(found.patching)}".rstrip()


def _whose_drift(patching: Patching | None) -> str:
    """Which layer's drift it was, by restoring one after the other."""
    if patching is None or not patching.patches:
        return ""
    last = patching.stops_at
    if last is None:
        return "No restored layer brings the reference's choice back."
    names = [patch.point for patch in patching.patches]
    before = names[: names.index(last)]
    text = f"It is the drift of {cut(last, 80)}: with the reference's states there, the candidate "
    text += "chooses the same"
    return f"{text}; restored at {cut(before[-1], 80)}, it does not yet." if before else f"{text}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def advice(report: Generation) -> Iterator[Advice]:
    """What to run next."""
    command = report.command
    if command:
        yield Advice("Run it again", command)
    if report.verdict != "drift" or not command.startswith("driftwalk generate "):
        return
    if report.cause in ("cache", "shared") and report.cache != "none":
        yield Advice(
            "Feed all tokens again in each step: without a cache it should agree",
            f"{_without(command, '--cache')} --cache none",
        )
    if report.cause == "cache" and report.cache == "dynamic":
        yield Advice(
            "See whether a cache of fixed length has it, too",
            f"{_without(command, '--cache')} --cache static",
        )
    if report.cause in ("cache", "shared") and not report.invariance:
        yield Advice(
            "See what else it depends on: pieces, the batch, padding", f"{command} --invariance"
        )
    broken = {one.change for one in report.invariance if one.agreement == "broken"}
    if report.root_cause is None and "chunked = whole" in broken and not report.chunk:
        yield Advice("Find the layer: walk the prompt in pieces", f"{_without(command)} --chunk 4")
    if report.cause == "backend":
        fed_by = "--cache", "--steps", "--beams", "--chunk", "--draft"
        rest = _without(command, *fed_by).removeprefix("driftwalk generate ")
        at = report.root_cause
        inside = f" inside {cut(at.point.name, 80)}" if at is not None else ""
        yield Advice(
            f"It needs no cache: look{inside} in one run", f"driftwalk verify {rest} --depth module"
        )


def _without(command: str, *options: str) -> str:
    """A command without some options and their values, and without the matrix."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    kept, skip = [], False
    for word in words:
        if word == "--invariance":
            continue
        if (
            not skip
            and word not in options
            and not word.startswith(tuple(f"{o}=" for o in options))
        ):
            kept.append(word)
        skip = not skip and word in options
    return shlex.join(kept)
