"""A search that was stopped goes on from its result, if that is of the same question."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from ..document import KINDS, Document
from ..document import read as read_document
from ..errors import UsageError
from ..files import read_json

Result = TypeVar("Result", bound=Document)


def earlier(kind: type[Result], given: object) -> Result | None:
    """An earlier result: itself, its file, or the folder that holds it."""
    if given is None or isinstance(given, kind):
        return given
    name = KINDS[kind.kind].formats["json"][0]
    if not isinstance(given, str | Path):
        raise UsageError(f"resume={given!r}: expected a {name}, or what made it returned.")
    path = Path(given)
    return read_document(kind, read_json(path / name if path.is_dir() else path))


def refuse_others(asked: Iterable[tuple[str, object, object]]) -> None:
    """An error where an earlier result is of another question: what, as it is now, as it was."""
    for what, now, then in asked:
        if now != then:
            raise UsageError(
                f"The result to resume is of another {what}: it was {then or 'not said'}, and now "
                f"it is {now}. Leave --resume out to begin anew."
            )
