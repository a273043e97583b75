"""Markdown, as a parser of it reads it: whole tables, literal names, no HTML but our own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from driftwalk.result import Report
from driftwalk_reports import markdown
from driftwalk_reports.numbers import clean
from driftwalk_reports.tolerances import glob_of
from unit.reports import cases

OWN_HTML = {"<code>", "</code>", "<sub>", "</sub>"}
# Each would be markup somewhere: a list, a rule, a heading, a quote, a link, code, a table, a cell.
STARTS = ("- a", "+ a", "1. a", "2) a", "---", "===", "# a", "    a", "> a", "| a |", "\ta", "~~~")
BLOCKS = ("<div a", "<script", "<!-- a", "<?a", "</p")
INLINE = (
    "[a](http://b.example)",
    "![a](b)",
    "<b>a</b>",
    "<http://b.example>",
    "`a`",
    "``",
    "a | b \\| c",
    "a \\",
    "**a** __b__ ~~c~~",
    "&lt; &#35; &copy;",
    "$x$",
    "a\nb\n\n# c",
)


def parse(text: str, html: bool) -> list[Token]:
    return MarkdownIt("gfm-like", {"html": html, "linkify": False}).disable("linkify").parse(text)


def flat(tokens: list[Token] | None) -> Iterator[Token]:
    for token in tokens or ():
        yield token
        yield from flat(token.children)


def words(tokens: list[Token]) -> str:
    """The text a reader sees, without what we add to keep GitHub from seeing more in it."""
    parts = [
        t.content
        for t in flat(tokens)
        if t.type in ("text", "text_special", "code_inline", "fence")
    ]
    return "".join(parts).replace("\u2060", "")


def named(name: str) -> Report:
    """A report in which all that can be named is named so, and the first point drifts."""
    reference = {name: cases.states()["embed"], "b": cases.states()["norm"]}
    candidate = {name: reference[name] + 1, "b": reference["b"]}
    return cases.make(reference, candidate, model=name, command=name, notes=(name,), modules="{}")


@pytest.mark.parametrize("html", [True, False])
def test_every_row_of_a_table_has_as_many_cells(report: Report, html: bool) -> None:
    check_tables(markdown.render(report), html)


def check_tables(text: str, html: bool) -> None:
    """Counted in the source: a parser fills up short rows, and drops what is too much."""
    lines = text.splitlines()
    for token in parse(text, html):
        if token.type == "table_open":
            assert token.map is not None
            rows = lines[slice(*token.map)]
            counts = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows}
            assert len(counts) == 1, rows
            assert len(rows) > 2


@pytest.mark.parametrize("html", [True, False])
@pytest.mark.parametrize("name", [*STARTS, *BLOCKS, *INLINE])
def test_names_are_shown_and_not_obeyed(name: str, html: bool) -> None:
    text = markdown.render(named(name))
    check_tables(text, html)
    tokens = parse(text, html)
    shown = re.sub(r"\s+", " ", words(tokens))
    wanted = re.sub(r"\s+", " ", clean(name)).strip()
    plain = parse(markdown.render(named("plain")), html)
    # A rule that would pass has the name as a glob.
    rule = glob_of(wanted)
    as_glob = 0 if rule == wanted else shown.count(rule)
    assert as_glob + shown.count(wanted) >= words(plain).count("plain"), shown
    html_found = {t.content for t in flat(tokens) if t.type in ("html_inline", "html_block")}
    assert html_found <= OWN_HTML
    kinds = {t.type for t in flat(tokens)}
    usual = {t.type for t in flat(plain)} | {"text_special", "html_inline"}
    assert kinds <= usual, "a name adds no element of any kind"
    assert [t.type for t in tokens].count("heading_open") == 1


@pytest.mark.parametrize("html", [True, False])
def test_a_hostile_report_is_shown_literally(html: bool) -> None:
    tokens = parse(markdown.render(cases.hostile()), html)
    shown = words(tokens)
    for name in cases.NAMES:
        assert clean(f"{name}{cases.HOSTILE}") in shown
    html_found = {t.content for t in flat(tokens) if t.type in ("html_inline", "html_block")}
    assert html_found <= OWN_HTML


def test_addresses_do_not_become_links() -> None:
    """GitHub makes links of bare addresses, which no backslash prevents."""
    text = markdown.render(named("see https://b.example, WWW.b.example and a@b.example"))
    outside = re.sub(r"`[^`]*`", "", text)
    assert "b.example" in outside
    assert not re.search(r"https?://|www\.|@b", outside, re.IGNORECASE)


def test_the_first_divergence_comes_first() -> None:
    tokens = parse(markdown.render(cases.drifting()), html=False)
    kinds = [token.type for token in tokens if token.type in ("heading_open", "table_open")]
    assert kinds[0] == "heading_open"
    texts = [token.content for token in tokens if token.type == "inline"]
    assert "layer.3" in texts[1]
    assert "first divergence" in texts[1]
    headers = texts[texts.index("") : texts.index("module")]
    assert [h for h in headers if "**first divergence**" in h] == [
        "✗ `layer.3` ⟵ **first divergence**"
    ]
    assert texts.index("point") > texts.index("would pass"), "the table of all comes after"


def test_it_fits_a_comment_whatever_the_names() -> None:
    """65,536 characters are GitHub's limit, and every one of these is doubled by an escape."""
    name = "*" * 60_000
    states = {f"{i}{name}": a for i, a in enumerate(cases.states().values())}
    wrong = {n: a + 1 for n, a in states.items()}
    text = markdown.render(cases.make(states, wrong, model=name, command=name, notes=(name,) * 99))
    assert len(text.encode()) < 64_000
    check_tables(text, html=True)
