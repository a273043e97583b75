"""The terminal: a tree that leads to the mark, numbers in columns, the sentence last."""
# ruff: noqa: RUF001 - the typographic signs are meant

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.text import Text

from driftwalk.layer_drift import Culprit
from driftwalk.result import Report
from driftwalk_reports import html, markdown, sentences, terminal
from driftwalk_reports.door import safe
from driftwalk_reports.rows import to_rows
from driftwalk_reports.tree import RunLine, tree
from unit.reports import cases

FIRST, ROOT = "<--- first divergence", "<--- root cause"
WIDTHS = (60, 80, 100, 200)


def drawn(report: Report, width: int = 100) -> list[str]:
    """The lines of the tree alone."""
    lines = terminal.render(report, width=width).splitlines()
    start = next(
        i
        for i, line in enumerate(lines)
        if re.match(r"model( +rel L2( +from truth)? +used)?$", line)
    )
    return lines[start + 1 : lines.index("", start)]


def walked(names: tuple[str, ...], wrong: tuple[str, ...]) -> Report:
    reference = cases.states(names)
    candidate = cases.noisy(reference)
    for name in wrong:
        candidate[name] = candidate[name] + np.float32(0.5)
    return cases.make(reference, candidate)


def test_a_part_of_a_walk_is_drawn_with_its_module() -> None:
    report = walked(("layer.0", "layer.1", "logits"), ("layer.1", "logits"))
    layers = [
        dataclasses.replace(
            layer, point=dataclasses.replace(layer.point, module=f"path.to.{letter}")
        )
        for layer, letter in zip(report.layers, "abc", strict=True)
    ]
    lines = drawn(dataclasses.replace(report, layers=tuple(layers)))
    assert "layer.0 (path.to.a)" in lines[0]
    assert "layer.1 (path.to.b)" in lines[1]
    assert "path.to.c" not in lines[2]


def with_culprit(sentence: str, cause: str = "layer.3") -> Report:
    culprit = Culprit("transformer.h.3.mlp.c_proj", 8066.0, 11, None, sentence)
    return dataclasses.replace(cases.drifting(), cause=cause, culprit=culprit)


def test_the_last_line_is_the_sentence(report: Report) -> None:
    for width in (40, *WIDTHS):
        last = terminal.render(report, width=width).splitlines()[-1]
        assert last[2:] == sentences.headline(safe(report))
        assert last[0] in "✓✗?"


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_but_the_sentence_is_wider_than_asked(report: Report, width: int) -> None:
    lines = terminal.render(report, width=width).splitlines()
    assert max(Text(line).cell_len for line in lines[:-1]) <= width


def test_the_tree_marks_first_divergence_and_root_cause() -> None:
    lines = drawn(cases.blamed())
    (first,) = [x for x in lines if x.endswith(FIRST)]
    (root,) = [x for x in lines if x.endswith(ROOT)]
    assert re.fullmatch(rf"├─ layer\.3 +✗ +0\.00327 +356 × +{FIRST}", first)
    assert re.fullmatch(rf"├─ layer\.1 +✓ +2\.09e-07 +2 % +{ROOT}", root)
    assert [re.split(r"[ ─]+", line)[1] for line in lines] == list(cases.NAMES)


def test_without_a_mark_there_is_a_table() -> None:
    text = terminal.render(cases.passing())
    assert "<---" not in text
    assert "├─" not in text
    assert "max abs" in text.split("verdict")[0]
    assert "max abs" not in terminal.render(cases.passing(), width=32).split("verdict")[0]


def test_marks_without_room_stand_below() -> None:
    report = with_culprit("", cause="layer.3")
    (line,) = [x for x in drawn(report, width=100) if FIRST in x]
    assert line.endswith(f"{FIRST}  {ROOT}")
    narrow = drawn(report, width=50)
    at = next(i for i, x in enumerate(narrow) if FIRST in x)
    assert narrow[at].split("  ", 1)[0] == "│"
    assert narrow[at].endswith(f"{FIRST}  {ROOT}")
    assert "layer.3" in narrow[at - 1]


def test_the_culprit_hangs_below_the_root_cause() -> None:
    did = "introduced 8066× the yardstick, channel 11"
    report = with_culprit(f"layer.3 mlp.c_proj: {did}")
    lines = drawn(report)
    at = next(i for i, line in enumerate(lines) if ROOT in line)
    assert lines[at + 1] == f"│  └─ mlp.c_proj  {did}"
    assert lines[at + 2].startswith("├─ layer.4")
    same = drawn(with_culprit(f"layer.3: {did}"))
    assert same[at + 1] == f"│  └─ {did}"


def test_the_culprit_is_named_from_where_it_hangs() -> None:
    names = ("embed", "layer.0.attn", "layer.0.mlp", "layer.0", "logits")
    culprit = Culprit("h.0.mlp.c_proj", 9.0, None, None, "layer.0 mlp.c_proj: did it")
    report = dataclasses.replace(
        walked(names, ("layer.0.mlp", "layer.0")), cause="layer.0.mlp", culprit=culprit
    )
    assert "│     └─ c_proj  did it" in drawn(report)


def test_a_long_model_is_summed_up_around_the_mark() -> None:
    names = ("embed", *(f"layer.{i}" for i in range(30)), "norm", "logits")
    lines = drawn(walked(names, names[21:]), width=200)
    labels = [
        "├─ embed … layer.18",
        "├─ layer.19",
        "├─ layer.20",
        "├─ layer.21",
        "└─ layer.22 … logits",
    ]
    assert [re.split(r"  +", line)[0] for line in lines] == labels
    assert re.search(r"✓ 20 points within tolerance, at most \d % of the allowance$", lines[0])
    assert re.search(r"✗ 10 points beyond, up to \d+ × the allowance$", lines[-1])
    narrow = drawn(walked(names, names[21:]), width=64)
    assert [re.split(r"  +", line)[0] for line in narrow] == labels, "clauses go, lines stay"
    assert narrow[0].endswith("✓ 20 points within tolerance")


def test_every_point_is_counted_once(report: Report) -> None:
    """Nothing is left out without a word: the lines add up to all points."""
    rows = to_rows(report)
    lines = tree(rows)
    counts = [
        int(re.match(r"(?:\d+ of )?(\d+)", line.clauses[0])[1])  # type: ignore[index]
        if isinstance(line, RunLine)
        else 1
        for line in lines
        if line.branch in ("├─ ", "└─ ")
    ]
    flat = all("." not in row.name or row.name.startswith("layer.") for row in rows)
    assert not flat or sum(counts) == len(rows)


def test_encoder_and_decoder_are_branches() -> None:
    encoder = ("encoder.embed", *(f"encoder.layer.{i}" for i in range(3)))
    decoder = ("decoder.embed", *(f"decoder.layer.{i}" for i in range(3)), "logits")
    lines = drawn(walked(encoder + decoder, ("decoder.layer.1", "decoder.layer.2", "logits")))
    assert re.match(r"├─ encoder +✓ 4 points within tolerance", lines[0])
    assert re.match(r"├─ decoder +✗ 2 of 4 points beyond", lines[1])
    (first,) = [line for line in lines if FIRST in line]
    assert first.startswith("│  ├─ layer.1 ")
    assert lines[-1].startswith("└─ logits")


def test_parts_of_a_layer_hang_below_it() -> None:
    parts = ("ln", "attn.q", "attn.k", "attn", "mlp")
    names = tuple(f"layer.{i}{p}" for i in range(4) for p in (*(f".{p}" for p in parts), ""))
    lines = drawn(walked(names, ("layer.2.attn.k", "layer.2.attn", "layer.2", "layer.3")))
    labels = [re.split(r"  +(?=[✓✗])", line)[0] for line in lines]
    assert labels == [
        "├─ layer.0",
        "├─ layer.1",
        "├─ layer.2",
        "│  ├─ ln",
        "│  ├─ attn",
        "│  │  ├─ q",
        "│  │  └─ k",
        "│  └─ mlp",
        "└─ layer.3",
    ]
    assert FIRST in lines[6]


def test_a_good_point_does_not_hide_a_bad_one_inside() -> None:
    names = tuple(f"layer.{i}{part}" for i in range(3) for part in (".attn", ""))
    lines = drawn(walked(names, ("layer.0.attn", "layer.2.attn")))
    (last,) = [line for line in lines if line.startswith("└─ layer.2")]
    assert "✗ 1 of 2 points beyond" in last


def test_words_where_there_is_no_number() -> None:
    lines = drawn(cases.missing())
    assert re.fullmatch(rf"├─ layer\.4 +∅ missing  {FIRST}", lines[5])
    assert re.fullmatch(r"├─ layer\.5 +∅ missing", lines[6])
    assert re.search(rf"! 3 NaN/Inf  {FIRST}$", drawn(cases.nonfinite())[3])
    assert re.search(rf"≠ shape  {FIRST}$", drawn(cases.shape())[1])
    (first, second) = (line for line in drawn(cases.extra()) if "+ extra" in line)
    assert re.fullmatch(rf"├─ layer\.4 +\+ extra  {FIRST}", first)
    assert re.fullmatch(r"├─ layer\.5 +\+ extra", second)


def test_a_drift_fits_one_screen() -> None:
    names = tuple(f"layer.{i}.{p}" for i in range(900) for p in ("attn.q", "attn.k", "mlp"))
    report = walked(names, names[100::7])
    assert len(terminal.render(report, width=80).splitlines()) <= 40
    assert len(terminal.render(cases.blamed(), width=100).splitlines()) <= 50


def test_all_facts_of_a_marked_point_are_there() -> None:
    report = cases.drifting()
    text = " ".join(terminal.render(report).split())
    (row,) = (row for row in to_rows(report) if row.name == "layer.3")
    assert len(row.facts) > 15
    for label, value in row.facts:
        assert f"{label} {value}" in text


def test_names_that_play_tree() -> None:
    """Dots everywhere, nothing between them, depth without end: shown, and no deeper than four."""
    names = ("", ".", "...", "a" + ".b" * 500, "├─ x.1.2", "層.0.注意" * 30)
    for width in WIDTHS:
        lines = drawn(walked(names, names[2:]), width)
        assert all(Text(line).cell_len <= width for line in lines)
        assert all(len(re.match(r"[│├└─ ]*", line)[0]) <= 16 for line in lines)  # type: ignore[index]


def test_a_chain_of_parts_is_one_name() -> None:
    lines = drawn(walked(("model.h.0.out", "model.h.1.mlp.fc", "head.out"), ("head.out",)))
    assert [re.split(r"  +(?=[✓✗])", line)[0] for line in lines] == [
        "├─ model",
        "└─ head.out",
    ]
    lines = drawn(walked(("model.h.0.out", "model.h.1.mlp.fc", "head.out"), ("model.h.0.out",)))
    assert [re.split(r"  +(?=[✓✗])", line)[0] for line in lines] == [
        "├─ model",
        "│  ├─ h.0.out",
        "│  └─ h.1.mlp.fc",
        "└─ head.out",
    ]


def test_the_tree_is_no_deeper_than_one_can_follow() -> None:
    names = tuple("a" + ".b" * depth for depth in (3000, 40, 9, 5, 4, 3, 2, 1, 0))
    lines = drawn(walked(names, names))
    assert max(line.index("─") for line in lines if "─ " in line) <= 3 * 4
    assert sum("✗" in line for line in lines) == len(names)


def test_the_sparkline_rises_where_the_drift_is() -> None:
    (line,) = [x for x in terminal.render(cases.drifting()).splitlines() if "log scale" in x]
    bars = line.split()[0]
    assert len(bars) == 9
    assert max(bars[:4]) < min(bars[4:])


def test_colour_only_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, coloured = (terminal.render(cases.drifting(), color=color) for color in (False, True))
    assert "\x1b[" not in plain
    assert "\x1b[1;31m" in coloured
    shown = Text.from_ansi(coloured).plain.splitlines()
    assert [line.rstrip() for line in shown] == plain.splitlines()
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "50"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    assert terminal.render(cases.drifting()) == plain, "the environment changes nothing"
    assert terminal.render(cases.drifting(), color=True) == coloured


def test_markup_in_a_name_is_shown_not_obeyed() -> None:
    text = terminal.render(cases.hostile(), width=400, color=True)
    assert "[bold red]" in text
    assert "\\x1b[31m" in text
    assert "\x1b[31m\\x00" not in text


def test_the_columns_and_the_words_are_explained_below_the_points() -> None:
    """`rel L2 0 ... used 12 %` in one row: both distances are there, and which is which."""
    told = cases.told(cases.drifting())
    layers = tuple(
        replace(row, tolerance=replace(row.tolerance, k=4.0)) if row.tolerance else row
        for row in told.layers
    )
    report = replace(told, layers=layers)
    for render in (terminal.render, markdown.render):
        text = " ".join(render(report).replace("\\", "").split())
        assert "rel L2, max abs: the candidate against the reference. from truth: rel L2" in text
        assert "truth (this model in float64)" in text
        assert "allowance, a few times the error of the yardstick (plain eager PyTorch" in text
    (first,) = [line for line in drawn(report) if FIRST in line]
    assert re.search(r"layer\.3 +\S +\S+ +0\.0005 ", first)  # 500 of 1e6
    narrow = " ".join(terminal.render(report, width=60).split())
    assert "from truth" not in narrow
    assert "used: how far a side is from the truth (this model in float64)" in narrow
    plain = " ".join(terminal.render(cases.passing()).split())
    assert "allowance: what one element may differ by" in plain
    assert "truth" not in plain
    page = " ".join(html.render(report).split())
    assert "used: how far a side is from the truth (this model in float64)" in page


def test_the_side_that_used_more_is_the_one_whose_distance_is_shown() -> None:
    told = cases.told(cases.drifting())
    wrong = tuple(
        replace(row, tolerance=replace(row.tolerance, side="reference")) if row.tolerance else row
        for row in told.layers
    )
    (first,) = [line for line in drawn(replace(told, layers=wrong)) if FIRST in line]
    assert re.search(r"layer\.3 +\S +\S+ +1e-06 ", first)
