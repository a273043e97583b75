"""The search for a default probe: a first guess, a try, and the next guess by what the try said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from driftwalk.dtypes import Array
from driftwalk.errors import ProbeError

from ..lending import is_large
from ..loaded import LoadedModel
from . import plain
from .by_name import first_guess, own_dummies
from .failures import Failure, tried
from .media import without_media
from .repair import repairs
from .shape_rules import Guess
from .subject import Subject
from .wanted import made

_SURE = {"input_ids", "attention_mask"}
"""Inputs of a text model, which every such model takes."""

MOST_TRIES = 12
"""Tries that start from one first guess."""
MOST_ALIKE = 4
"""Tries that may fail with the same words: what no guess changes is not about the inputs."""


def default_inputs(model: LoadedModel, batch: int, length: int, seed: int) -> dict[str, Array]:
    """Seeded inputs under the names forward takes them, which the model was seen to take."""
    if batch < 1 or length < 1:
        raise ProbeError(f"batch and length must be 1 or more; got {batch} and {length}.")
    subject = Subject(model.module, model.config, batch, length, model.folder)
    failures: list[tuple[Guess, Failure]] = []
    for wanted in _starts(subject):
        inputs, failure = _search(subject, wanted, seed, model)
        if inputs is not None:
            return inputs
        if failure is not None:
            failures.append((wanted, failure))
    if failures and _is_text(subject, failures[0][0]):
        # A model of texts that takes no text is at fault itself: its run will say so.
        return made(failures[0][0], seed)
    raise ProbeError(_what_is_missing(subject, *failures[:1]))


def _is_text(subject: Subject, wanted: Guess) -> bool:
    ids = {"input_ids", "attention_mask", "decoder_input_ids"}
    return subject.config is not None and set(wanted) <= ids and set(subject.required) <= ids


def _starts(subject: Subject) -> Iterator[Guess]:
    """First guesses, one after the other: all that a model takes, then without some media."""
    first = plain.first_guess(subject) if subject.config is None else first_guess(subject)
    if first:
        yield first
        yield from without_media(subject, first)
    if dummies := own_dummies(subject):
        yield dummies


def _search(
    subject: Subject, wanted: Guess, seed: int, model: LoadedModel
) -> tuple[dict[str, Array] | None, Failure | None]:
    """Inputs that the model takes, or its first answer.

    What is not sure to fit is tried on the CPU: an index out of range stops a GPU for good.
    """
    waiting, seen, first = [wanted], [wanted], None
    said: Counter[str] = Counter()
    for _ in range(MOST_TRIES):
        if not waiting or MOST_ALIKE in said.values():
            break
        guess = waiting.pop(0)
        inputs = made(guess, seed)
        if guess is wanted and inputs.keys() <= _SURE and is_large(model.module):
            return inputs, None  # a run of its own takes long, and whoever runs it will say more
        own = guess is wanted and not is_large(model.module)
        failure = tried(model.module if own else model.on_host(), inputs)
        if failure is None:
            return inputs, None
        first = first or failure
        said[failure.line] += 1
        fresh = [better for better in repairs(subject, failure, guess) if better not in seen]
        seen += fresh
        # Depth first: a repair that another failure follows is nearer than what was put off.
        waiting = fresh + waiting
    return None, first


def _what_is_missing(subject: Subject, first: tuple[Guess, Failure] | None = None) -> str:
    name = type(subject.module).__name__
    takes = ", ".join(subject.parameters) or "nothing"
    give = "Give one, as probe={name: array} or --probe FILE."
    if first is None:
        return f"No default probe can be made for {name}: its forward takes {takes}. {give}"
    wanted, failure = first
    shapes = ", ".join(f"{n} {list(array.shape)}" for n, array in made(wanted, 0).items())
    lacking = [n for n in subject.required if n not in wanted]
    needs = f" Nothing is known of {', '.join(lacking)}, which it needs." if lacking else ""
    return (
        f"No default probe was found for {name}: given {shapes}, it failed with {failure.line}."
        f"{needs} Its forward takes {takes}. {give}"
    )
