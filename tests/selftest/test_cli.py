"""`driftwalk selftest` on the command line: data, messages and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import driftwalk.tasks.selftest.run as under_test
from cli.program import invoke
from driftwalk_backends.faults import planning
from driftwalk_backends.faults.planning import Plan
from nets import residual


def test_a_table_and_exit_code_0() -> None:
    done = invoke(
        "selftest", "cli.factories:Tiny", "--candidate", "torch", "--faults", "12", "--trusted", "0"
    )
    assert done.code == 0, done.err
    assert "placed right" in done.out
    assert "smallest caught" in done.out
    assert done.out.splitlines()[-1].startswith("✓")


def test_json_alone_and_into_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = invoke(
        "selftest",
        "cli.factories:Tiny",
        "--faults",
        "3",
        "--json",
        "--report",
        str(out),
        "--trusted",
        "1",
    )
    data = json.loads(done.out, parse_constant=pytest.fail)
    assert len(data["trials"]) == 3
    assert data["seed"] == 0
    assert data["summary"]["trusted"]["told"] == len(data["trusted"]) > 4
    assert data["summary"]["trusted"]["failed"] == 0
    assert json.loads((out / "selftest.json").read_text("utf-8")) == data


def test_a_blind_gate_gives_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test._Gate, "_judge", lambda *_: ("pass", None, None))
    done = invoke("selftest", "cli.factories:Tiny", "--faults", "8", "--trusted", "0")
    assert done.code == 1
    assert done.out.splitlines()[-1].startswith("✗")


def test_no_faults_give_exit_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"bit_flip": "there is nothing to flip"}
    monkeypatch.setattr(planning, "plan", lambda *_: Plan((), absent))
    done = invoke("selftest", "demo:decoder", "--trusted", "0")
    assert done.code == 3
    assert "there is nothing to flip" in done.out


@pytest.mark.parametrize(
    "words",
    [
        ("selftest", "demo:decoder", "--faults", "0"),
        ("selftest", "demo:decoder", "--trusted", "-1"),
        ("selftest", "demo:decoder", "--candidate", "torhc"),
        ("selftest", "demo:decoder", "--candidate", "trace:x"),
    ],
)
def test_usage_errors(words: tuple[str, ...]) -> None:
    done = invoke(*words)
    assert done.code == 2
    assert done.out == ""


@pytest.mark.parametrize("candidate", ["torch", "onnxruntime"])
def test_a_graph_is_refused_in_its_own_words(candidate: str, tmp_path: Path) -> None:
    graph = str(residual(tmp_path / "a.onnx"))
    done = invoke("selftest", graph, "--candidate", candidate)
    done.refused(2, "a.onnx is an ONNX graph", "no torch model")
