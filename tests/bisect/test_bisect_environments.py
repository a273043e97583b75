"""`bisect --good-env --bad-env`: whether drift comes with an environment, and what differs."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from bisect_graphs import FUSIONS
from driftwalk.errors import UsageError
from driftwalk.tasks.bisect.environments import bisect_environments
from driftwalk_reports.bisect import render

CLEAN = """
import onnxruntime as ort
session = ort.InferenceSession

def calm(*given, **options):
    return session(*given, **{**options, "disabled_optimizers": ["Pad_Fusion"]})

ort.InferenceSession = calm
"""


def interpreter(folder: Path, name: str, version: str, startup: str = "") -> Path:
    """This Python with one package of its own, and something that is run when it starts."""
    own = folder / name
    about = own / f"made_up-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: made-up\nVersion: {version}\n")
    (own / "sitecustomize.py").write_text(startup)
    program = own / "python"
    path = os.pathsep.join([str(own), "$PYTHONPATH"])
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec "{sys.executable}" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    written, inputs = FUSIONS["padded pool"].made()
    (tmp_path / "model.onnx").write_bytes(written)
    np.savez(tmp_path / "x.npz", **inputs)
    return [str(tmp_path / "model.onnx"), "-c", "onnxruntime", "--probe", str(tmp_path / "x.npz")]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="an interpreter that is a shell script")
def test_an_environment_that_computes_otherwise_is_named_with_what_differs(
    tmp_path: Path, words: list[str]
) -> None:
    good = interpreter(tmp_path, "good", "1.0", CLEAN)
    bad = interpreter(tmp_path, "bad", "2.0")
    found = bisect_environments(good, bad, words)
    assert found.outcome == "found"
    assert found.exit_code == 1
    assert found.packages == (("made-up", "1.0", "2.0"),)
    assert [one.verdict for one in found.environments] == ["pass", "drift"]
    assert "comes with the bad environment" in render(found)


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such interpreter"):
        bisect_environments(tmp_path / "nothing", sys.executable, [])
