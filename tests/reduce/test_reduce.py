"""`reduce`: a few nodes that show the same drift, and a script that needs nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

import driftwalk
from bisect_graphs import FUSIONS
from driftwalk.cli.app import app
from driftwalk.errors import BackendError, UsageError
from driftwalk.tasks.reduce.result import Reduction
from driftwalk.tasks.reduce.run import _shows_nothing
from driftwalk_backends.reducing.cuts import Cut
from driftwalk_backends.reducing.graphs import GraphSubject
from driftwalk_backends.reducing.writing import rehearse, write_graph

ALONE = """
import runpy, sys
class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "onnx", "driftwalk", "driftwalk_backends"):
            raise ImportError(f"{name} is not to be needed")
sys.meta_path.insert(0, Refuses())
runpy.run_path("repro.py", run_name="__main__")
"""


def padded_pool(path: Path) -> Path:
    """Behind a convolution, zeros around negative numbers, then the largest: ONNX Runtime merges
    the two, and pads with minus infinity."""
    rng = np.random.default_rng(0)
    stored = {
        "w": rng.normal(size=(8, 3, 3, 3)).astype(np.float32),
        "five": np.float32(5),
        "around": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "places": np.array([2, 3]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Sub", ["a", "five"], ["b"]),
        helper.make_node("Pad", ["b", "around"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["e"]),
        helper.make_node("ReduceMean", ["e", "places"], ["f"], keepdims=1),
        helper.make_node("Mul", ["d", "f"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "pool",
        [helper.make_tensor_value_info("x", 1, [2, 3, 32, 32])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(made, str(path))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return padded_pool(tmp_path_factory.mktemp("reduce") / "pool.onnx")


@pytest.fixture(scope="module")
def folder(model: Path) -> Path:
    return model.parent / "repro"


@pytest.fixture(scope="module")
def found(model: Path, folder: Path) -> Reduction:
    return driftwalk.reduce(model, "onnxruntime", folder)


def test_two_nodes_are_left_which_the_runtime_merges(found: Reduction) -> None:
    assert found.fault == "runtime"
    assert found.operations == ("Pad", "MaxPool")
    assert found.before is not None
    assert found.after is not None
    assert found.after.nodes <= 12
    assert found.after.longest <= 64
    assert found.after.nodes < found.before.nodes
    assert found.as_written < 4 < found.after.ratio, "with nothing optimised it is right"
    assert found.own == ()
    assert found.finished


def test_its_examples_are_zeros_that_became_negative(found: Reduction) -> None:
    assert found.examples
    assert all(one.found < one.expected == 0 for one in found.examples)


def test_the_script_shows_the_same_ratio_with_numpy_and_the_runtime_alone(
    found: Reduction, folder: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert found.after is not None
    printed = float(done.stdout.partition("ratio ")[2].split()[0])
    assert printed == pytest.approx(found.after.ratio, rel=0.1)
    assert "it drifts" in done.stdout


def test_the_graph_is_one_that_the_checker_takes_and_names_nothing_of_the_model(
    found: Reduction, folder: Path
) -> None:
    small = onnx.load(str(folder / "repro.onnx"))
    onnx.checker.check_model(small, full_check=True)
    names = {name for node in small.graph.node for name in (*node.input, *node.output)}
    assert names <= {"x0", "w0", "w1", "t0", "y"}
    assert [node.op_type for node in small.graph.node] == list(found.operations)


def test_an_allowance_ends_the_search_and_what_it_has_still_shows_the_drift(model: Path) -> None:
    made = driftwalk.reduce(model, "onnxruntime", None, runs=2)
    assert not made.finished
    assert made.runs == 2
    assert made.after is not None
    assert made.after.ratio > 4


def test_what_does_not_drift_is_not_reduced(model: Path, tmp_path: Path) -> None:
    made = driftwalk.reduce(model, "onnxruntime,opt=off", tmp_path / "none")
    assert not made.found
    assert made.files == ()
    assert not (tmp_path / "none").exists()


def test_the_command_writes_all_files_and_a_stored_result_is_read_again(
    model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["reduce", str(model), "-c", "onnxruntime", "-o", str(out)])
    assert result.exit_code == 0, result.output
    names = {file.name for file in out.iterdir()}
    assert names == {"repro.py", "repro.onnx", "issue.md", "reduction.json", "reduction.html"}
    stored = json.loads((out / "reduction.json").read_text("utf-8"))
    assert stored["kind"] == "reduction"
    assert driftwalk.load(out / "reduction.json").operations == ("Pad", "MaxPool")
    issue = (out / "issue.md").read_text("utf-8")
    assert "import onnxruntime" in issue
    assert "Versions" in issue
    again = CliRunner().invoke(app, ["reduce", str(model), "-c", "onnxruntime", "-o", str(out)])
    assert again.exit_code == 0, "an earlier reproduction is replaced"


@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        ([], 2, "Which backend drifts"),
        (["-c", "onnxruntime", "--minutes", "0"], 2, "above zero"),
        (["-c", "onnxruntime", "--point", "nowhere"], 3, "No tensor of the graph"),
        (["-c", "onnxruntime", "--point", "b"], 3, "show no drift"),
    ],
)
def test_bad_input_has_a_message_and_an_exit_code(
    model: Path, tmp_path: Path, given: list[str], code: int, why: str
) -> None:
    target = ["-o", str(tmp_path / "new")]
    result = CliRunner().invoke(app, ["reduce", str(model), *given, *target])
    assert result.exit_code == code, result.output
    assert why in " ".join(result.output.split())


@pytest.mark.parametrize("names", [["mine.txt"], ["repro.py"], ["reduction.json", "mine.txt"]])
def test_a_folder_with_other_files_is_left_alone(
    model: Path, tmp_path: Path, names: list[str]
) -> None:
    """A `repro.py` alone may be anybody's."""
    for name in names:
        (tmp_path / name).write_text("mine")
    with pytest.raises(driftwalk.DriftwalkError, match="nothing is written over it"):
        driftwalk.reduce(model, "onnxruntime", tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == set(names)


def test_from_python_all_files_are_written_and_an_earlier_reproduction_is_replaced(
    model: Path, found: Reduction, folder: Path
) -> None:
    assert {"repro.py", "reduction.json", "issue.md"} <= {file.name for file in folder.iterdir()}
    again = driftwalk.reduce(model, "onnxruntime", folder, runs=1)
    assert driftwalk.load(folder / "reduction.json").runs == again.runs == 1


def test_what_comes_out_may_have_another_type_than_what_goes_in(tmp_path: Path) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.FLOAT16)
    x = np.array([1.0, 2.0], np.float32)
    cut = Cut((node,), {}, {"x": x}, "y", (("", 18),), 9)
    kind = np.dtype(np.float16)
    write_graph(tmp_path, cut, x.astype(np.float64), kind, 1e-9, {}, "a cast", "of two numbers")
    done = subprocess.run(
        [sys.executable, "repro.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "no drift here" in done.stdout
    with pytest.raises(BackendError, match="does not show the drift by itself: no drift here"):
        rehearse(tmp_path, 5.0)


def test_a_search_that_was_stopped_too_early_does_not_say_that_nothing_drifts() -> None:
    assert "show no drift" in _shows_nothing("layer.3", finished=True)
    assert "stopped before" in _shows_nothing("layer.3", finished=False)


@pytest.mark.parametrize("name", ["int4 product", "quantised softmax", "float bias"])
def test_quantised_graphs_are_reduced_too(name: str, tmp_path: Path) -> None:
    written, inputs = FUSIONS[name].made()
    file = tmp_path / "model.onnx"
    file.write_bytes(written)
    made = driftwalk.reduce(file, "onnxruntime", tmp_path / "out", probe=dict(inputs))
    assert made.fault == "runtime"
    assert made.after is not None
    assert made.after.nodes <= 5  # on x86 the rounding before the softmax belongs to it, too
    assert made.after.longest <= 64
    assert made.after.ratio > 1000
    assert "it drifts" in made.printed


def test_a_search_that_was_stopped_goes_on_where_it_was(
    model: Path, found: Reduction, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = driftwalk.reduce(model, "onnxruntime", out, runs=5)
    assert (first.finished, first.runs) == (False, 5)
    words = ["reduce", str(model), "-c", "onnxruntime", "-o", str(out), "--resume", str(out)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    second = driftwalk.load(out / "reduction.json")
    assert second.finished
    assert (second.operations, second.after) == (found.operations, found.after)
    assert second.answers.startswith(first.answers)
    with pytest.raises(UsageError, match="another candidate: it was onnxruntime"):
        driftwalk.reduce(model, "onnxruntime,opt=basic", None, resume=out)
    with pytest.raises(UsageError, match="expected a reduction"):
        driftwalk.reduce(model, "onnxruntime", None, resume=3)


def test_what_was_answered_is_kept_when_a_search_is_killed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(GraphSubject, "shortened", killed)
    with pytest.raises(SystemExit):
        driftwalk.reduce(model, "onnxruntime", tmp_path / "out")
    monkeypatch.undo()
    kept = driftwalk.load(tmp_path / "out" / "reduction.json")
    assert kept.answers
    assert not kept.finished
    assert driftwalk.reduce(model, "onnxruntime", tmp_path / "out", resume=kept).finished


@pytest.mark.parametrize("stage", ["_written", "verify"])
def test_an_interruption_says_whether_there_is_something_to_go_on_from(
    stage: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the script is tried out: the search is over, and its answers are kept."""

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"driftwalk.tasks.reduce.run.{stage}", stopped)
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["reduce", str(model), "-c", "onnxruntime", "-o", str(out)])
    assert result.exit_code == 130
    kept = stage == "_written"
    assert (f"--resume {out}" in " ".join(result.output.split())) == kept
    assert ("nothing was written" in result.output) != kept
