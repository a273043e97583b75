"""Several candidates: one that cannot run does not spoil the others."""

from __future__ import annotations

from pathlib import Path

import pytest

import driftwalk
from cli.factories import Tiny
from cli.program import invoke
from driftwalk.errors import BackendUnavailable, UsageError
from driftwalk.result import load_results
from nets import residual

TINY = "cli.factories:Tiny"
NOWHERE = "torch:cuda:99:fp16"
"""A device that no machine has."""
DTYPE = ["--policy", "dtype"]


def test_the_others_are_reported_and_it_says_why_not() -> None:
    three = ["-c", "torch", "-c", NOWHERE, "-c", "torch:cpu:fp64"]
    done = invoke("verify", TINY, *three, *DTYPE, "--report", "out")
    assert done.code == 3, done.err
    assert done.out.count("PASS") == 2
    assert f"UNVERIFIED: {NOWHERE} could not run: torch:cuda:99 is not usable here" in done.out
    verdicts = [report.verdict for report in load_results(["out"])]
    assert sorted(verdicts) == ["pass", "pass", "unverified"]
    assert (Path("out") / "index.html").is_file()


def test_drift_outweighs_a_candidate_that_cannot_run() -> None:
    done = invoke("verify", TINY, "-c", "torch:cpu:bf16", "-c", NOWHERE, "--policy", "fixed:1e-6")
    assert done.code == 1
    assert "DRIFT" in done.out
    assert f"{NOWHERE} could not run" in done.out
    fine = ["--policy", "dtype", "--fail-on", "nothing"]
    assert invoke("verify", TINY, "-c", "torch", "-c", NOWHERE, *fine).code == 3


def test_one_that_fails_while_it_runs() -> None:
    done = invoke("verify", TINY, "-c", "command:false", "-c", "torch", *DTYPE)
    assert done.code == 3
    assert "UNVERIFIED: command:false could not run" in done.out
    assert "PASS" in done.out


def test_a_typo_in_one_is_still_2() -> None:
    invoke("verify", TINY, "-c", "torch", "-c", "torhc").refused(2, "'torhc'")
    invoke("verify", TINY, "-c", "torch", "-c", "torch:tpu").refused(2, "'tpu'")


def test_a_graph(tmp_path: Path) -> None:
    graph = str(residual(tmp_path / "a.onnx"))
    done = invoke("verify", graph, "-c", "onnxruntime,provider=NoSuch", "-c", "onnxruntime")
    assert done.code == 3, done.err
    assert "onnxruntime,provider=NoSuch could not run" in done.out
    assert "PASS" in done.out


def test_timings_are_of_those_that_ran() -> None:
    given = [NOWHERE, "torch:cpu:fp64"]
    lost, fine = driftwalk.verify_all(Tiny(), given, policy="dtype", bench=1)
    assert (lost.verdict, lost.layers, dict(lost.benchmarks)) == ("unverified", (), {})
    assert fine.ok
    assert set(fine.benchmarks) == {"reference", "candidate"}


def test_a_lone_one_and_the_reference_raise() -> None:
    with pytest.raises(BackendUnavailable, match="not usable here"):
        driftwalk.verify(Tiny(), NOWHERE)
    with pytest.raises(BackendUnavailable, match="not usable here"):
        driftwalk.verify_all(Tiny(), ["torch", "torch"], reference=NOWHERE)
    with pytest.raises(UsageError):
        driftwalk.verify_all(Tiny(), ["torch", "torch:tpu"])
