"""Inputs, and ids among them, that a failure asks for by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from .by_name import wanted_for
from .config_sizes import TEXT
from .failures import Failure
from .shape_rules import Guess
from .subject import Subject

_NOT_INPUTS = ("self", "labels", "kwargs")
_NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4}


def missing(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """An input that the message names, or that is None in a line that failed."""
    spoken = re.sub(r"(?<=[a-z]) (?=mask\b|values\b|ids\b|features\b)", "_", failure.message)
    names = re.findall(r"[a-z]\w*", spoken)
    if re.search(r"None(Type)?\b", failure.message):
        names += _without_value(failure)
    for name in dict.fromkeys(names):
        if name in wanted or name in _NOT_INPUTS or name not in subject.parameters:
            continue
        if name.endswith("inputs_embeds") and name.replace("inputs_embeds", "input_ids") in wanted:
            continue
        if (one := wanted_for(subject, name, wanted)) is not None:
            return {**wanted, name: one} | _masked(subject, name, wanted)
    return None


def _masked(subject: Subject, mask: str, wanted: Guess) -> Guess:
    """What a mask is for, where it is not given yet: `seen_embeds` for `seen_attention_mask`."""
    kind = mask.removesuffix("_mask").removesuffix("_attention")
    names = (f"{kind}_{ending}" for ending in ("embeds", "hidden_states", "features", "values"))
    if not mask.endswith("_mask") or kind == "attention":
        return {}
    for name in names:
        if name in wanted or name not in subject.parameters:
            continue
        if (one := wanted_for(subject, name, wanted)) is not None:
            return {name: one}
    return {}


def _without_value(failure: Failure) -> Iterator[str]:
    """Names that are None in the lines that failed, under the names they were handed on by."""
    handed: list[str] = []
    for frame in failure.frames:
        for inner in list(handed):
            outer = re.findall(rf"\b{inner}\s*=\s*([A-Za-z_]\w*)\s*[,)\n]", frame.call)
            handed += [name for name in outer if frame.names.get(name, 0) is None]
        mentioned = [name for name in frame.mentioned if frame.names.get(name, 0) is None]
        handed = handed or mentioned
        yield from (*handed, *mentioned)


def instead(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Another input in the place of one that the model refuses: states in the place of ids."""
    asked = re.search(r"(?i)\bpass `?(\w+)`? instead", failure.message)
    refused = re.search(
        r"`?(\w+)`? (?:is|are) (?:not (?:expected|supported|accepted|allowed)"
        r"|expected to be `?None)",
        failure.message,
    )
    spoken = set(re.findall(r"\w+", failure.message))
    if asked is None and refused is None:
        return None
    dropped = [n for n in wanted if n in spoken and not (asked and n == asked.group(1))]
    name = asked.group(1) if asked else ""
    if refused is not None and not asked:
        name = refused.group(1).replace("input_ids", "inputs_embeds")
    if not dropped or name in wanted or name not in subject.parameters:
        return None
    left = {n: o for n, o in wanted.items() if n not in dropped}
    one = wanted_for(subject, name, left)
    return None if one is None else {name: replace(one, main=True), **left}


def named_token(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Texts in which every row has an id that the message calls by its name: the end, say."""
    ids = wanted.get("input_ids")
    if ids is None or ids.placeholders:
        return None
    message = failure.message.lower()
    if "size 0" in message and failure.frames:  # none was there to be taken: the line names it
        message += failure.frames[0].line.lower()
    many = re.search(r"exactly (\w+)", message)
    times = _NUMBERS.get(many.group(1), 1) if many else 1
    for word in ["eos"] if "eos" in message else re.findall(r"(\w+)[ _]tokens?\b", message):
        short = {"separator": "sep", "mask": "mask"}.get(word, word)
        token = subject.number(f"{short}_token_id", near=TEXT)
        if token is not None:
            return {**wanted, "input_ids": replace(ids, once=token, times=times)}
    return None
