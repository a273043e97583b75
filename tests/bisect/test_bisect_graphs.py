"""`bisect` on ONNX Runtime: fusions that change numbers are named by their transformer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import driftwalk
from bisect_graphs import FUSIONS, LET_IN
from driftwalk.cli.app import app
from driftwalk.errors import UsageError
from driftwalk.tasks.bisect.result import Bisection
from driftwalk_backends.onnx.optimisers import RULES


def bisected(folder: Path, name: str, candidate: str = "onnxruntime") -> Bisection:
    written, inputs = FUSIONS[name].made()
    file = folder / "model.onnx"
    file.write_bytes(written)
    return driftwalk.bisect(str(file), candidate, probe=dict(inputs))


@pytest.mark.parametrize("name", FUSIONS)
def test_a_fusion_that_changes_numbers_is_named(name: str, tmp_path: Path) -> None:
    found = bisected(tmp_path, name)
    guilty = FUSIONS[name].guilty
    assert found.outcome == "found"
    assert found.switches == (guilty,)
    assert [(cause.switch, cause.alone) for cause in found.causes] == [(guilty, True)]
    assert found.before is not None
    assert found.after is not None
    assert found.before.used > 1000
    assert found.after.used < 1
    assert found.before.error > 1000 * found.after.error
    assert found.runs - 1 <= 12  # all off is the second of the first two
    assert found.exit_code == 1


def test_what_it_names_is_a_spec_that_passes(tmp_path: Path) -> None:
    found = bisected(tmp_path, "padded pool")
    assert found.spec == "onnxruntime,disable=Pad_Fusion"
    inputs = FUSIONS["padded pool"].made()[1]
    model = str(tmp_path / "model.onnx")
    assert not driftwalk.verify(model, "onnxruntime", probe=dict(inputs)).ok
    assert driftwalk.verify(model, found.spec, probe=dict(inputs)).ok


@pytest.mark.parametrize("name", LET_IN)
def test_two_that_only_together_cause_it_are_both_named(name: str, tmp_path: Path) -> None:
    """A session entry lets a transformer throw roundings away: without either it does not."""
    fusion, entry = LET_IN[name]
    written, inputs = fusion.made()
    file = tmp_path / "model.onnx"
    file.write_bytes(written)
    found = driftwalk.bisect(str(file), f"onnxruntime,config={entry}:1", probe=dict(inputs))
    (cause,) = found.causes
    assert cause.alone is False
    assert (cause.switch, cause.together) == (entry, (fusion.guilty,))
    assert found.spec == "onnxruntime"


def test_rules_are_names_that_this_onnxruntime_knows() -> None:
    """It takes any name without a word; what it knows stands in its library."""
    import onnxruntime.capi

    library = next(Path(onnxruntime.capi.__file__).parent.glob("onnxruntime_pybind11_state*"))
    words = library.read_bytes()
    unknown = [r for rules in RULES.values() for r in rules if r.encode() + b"\0" not in words]
    assert unknown == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("onnxruntime,disable=GeluFusion1", "no such graph transformer.*GeluFusionL1"),
        ("onnxruntime,config=session.nonsense:1", "no entry that changes numbers"),
        ("onnxruntime,config=session.disable_prepacking", "KEY:VALUE"),
    ],
)
def test_names_that_nobody_knows_are_refused(spec: str, message: str, tmp_path: Path) -> None:
    written, inputs = FUSIONS["padded pool"].made()
    (tmp_path / "model.onnx").write_bytes(written)
    with pytest.raises(UsageError, match=message):
        driftwalk.verify(str(tmp_path / "model.onnx"), spec, probe=dict(inputs))


def test_a_fault_that_no_switch_takes_away_is_said_to_be_none_of_theirs(tmp_path: Path) -> None:
    written, inputs = FUSIONS["padded pool"].made()
    (tmp_path / "model.onnx").write_bytes(written)
    model = str(tmp_path / "model.onnx")
    stuck = driftwalk.bisect(model, "onnxruntime", probe=dict(inputs), only=["threads"])
    assert stuck.outcome == "none"
    assert stuck.switches == ()
    assert "kernels" in stuck.reason
    assert stuck.exit_code == 1


def test_the_command_line_from_drift_to_files(tmp_path: Path) -> None:
    import numpy as np

    written, inputs = FUSIONS["padded pool"].made()
    file, probe, out = tmp_path / "model.onnx", tmp_path / "x.npz", tmp_path / "out"
    file.write_bytes(written)
    np.savez(probe, **inputs)
    command = ["bisect", str(file), "--probe", str(probe), "-o", str(out)]
    stopped = CliRunner().invoke(app, [*command, "--runs", "6"])
    assert stopped.exit_code == 1
    assert "all 6 runs that were allowed are used up" in stopped.stdout
    before = driftwalk.load(out / "bisect.json")
    assert before.outcome == "stopped"
    whole = CliRunner().invoke(app, [*command, "--resume", str(out)])
    assert whole.exit_code == 1
    assert "Pad_Fusion causes the drift at y" in whole.stdout.splitlines()[-1]
    found = driftwalk.load(out / "bisect.json")
    assert found.switches == ("Pad_Fusion",)
    assert found.runs + 6 == sum(len(one.runs) for one in found.questions) - 1
    assert {"bisect.json", "bisect.html", "bisect.md"} <= {one.name for one in out.iterdir()}
    assert json.loads((out / "bisect.json").read_text("utf-8"))["kind"] == "bisect"


def test_a_result_of_another_question_is_not_resumed(tmp_path: Path) -> None:
    found = bisected(tmp_path, "padded pool")
    inputs = {"x": 2 * FUSIONS["padded pool"].made()[1]["x"]}
    with pytest.raises(UsageError, match="another probe"):
        driftwalk.bisect(str(tmp_path / "model.onnx"), probe=inputs, resume=found)
