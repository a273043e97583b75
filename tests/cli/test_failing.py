"""`verify --fail-on`: exit code 1 for what it names, and never 0 for what could not be told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cli.program import invoke
from driftwalk.cli.failing import failing
from driftwalk.measure.decisions import Decisions
from driftwalk.measure.embeddings import Embedding
from driftwalk.result import Benchmark
from unit.material import layer, report

DRIFTING = ["verify", "cli.factories:Tiny", "-c", "torch:cpu:fp64", "--policy", "fixed:0"]


def deciding(flips: int, ties: int):
    rows = [layer("embed"), layer("logits", "drift")]
    return replace(report(layers=rows), outputs=Decisions(10, flips, ties, 1.0, 0.0, 0.0, ()))


@pytest.mark.parametrize(
    ("on", "code"),
    [([], 1), (["drift"], 1), (["nothing"], 0), (["flips"], 0), (["flips", "drift"], 1)],
)
def test_drift_that_changes_no_decision(on: list[str], code: int) -> None:
    done = invoke(*DRIFTING, *(word for each in on for word in ("--fail-on", each)))
    assert done.code == code, done.out + done.err
    assert "DRIFT" in done.out, "it is told all the same"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--fail-on", "flip"], ["--fail-on flip", "Did you mean 'flips'?"]),
        (["--fail-on", "slower"], ["--bench"]),
        (["--fail-on", "nothing", "--fail-on", "flips"], ["nothing", "flips", "choose one"]),
        (["--fail-on", "flips", "--expected", "known.toml"], ["--expected", "--fail-on drift"]),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused(options: list[str], words: list[str]) -> None:
    invoke(*DRIFTING, *options).refused(2, *words)


def test_a_whole_configuration_has_its_own_way() -> None:
    invoke("verify", "--fail-on", "flips").refused(2, "expected drift")


@pytest.mark.parametrize(("moved", "ties", "code"), [(0, 0, 0), (2, 2, 0), (3, 2, 1)])
def test_of_embeddings_the_neighbours_count(moved: int, ties: int, code: int, capsys) -> None:
    found = Embedding("text_embeds", 5, False, 0.9, 0.8, True, moved, ties, moved, ())
    given = replace(deciding(0, 0), outputs=None, embeddings=(found,))
    assert failing([given], 1, ["flips"], 1.1) == code
    said = "other nearest neighbours for 1 of 5 rows of text_embeds, which are no ties."
    assert (said in capsys.readouterr().err) == bool(code)
    few = replace(found, compared=False)
    assert failing([replace(given, embeddings=(few,))], 1, ["flips"], 1.1) == 1


@pytest.mark.parametrize(("flips", "ties", "code"), [(0, 0, 0), (2, 2, 0), (3, 2, 1)])
def test_ties_are_no_flips(flips: int, ties: int, code: int, capsys) -> None:
    assert failing([deciding(flips, ties)], 1, ["flips"], 1.1) == code
    assert ("1 of 10 positions" in capsys.readouterr().err) == bool(code)


@pytest.mark.parametrize("verdict", ["nonfinite", "shape", "missing"])
def test_what_cannot_decide_is_no_pass(verdict: str, capsys) -> None:
    found = replace(deciding(0, 0), layers=(layer("embed"), layer("logits", verdict)))
    assert failing([found], 1, ["flips"], 1.1) == 1
    assert f"logits is {verdict}" in capsys.readouterr().err
    assert failing([replace(deciding(0, 0), outputs=None)], 1, ["flips"], 1.1) == 1


def test_a_run_that_could_not_be_verified_stays_one() -> None:
    lost = replace(deciding(0, 0), verdict="unverified")
    assert failing([lost], 3, ["nothing"], 1.1) == 3
    assert failing([deciding(0, 0), lost], 1, ["nothing"], 1.1) == 3
    assert failing([deciding(0, 0)], 1, ["nothing"], 1.1) == 0


@pytest.mark.parametrize(
    ("slow", "code", "word"),
    [
        ([1.0] * 15, 0, ""),
        ([1.3] * 15, 1, "slower"),
        ([0.9, 1.35] * 8, 0, "undecided"),
        ([], 1, "no t"),
    ],
    ids=["as fast", "slower", "undecided", "no samples"],
)
def test_slower_only_where_the_interval_says_so(slow, code, word, capsys) -> None:
    sides = {"reference": Benchmark((1.0,) * 16), "candidate": Benchmark(tuple(slow))}
    found = replace(deciding(0, 0), benchmarks=sides)
    assert failing([found], 0, ["slower"], 1.1) == code
    assert word in capsys.readouterr().err
