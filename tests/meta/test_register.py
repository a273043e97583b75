"""Every number that a verdict or a cause depends on stands in the register of its wing."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from meta.loose_numbers import loose_numbers
from meta.sources import PACKAGES, ROOT, Source, all_sources, sources
from proving.register import REGISTERS, Entry, changed, entries, entries_in

NOT_TUNED = Path(__file__).with_name("not_tuned.txt")
KINDS = {"format", "resource", "layout", "default", "seed"}
WINGS = ("driftwalk", "driftwalk_backends")
"""Reports decide nothing."""
ONE = '"""A register."""\n\nfrom typing import Final\n\n'


def not_tuned() -> list[tuple[str, str]]:
    """The kind, and the file and name, of each line."""
    lines = (line.strip() for line in NOT_TUNED.read_text("utf-8").splitlines())
    split = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return [(kind, where) for kind, where in split]


def where(source: Source) -> str:
    return source.path.relative_to(ROOT).as_posix()


@cache
def loose() -> frozenset[str]:
    """All numbers of the source outside of the registers."""
    return frozenset(
        f"{where(source)}:{number}"
        for wing in WINGS
        for source in sources(wing)
        if where(source) not in REGISTERS.values()
        for number in loose_numbers(source.path.read_text("utf-8"))
    )


def used_names(text: str) -> set[str]:
    """Names that a file reads, or takes from a module; an import alone uses nothing."""
    nodes = list(ast.walk(ast.parse(text)))
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return read | {n.attr for n in nodes if isinstance(n, ast.Attribute)}


@cache
def used() -> frozenset[str]:
    """What any source beside the registers uses."""
    others = (source for source in all_sources() if where(source) not in REGISTERS.values())
    return frozenset().union(*(used_names(source.path.read_text("utf-8")) for source in others))


def test_no_tuned_number_stands_elsewhere() -> None:
    """A new number goes into the register of its wing; one that decides nothing, into the list."""
    assert sorted(loose() - {name for _, name in not_tuned()}) == []


def test_the_list_of_other_numbers_is_not_stale() -> None:
    listed = not_tuned()
    assert sorted({name for _, name in listed} - loose()) == []
    assert [name for name, count in Counter(name for _, name in listed).items() if count > 1] == []
    assert {kind for kind, _ in listed} <= KINDS


def test_names_are_unique() -> None:
    names = Counter(entry.name for entry in entries())
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_every_entry_says_what_it_is_and_is_used(entry: Entry) -> None:
    assert entry.words.endswith("."), f"{entry.file}:{entry.line}: what is {entry.name}?"
    assert entry.name in used(), f"{entry.file}:{entry.line}: nothing uses {entry.name}"


def test_a_register_holds_entries_alone_and_imports_nothing_of_the_project() -> None:
    for file in REGISTERS.values():
        body = ast.parse((ROOT / file).read_text("utf-8")).body
        imports = [ast.unparse(n) for n in body if isinstance(n, ast.Import | ast.ImportFrom)]
        assert imports == ["from __future__ import annotations", "from typing import Final"]
        rest = [n for n in body if not isinstance(n, ast.Import | ast.ImportFrom | ast.Expr)]
        assert all(isinstance(n, ast.AnnAssign) for n in rest), file
        assert all(ast.unparse(n.annotation) == "Final" for n in rest), file  # type: ignore[attr-defined]


def test_every_register_is_known() -> None:
    there = {
        path.relative_to(ROOT).as_posix()
        for wing in WINGS
        for path in PACKAGES[wing].rglob("constants.py")
    }
    assert there == set(REGISTERS.values())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("LIMIT = 0.7", {"LIMIT"}),
        ("LIMIT: float = 2.0**-8\nNONE = 0\nONE = 1.0", {"LIMIT"}),
        ("_A, _B = 1, (2, 3)", {"_B"}),
        ("TABLE = {'fp16': 1e-3}\nROOM = Room(*[1.5] * 3)", {"TABLE", "ROOM"}),
        ("def f(x, most=0.05):\n    return x > most", {"0.05"}),
        ("class A:\n    share: float = 0.3", {"0.3"}),
        ("def f(x):\n    return x.size < 64 or len(x) > 4 * x.width", {"64"}),
        ("def f(x):\n    return x < 16 * x.width", {"16"}),
        ("def f(x):\n    return x <= 2.0**-20", {"2.0 ** (-20)"}),
        ("def f(x):\n    return max(x, 1e-300) * 0.5 + x[:60].sum()", set()),
    ],
)
def test_loose_numbers_are_seen(text: str, found: set[str]) -> None:
    assert loose_numbers(text) == found


def test_an_import_is_no_use() -> None:
    assert "LIMIT" not in used_names("from .constants import LIMIT")
    assert "LIMIT" in used_names("from .constants import LIMIT\nprint(1 > LIMIT)")


def test_entries_are_read_with_their_words() -> None:
    (entry,) = entries_in(f'{ONE}A: Final = 2.0**-8\n"""One\nthing."""\n', "a.py", "judge")
    assert entry == Entry("A", "2.0**-8", "One thing.", "a.py", 5, "judge")
    (bare,) = entries_in(f"{ONE}A: Final = 1\n", "a.py", "judge")
    assert bare.words == ""


@pytest.mark.parametrize(
    ("value", "factor", "becomes"),
    [
        ("4.0", 2, "8.0"),
        ("2.0**-8", 0.5, "0.001953125"),
        ("64 * 2.0**-53", 2, repr(2.0**-46)),
        ("1 / 3", 3, "1.0"),
        ("-9999.0", 2, "-19998.0"),
        ("20", 1.01, "21"),
        ("20", 0.99, "19"),
        ("1", 0.5, "1"),
        ("1 << 10", 2, "2048"),
        ("(1, 2)", 2, "(2, 4)"),
        (
            '{\n    "é": (1.0, 2.0),  # words\n    "b": 3,\n}',
            2,
            '{\n    "é": (2.0, 4.0),  # words\n    "b": 6,\n}',
        ),
    ],
)
def test_one_value_is_changed_and_nothing_else(value: str, factor: float, becomes: str) -> None:
    text = f'{ONE}A: Final = {value}\n"""A."""\n\nB: Final = 4.0\n"""B."""\n'
    first, _ = entries_in(text, "a.py", "judge")
    made = changed(first, text, factor)
    assert made == text.replace(f"A: Final = {value}", f"A: Final = {becomes}")


def test_every_entry_can_be_changed() -> None:
    for entry in entries():
        text = (ROOT / entry.file).read_text("utf-8")
        made = changed(entry, text, 2)
        again = {one.name: one for one in entries_in(made, entry.file, entry.wing)}
        before = {one.name: one for one in entries_in(text, entry.file, entry.wing)}
        assert [name for name in before if again[name].value != before[name].value] == [entry.name]


def test_what_cannot_be_changed_is_refused() -> None:
    entry = entries()[0]
    with pytest.raises(ValueError, match="positive"):
        changed(entry, (ROOT / entry.file).read_text("utf-8"), float("inf"))
    with pytest.raises(ValueError, match="no entry"):
        changed(entry, ONE, 2)
