"""No text of any result can become markup, a command of a terminal, or a formula, in any format.

A field that a renderer forgets to make safe is found here: every text of every kind is hostile.
"""

from __future__ import annotations

import csv
import io
import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from documents.hostile import ATTACKS, PARTS, poisoned, text_fields
from documents.stored import STORED, name_of
from driftwalk.document import KINDS, Document, from_dict, load, to_json
from driftwalk.registry import load_target
from driftwalk_reports.index import render as render_index
from unit.reports.test_markdown import OWN_HTML, check_tables, flat, parse

OURS = re.compile(r"\x1b\[[0-9;]*m")
FILES = [path for path in STORED if path.stem not in ("job", "nan", "pass")]
ONE_OF_A_KIND = [path for path in FILES if path.stem != "drift"]
every_attack = pytest.mark.parametrize("attack", ATTACKS)
every_file = pytest.mark.parametrize("path", FILES, ids=name_of)


class Elements(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.bad: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        for name, value in attrs:
            if name.startswith("on") or (
                name in ("href", "src") and ":" in (value or "data:")[:12]
            ):
                self.bad += [f"{tag} {name}={value}"] if value != "data:," else []

    def handle_comment(self, data: str) -> None:
        self.bad.append(ascii(f"comment {data}"))


def check_page(text: str, plain: str) -> None:
    seen, usual = Elements(text), Elements(plain)
    assert seen.bad == []
    assert set(seen.found) <= set(usual.found) | {"a"}
    for once in ("script", "style", "title", "h1", "main", "img"):
        assert seen.found.count(once) == usual.found.count(once), once


def check_markdown(text: str, plain: str) -> None:
    tokens, usual = parse(text, html=True), parse(plain, html=True)
    check_tables(text, html=True)
    html = {t.content for t in flat(tokens) if t.type in ("html_inline", "html_block")}
    assert html <= OWN_HTML
    kinds = {t.type for t in flat(usual)} | {"text_special", "html_inline", "code_inline"}
    assert {t.type for t in flat(tokens)} <= kinds
    for block in ("heading_open", "table_open", "blockquote_open", "tr_open", "td_open"):
        counts = [[t.type for t in flat(one)].count(block) for one in (tokens, usual)]
        assert counts[0] <= counts[1], block


def check_csv(text: str, plain: str) -> None:
    rows, usual = (list(csv.reader(io.StringIO(one))) for one in (text, plain))
    assert [len(row) for row in rows] == [len(row) for row in usual]
    cells = [cell for row in rows for cell in row if not re.fullmatch(r"-?[\d.einfa+-]*", cell)]
    assert [cell for cell in cells if cell.lstrip().startswith(tuple("=+-@"))] == []


def check_junit(text: str, plain: str) -> None:
    tags = [[item.tag for item in ET.fromstring(one).iter()] for one in (text, plain)]
    assert tags[0] == tags[1]


def check_pytest(text: str, plain: str) -> None:
    assert len(json.loads(text)["benchmarks"]) == len(json.loads(plain)["benchmarks"])


CHECKS: dict[str, Any] = {
    "html": check_page,
    "md": check_markdown,
    "csv": check_csv,
    "junit": check_junit,
    "pytest": check_pytest,
}


@cache
def plain_texts(path: Path) -> dict[str, str]:
    """The same with harmless texts, which are no longer the words they were, either."""
    document = poisoned(load(path), lambda text: f"qq{text}qq")
    assert document is not None
    formats = KINDS[document.kind].formats
    return {n: load_target(formats[n][1])(document) for n in CHECKS if n in formats}


def check_all(document: Document, plain: dict[str, str]) -> None:
    kind = KINDS[document.kind]
    for name, usual in plain.items():
        text = load_target(kind.formats[name][1])(document)
        assert [part for part in PARTS if part in text] == [], name
        CHECKS[name](text, usual)
    for color in (False, True):
        text = load_target(kind.text)(document, color=color)
        assert [part for part in PARTS if part in text] == []
        assert "\x1b" not in (OURS.sub("", text) if color else text)
        assert not re.search(r"[\x00-\x09\x0b-\x1a\x1c-\x1f\x7f-\x9f]", text)


def check_raw(document: Document) -> None:
    """Without a look at the structure: nothing of the attack is there as it was."""
    kind = KINDS[document.kind]
    renderers = {name: target for name, (_, target) in kind.formats.items() if name in CHECKS}
    for name, target in (renderers | {"text": kind.text}).items():
        text = load_target(target)(document)
        assert [part for part in PARTS if part in text] == [], name
        if name in ("html", "md", "junit"):
            assert not re.search(r"<script>alert|<img src=x|<svg onload", text), name
        if name == "md":
            check_tables(text, html=True)


@every_attack
@every_file
def test_every_text_at_once(path: Path, attack: str) -> None:
    document = load(path)
    evil = poisoned(document, lambda text: f"{ATTACKS[attack]}{text}{ATTACKS[attack]}")
    assert evil is not None
    check_all(evil, plain_texts(path))


@pytest.mark.parametrize("path", ONE_OF_A_KIND, ids=name_of)
def test_one_field_at_a_time(path: Path) -> None:
    """What one hostile field changes another may hide; so each alone, with all attacks in it."""
    document, all_of_it = load(path), " ".join(ATTACKS.values())
    fields = text_fields(document)
    assert len(fields) > 10
    for field in fields:
        evil = poisoned(document, lambda text: f"{text}{all_of_it}", only=field)
        if evil is not None:
            check_raw(evil)


def test_the_index_of_hostile_results() -> None:
    report = load(next(path for path in FILES if path.stem == "drift"))
    for attack in ATTACKS.values():
        evil = poisoned(report, lambda text, more=attack: f"{more}{text}")
        text = render_index([("a/report.html", evil), ("b/report.html", report)])
        check_page(text, render_index([("a/report.html", report), ("b/report.html", report)]))
        assert [part for part in PARTS if part in text] == []


@every_file
def test_the_stored_result_keeps_every_text_as_it_was(path: Path) -> None:
    evil = poisoned(load(path), lambda text: f"{text}{' '.join(ATTACKS.values())}")
    assert evil is not None
    assert repr(from_dict(json.loads(to_json(evil)))) == repr(evil)
