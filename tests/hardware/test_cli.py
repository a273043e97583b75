"""The command: what it prints, how it ends, and that Ctrl-C loses nothing."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from driftwalk.cli.app import app
from driftwalk_reports.schema import load_schema
from processes import PATIENCE, started

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")

PROGRAM = """
import sys
from driftwalk.tasks.hardware.work import Log

note = Log.note

def told(self, done):
    note(self, done)
    print("ROUND", done.repeat, done.case, file=sys.stderr, flush=True)

Log.note = told
from driftwalk.cli import main
sys.exit(main())
"""


def run(*words: str) -> tuple[int, str, str]:
    made = CliRunner().invoke(app, ["hwcheck", *words])
    return made.exit_code, made.stdout, made.stderr


def test_json_stands_alone_and_fits_its_schema(fast: None, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, stdout, _ = run("--check", "repeat", "--dtype", "fp32", "--json", "-o", str(out))
    assert code == 0
    document = json.loads(stdout)
    jsonschema.validate(document, load_schema(kind="hardware"))
    assert document["exit_code"] == 0
    assert {file.name for file in out.iterdir()} == {"hwcheck.json", "hwcheck.html", "hwcheck.md"}
    assert json.loads((out / "hwcheck.json").read_text()) == document


def test_a_fault_is_exit_code_one(fast: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTWALK_HWCHECK_INJECT", "state=norm,element=3,bit=9,repeat=0")
    code, stdout, _ = run("--check", "repeat", "--dtype", "fp32")
    assert code == 1
    assert stdout.startswith("!! A FAULT WAS INJECTED ON PURPOSE")
    assert "bit(s) 9" in stdout
    last = stdout.strip().splitlines()[-1]
    assert "norm in model fp32, repeat 0: element 3, bit 9" in last


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--level", "quik"], "quick"),
        (["--device", "cpu:1"], "cuda:N"),
        (["--dtype", "fp33"], "fp32"),
        (["--check", "golden", "--golden", "nowhere"], "nowhere"),
        (["--minutes", "2"], "soak"),
        (["--probe", "x.safetensors"], "--model"),
        (["--record-golden", "x.trace", "--model", "demo:decoder"], "driftwalk record"),
    ],
)
def test_bad_words(words: list[str], said: str) -> None:
    code, _, stderr = run(*words)
    assert code == 2, stderr
    assert said in stderr


def test_golden_that_was_asked_for_and_is_not_given_is_not_comparable(fast: None) -> None:
    code, stdout, _ = run("--check", "golden")
    assert code == 3
    assert "nothing was run" in stdout


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_keeps_what_was_found(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    out = tmp_path / "out"
    words = ["hwcheck", "--level", "soak", "--minutes", "9", "--check", "load", "--dtype", "fp32"]
    words = [sys.executable, str(program), *words, "--json", "-o", str(out)]
    path = os.pathsep.join(p for p in sys.path if p)
    with started(words, env=os.environ | {"PYTHONPATH": path}) as child:
        assert child.stderr is not None
        hot = any(line.startswith("ROUND 2 model") for line in child.stderr)
        assert hot, "the soak ended before it was interrupted"
        child.send_signal(signal.SIGINT)
        stdout, stderr = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130, stderr
    found = json.loads(stdout)
    jsonschema.validate(found, load_schema(kind="hardware"))
    assert found["complete"] is False
    assert found["verdict"] == "no fault found"
    assert "until it was interrupted" in found["reason"]
    (load,) = found["devices"][0]["checks"]
    assert sum(case["repeats"] for case in load["cases"]) >= 5
    page = (out / "hwcheck.html").read_text()
    assert "Interrupted" in page
