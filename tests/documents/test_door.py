"""What makes a forgotten escape harmless: the door of renderers, and Markdown as a type."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from documents.stored import STORED, name_of
from driftwalk.document import KINDS, TO_JSON, load
from driftwalk.registry import REPORT_INDEX, load_target
from driftwalk_reports.door import renderer, safe
from driftwalk_reports.marked import Markdown, code, table

EVIL = "<b>\x1b[31m|`\u202e"
SHOWN = r"<b>\x1b[31m|`\u202e"


@dataclass(frozen=True)
class Inner:
    text: str
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Outer:
    inner: Inner
    rows: tuple[Inner, ...]
    named: dict[str, str]


def test_every_renderer_stands_behind_the_door() -> None:
    """A new kind of result, or a new format, that forgets it is named here."""
    targets = [REPORT_INDEX[1]]
    for kind in KINDS.values():
        targets += [kind.text, *(target for _, target in kind.formats.values())]
    marked = {one for one in targets if hasattr(load_target(one), "__wrapped__")}
    assert set(targets) - marked == {TO_JSON}, "a stored file keeps what was said"


def test_texts_are_safe_wherever_they_are() -> None:
    inner = Inner(EVIL, (1.0, 2.0))
    made = safe(Outer(inner, (inner,), {EVIL: EVIL}))
    assert made == Outer(replace(inner, text=SHOWN), (replace(inner, text=SHOWN),), {SHOWN: SHOWN})
    assert made.inner.numbers is inner.numbers, "numbers are not walked through"
    assert safe(made) == made
    assert safe([("a", inner)])[0][1].text == SHOWN
    assert renderer(lambda one, *, more: one + more)(EVIL, more=EVIL) == SHOWN * 2


@pytest.mark.parametrize("path", STORED, ids=name_of)
def test_what_is_safe_is_not_copied(path: object) -> None:
    document = load(str(path))
    assert safe(document) is document


def test_a_plain_string_in_markdown_is_shown_and_not_obeyed() -> None:
    assert Markdown("**{}**").format("a*b") == r"**a\*b**"
    assert Markdown("\n\n").join(["# <b>", Markdown("# ours")]) == "#\u2060 &lt;b&gt;\n\n# ours"
    assert Markdown("a ") + "|" == r"a \|"
    assert Markdown("{}").format(code("a|b")) == r"<code>a\|b</code>"
    assert table(("a|", "b"), [("|", 1)], " r") == "| a\\| | b |\n|---|--:|\n| \\| | 1 |"
