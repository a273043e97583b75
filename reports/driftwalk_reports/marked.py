"""Markdown that foreign text cannot become a part of: what is filled in or joined is escaped.

`Markdown("**{}**").format(text)` escapes `text` unless it is `Markdown` itself. Only templates
that stand in the source are made `Markdown`; a plain string that was forgotten is shown literally.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from markupsafe import Markup

from driftwalk.document import Document

from .door import renderer
from .layout import D, Fact, Head, V
from .numbers import cut

_SPECIAL = re.compile(r"([\\`*_\[|~$#@])")
_PLAIN_CODE = re.compile(r"[^`|\\<>&]*")
_ADDRESS = re.compile(r"(?:https?|ftp):(?=//)|\bwww(?=\.)", re.IGNORECASE)
_OPENING = re.compile(r"^(\d*)([-+=.)])")


LONGEST_COMMAND = 4000
"""Of a command that a comment shows; one cut short would be another."""


class Markdown(Markup):
    """Text that is Markdown already; other text is escaped where it meets this."""

    @classmethod
    def escape(cls, s: Any, /) -> Markdown:
        return s if isinstance(s, Markdown) else escaped(str(s))


def escaped(text: str, most: int = 400) -> Markdown:
    """Foreign text that starts no markup, mention, reference or link."""
    safe = cut(text, most).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    safe = _SPECIAL.sub(r"\\\1", safe)
    # GitHub looks for @name, #1 and addresses after Markdown is done: a backslash is no help.
    safe = safe.replace("\\@", "@\u2060").replace("\\#", "#\u2060")
    return Markdown(_ADDRESS.sub("\\g<0>\u2060", safe))


def paragraph(text: str) -> Markdown:
    """Foreign text at the start of a line, where more than elsewhere is markup."""
    return Markdown(_OPENING.sub(r"\1\\\2", str(escaped(text)).strip()))


def code(text: str, most: int = 200) -> Markdown:
    """Foreign text in a code span; as HTML where backticks or pipes would end span or cell."""
    short = cut(text, most)
    if not short.strip():
        return Markdown("")
    if _PLAIN_CODE.fullmatch(short):
        return Markdown(f"`{short}`")
    return Markdown("<code>{}</code>").format(escaped(short, most))


def _command(line: str) -> Markdown:
    """A line to be copied as it is, between fences that nothing in it can close.

    Not every reader of Markdown leaves HTML between fences alone.
    """
    if "<" in line:
        return code(line, LONGEST_COMMAND)
    return _fenced(line, "sh")


def block(lines: Sequence[str], language: str) -> Markdown:
    """Lines to be copied as they are; a span each where they hold what could be taken for HTML."""
    if any("<" in line for line in lines):
        return Markdown("\n\n").join(code(line, LONGEST_COMMAND) for line in lines if line.strip())
    return _fenced("\n".join(lines), language)


def _fenced(text: str, language: str) -> Markdown:
    ticks = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, ticks + 1)
    return Markdown(f"{fence}{language}\n{text}\n{fence}")


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], right: str = "") -> Markdown:
    """A table; `right` has an `r` for each column that is set to the right."""
    sides = [("--:" if side == "r" else "---") for side in right.ljust(len(titles))]
    lines = [_row(titles), Markdown(f"|{'|'.join(sides)}|"), *map(_row, rows)]
    return Markdown("\n").join(lines)


def _row(cells: Sequence[object]) -> Markdown:
    return Markdown("| {} |").format(Markdown(" | ").join(map(Markdown.escape, cells)))


def facts(pairs: Iterable[Fact]) -> Markdown:
    """Labels and their values on one line."""
    return Markdown(" · ").join(
        Markdown("{} {}").format(label, code(value)) for label, value in pairs
    )


def foot(view: Head[Document]) -> Iterable[Markdown]:
    """Notes, how to run it again, what made it and when."""
    for note in view.notes:
        yield Markdown("> {}").format(paragraph(note))
    if 0 < len(view.document.command) <= LONGEST_COMMAND:
        yield Markdown("Reproduce:")
        yield _command(view.document.command)
    yield Markdown("<sub>{}, {}</sub>").format(view.tool, view.document.created)


def markdown_renderer(
    look: Callable[[D], V], sections: Callable[[V], Iterable[Markdown]]
) -> Callable[[D], str]:
    """What writes a document as a pull-request comment."""
    return renderer(lambda document: whole(sections(look(document))))


def whole(parts: Iterable[Markdown]) -> str:
    """Paragraphs, with an empty line between."""
    return str(Markdown("\n\n").join(parts)) + "\n"
