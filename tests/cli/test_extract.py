"""`extract`: a layer as a folder that gives the report's number where driftwalk is not."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import driftwalk as library
from cli.program import invoke
from driftwalk.errors import BackendError, UsageError
from driftwalk.registry import create
from driftwalk.result import to_json
from driftwalk_backends.demo import faulty_decoder
from driftwalk_backends.onnx.runtime import OnnxRuntime
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import LoadedModel, open_model
from processes import PATIENCE

FOREIGN = ("driftwalk", "driftwalk_backends", "transformers", "safetensors", "onnx", "ml_dtypes")
ALONE = f"""
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {FOREIGN}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
runpy.run_path(sys.argv[1], run_name="__main__")
"""
PROMPTS = ["The capital of France is Paris.", "A short one."]


def alone(script: Path) -> subprocess.CompletedProcess[str]:
    """Where there is torch, onnxruntime and numpy, and nothing of driftwalk or transformers."""
    return subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(script)],
        cwd=script.parent.parent,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
    )


def here_and_now(script: Path) -> subprocess.CompletedProcess[str]:
    """The same script in this process, where torch is imported already."""
    out, path, modules = io.StringIO(), sys.path.copy(), sys.modules.copy()
    try:
        with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as end:
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.path[:] = path
        for name in sys.modules.keys() - modules.keys():
            if name.endswith("_layer"):  # the bundle's own, which the next one has too
                del sys.modules[name]
        shutil.rmtree(script.parent / "__pycache__", ignore_errors=True)
    return subprocess.CompletedProcess([str(script)], int(end.value.code or 0), out.getvalue(), "")


@pytest.fixture
def rehearsed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """`extract` runs the script before it hands it over; that it does so in a process of its own
    is shown by the tests that run the bundle alone.
    """

    def rehearse(folder: Path) -> str:
        done = here_and_now(folder / "replay.py")
        assert done.returncode == 0, done.stdout
        return done.stdout

    monkeypatch.setattr("driftwalk.tasks.bundles.extraction.rehearse", rehearse)


def numbers(text: str, label: str) -> list[float]:
    """The two norms in the row that starts with a label."""
    (row,) = [line for line in text.splitlines() if line.strip().startswith(label)]
    return [float(word) for word in re.findall(r"\d\.\d+e[+-]\d+", row)]


def introduced(report: library.Report, point: str) -> list[float]:
    blame = report.layer(point).blame
    assert blame is not None
    norms = blame.norms["introduced"]
    assert norms.l2 == blame.introduced
    return [norms.l2, norms.max_abs]


@pytest.fixture(scope="module")
def decoder() -> LoadedModel:
    return open_model("demo:decoder")


@pytest.fixture(scope="module")
def faulty() -> Iterator[library.Backend]:
    """ONNX Runtime on a decoder with one wrong weight in layer 3."""
    with create("onnxruntime", LoadedModel(faulty_decoder(3), "faulty")) as backend:
        yield backend


@pytest.fixture(scope="module")
def drifted(decoder: LoadedModel, faulty: library.Backend) -> library.Report:
    report = library.verify(decoder, candidate=faulty, probe=PROMPTS)
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.3"
    return report


@pytest.fixture(scope="module")
def passed(decoder: LoadedModel) -> library.Report:
    return library.verify(decoder, candidate="torch:cpu:bf16", blame=True)


def saved(report: library.Report, name: str = "result.json") -> str:
    Path(name).write_text(to_json(report))
    return name


@pytest.mark.slow
def test_the_demo_from_end_to_end(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the documentation; the bundle runs where nothing of driftwalk is."""
    words = ["demo", "--fault", "3", "--report", "out"]
    monkeypatch.setattr(sys, "argv", ["driftwalk", *words])  # what a report says it was made by
    assert invoke(*words).code == 1
    done = invoke("extract", "out/result.json", "layer.3", "-o", "bundle")
    assert done.code == 0, done.err
    assert "Run it anywhere: python bundle/replay.py" in done.err
    told = introduced(library.load("out/result.json"), "layer.3")
    found = alone(here / "bundle" / "replay.py")
    assert found.returncode == 0, found.stderr
    assert found.stdout == done.out
    for label in ("in the report", "recorded output", "again, torch"):
        assert numbers(found.stdout, label) == pytest.approx(told, rel=1e-6)
    assert "The number is the same." in found.stdout


def test_an_onnx_graph_alone(
    here: Path, decoder: LoadedModel, faulty: library.Backend, drifted: library.Report
) -> None:
    """The root cause, padding and all; the candidate's own nodes give the number once more."""
    made = library.extract(drifted, folder="bundle", model=decoder, candidate=faulty)
    assert made.point == "layer.3"
    assert made.reported is not None
    assert sorted(path.name for path in (here / "bundle").iterdir()) == [
        *("README.md", "bundle.json", "candidate.onnx", "inputs.npz", "outputs.npz", "replay.py"),
        *("truth_layer.py", "truth_weights.npz"),
    ]
    found = alone(here / "bundle" / "replay.py")
    assert found.returncode == 0, found.stderr
    told = introduced(drifted, "layer.3")
    assert numbers(found.stdout, "recorded output") == pytest.approx(told, rel=1e-6)
    assert numbers(found.stdout, "again, onnxruntime") == pytest.approx(told, rel=1e-4)
    assert made.replay in (here / "bundle" / "README.md").read_text()
    with np.load(here / "bundle" / "outputs.npz", allow_pickle=False) as outputs:
        assert not outputs["keep"].all(), "the second prompt is shorter"
        assert outputs["truth"].dtype == np.float64


def wrong_file(decoder: LoadedModel, layer: int) -> Path:
    """Somebody's .onnx of the decoder: no scopes in it, and one weight of one layer is wrong."""
    with create("onnxruntime", decoder) as clean:
        assert isinstance(clean, OnnxRuntime)
        model = onnx.load(str(clean._export(make_probe(decoder)).plain))
    for node in model.graph.node:
        node.ClearField("metadata_props")
    (weight,) = [t for t in model.graph.initializer if f"h.{layer}.mlp.c_proj.weight" in t.name]
    array = onnx.numpy_helper.to_array(weight).copy()
    array[3, 5] += 0.5
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    onnx.save(model, "theirs.onnx")
    return Path("theirs.onnx")


@pytest.mark.slow
def test_a_graph_that_others_made(here: Path, decoder: LoadedModel) -> None:
    spec = f"onnxruntime,file={wrong_file(decoder, 4)}"
    assert invoke("verify", "demo:decoder", "-c", spec, "--report", "out").code == 1
    done = invoke("extract", "out", "-o", "bundle")
    assert done.code == 0, done.err
    assert done.out.startswith("layer.4 of demo:decoder")
    told = introduced(library.load("out/result.json"), "layer.4")
    found = alone(here / "bundle" / "replay.py")
    assert numbers(found.stdout, "recorded output") == pytest.approx(told, rel=1e-6)
    assert numbers(found.stdout, "again, onnxruntime") == pytest.approx(told, rel=1e-4)


@pytest.mark.parametrize("point", ["embed", "layer.2", "norm", "logits"])
@pytest.mark.usefixtures("rehearsed_here")
def test_any_point_of_a_run_that_passed(here: Path, passed: library.Report, point: str) -> None:
    """bf16, which numpy cannot store; the default probe, made again from what the report says."""
    done = invoke("extract", saved(passed), point, "-o", "bundle")
    assert done.code == 0, done.err
    told = introduced(passed, point)
    assert numbers(done.out, "recorded output") == pytest.approx(told, rel=1e-6)
    assert numbers(done.out, "again, torch") == pytest.approx(told, rel=1e-6)


@pytest.mark.usefixtures("rehearsed_here")
def test_a_part_of_a_layer(here: Path, decoder: LoadedModel) -> None:
    report = library.verify(decoder, candidate="torch:cpu:bf16", depth="sublayer", blame=True)
    done = invoke("extract", saved(report), "layer.1.mlp", "-o", "bundle")
    assert done.code == 0, done.err
    told = introduced(report, "layer.1.mlp")
    assert numbers(done.out, "recorded output") == pytest.approx(told, rel=1e-6)
    assert json.loads(Path("bundle/bundle.json").read_text())["truth"]["names"].keys() == {
        *("w0", "w1", "w2", "w3"),
    }


@pytest.mark.usefixtures("rehearsed_here")
def test_a_run_without_blame_has_the_number_made_now(here: Path, decoder: LoadedModel) -> None:
    report = library.verify(decoder, candidate="torch:cpu:bf16", blame=False)
    done = invoke("extract", saved(report), "layer.0", "-o", "bundle")
    assert done.code == 0, done.err
    assert "in the report" not in done.out
    assert numbers(done.out, "when this was made") == numbers(done.out, "recorded output")


@pytest.mark.usefixtures("rehearsed_here")
def test_a_bundle_that_was_changed_says_so(here: Path, passed: library.Report) -> None:
    assert invoke("extract", saved(passed), "layer.2", "-o", "bundle").code == 0
    weights = Path("bundle/truth_weights.npz")
    with np.load(weights) as file:
        arrays = dict(file)
    arrays["w2"] = arrays["w2"] * 1.001
    np.savez(weights, **arrays)
    found = here_and_now(here / "bundle" / "replay.py")
    assert found.returncode == 1
    assert "The number is NOT the same." in found.stdout


@pytest.mark.usefixtures("rehearsed_here")
def test_names_from_outside_do_not_command_a_terminal(here: Path, passed: library.Report) -> None:
    assert invoke("extract", saved(passed), "layer.2", "-o", "bundle").code == 0
    told = json.loads(Path("bundle/bundle.json").read_text())
    told["model"] = "\x1b[2Jgone"
    Path("bundle/bundle.json").write_text(json.dumps(told))
    found = here_and_now(here / "bundle" / "replay.py")
    assert "of ?[2Jgone," in found.stdout


def test_without_a_root_cause_a_layer_must_be_named(passed: library.Report) -> None:
    done = invoke("extract", saved(passed))
    done.refused(2, "names no root cause (pass)", "layer.0", "logits")


def test_an_unknown_point(passed: library.Report) -> None:
    done = invoke("extract", saved(passed), "layer.55")
    done.refused(2, "no point 'layer.55'", "Did you mean 'layer.5'?")


def test_another_model(passed: library.Report) -> None:
    done = invoke("extract", saved(passed), "layer.2", "--model", "demo:encoder")
    done.refused(3, "demo:encoder is not the model of the report", "--model")


def test_the_same_model_with_one_weight_changed(passed: library.Report) -> None:
    module = copy.deepcopy(open_model("demo:decoder").module)
    with torch.no_grad():
        next(module.parameters())[0, 0] += 1e-6
    with pytest.raises(library.DriftwalkError, match="is not the model of the report"):
        library.extract(passed, "layer.2", model=module)


@pytest.mark.usefixtures("rehearsed_here")
def test_a_probe_the_report_does_not_hold(decoder: LoadedModel) -> None:
    report = library.verify(decoder, candidate="torch", probe=[[5, 17, 3]], blame=True)
    file = saved(report)
    invoke("extract", file, "layer.2").refused(2, "does not hold its probe", "--ids")
    wrong = invoke("extract", file, "layer.2", "--ids", "5 17 4")
    wrong.refused(2, "not the probe of the report", report.probe.sha256[:12])
    assert not Path("driftwalk-bundle").exists()
    assert invoke("extract", file, "layer.2", "--ids", "5 17 3").code == 0
    assert Path("driftwalk-bundle/replay.py").is_file()


@pytest.mark.parametrize("given", [("--prompt", "Another text."), ("--seed", "7")])
def test_another_probe(passed: library.Report, given: tuple[str, str]) -> None:
    done = invoke("extract", saved(passed), "layer.2", *given)
    done.refused(2, "not the probe of the report", "--seed")


def test_a_candidate_that_computes_something_else_now(
    here: Path, decoder: LoadedModel, drifted: library.Report
) -> None:
    """The report says `onnxruntime`; that it ran another model's weights, only the number says."""
    with pytest.raises(BackendError, match=r"onnxruntime introduces .* here; in the report it was"):
        library.extract(drifted, folder="bundle", model=decoder)
    assert list(here.iterdir()) == [], "nothing is left behind"


def test_a_report_runs_no_code(here: Path, passed: library.Report) -> None:
    """Neither a factory it names, nor a program it calls a candidate."""
    Path("trap.py").write_text("open('sprung', 'w')\ndef factory(): pass\n")
    model = {**passed.model, "label": "trap:factory", "source": "factory"}
    done = invoke("extract", saved(replace(passed, model=model)), "layer.2")
    done.refused(2, "'trap:factory', was made by code", "--model")
    candidate = replace(passed.candidate, spec="command:./trap")
    hostile = replace(passed, candidate=candidate)
    done = invoke("extract", saved(hostile), "layer.2")
    assert done.code == 2
    assert "Traceback" not in done.err
    with pytest.raises(UsageError, match="not started on a report's word"):
        library.extract(
            replace(passed, candidate=replace(passed.candidate, spec="their_port")), "layer.2"
        )
    assert not Path("sprung").exists()


def test_an_object_has_no_name_to_be_opened_by(passed: library.Report) -> None:
    model = {**passed.model, "label": "GPT2LMHeadModel", "source": "nn.Module"}
    done = invoke("extract", saved(replace(passed, model=model)), "layer.2")
    done.refused(2, "'GPT2LMHeadModel', was an object in a program", "--model")


def test_a_folder_that_is_no_bundle_is_never_written_over(
    here: Path, passed: library.Report
) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("years of work")
    for force in ((), ("--force",)):
        done = invoke("extract", saved(passed), "layer.2", "-o", "mine", *force)
        done.refused(2, "'mine' holds files and is no bundle")
    Path("file").write_text("")
    invoke("extract", saved(passed), "layer.2", "-o", "file").refused(2, "'file' is no folder")
    assert Path("mine/thesis.txt").read_text() == "years of work"
    assert sorted(path.name for path in here.iterdir()) == ["file", "mine", "result.json"]


@pytest.mark.usefixtures("rehearsed_here")
def test_a_bundle_is_replaced_only_if_asked(here: Path, passed: library.Report) -> None:
    file = saved(passed)
    assert invoke("extract", file, "layer.2", "-o", "bundle").code == 0
    invoke("extract", file, "layer.3", "-o", "bundle").refused(2, "already; --force replaces it")
    Path("bundle/left-over").write_text("old")
    assert invoke("extract", file, "layer.3", "-o", "bundle", "--force").code == 0
    assert json.loads(Path("bundle/bundle.json").read_text())["point"] == "layer.3"
    assert not Path("bundle/left-over").exists()
    assert sorted(path.name for path in here.iterdir()) == ["bundle", "result.json"]


def test_several_results_are_one_too_many(passed: library.Report) -> None:
    text = to_json(passed)
    Path("both.json").write_text(f"[{text},{text}]")
    invoke("extract", "both.json", "layer.2").refused(2, "holds 2 results")


def test_a_file_that_is_no_result() -> None:
    Path("result.json").write_text("{}")
    invoke("extract", "result.json", "layer.2").refused(2, "Not a driftwalk result")
    invoke("extract", "nowhere.json").refused(2, "Cannot read 'nowhere.json'")
