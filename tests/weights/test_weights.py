"""`driftwalk weights A B` and `driftwalk.weights(a, b)` on real small models."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import driftwalk
import nets
import zoo
from cli.program import environment, invoke
from driftwalk.document import load
from driftwalk.tasks.weights.result import WeightReport
from driftwalk.weight_change import WeightChange
from driftwalk_backends.demo import decoder

EVERY = ("gpt2", "llama", "bert")


@pytest.fixture
def model() -> nn.Module:
    return decoder()


def saved(module: nn.Module, folder: Path, **options: object) -> str:
    module.save_pretrained(folder, **options)  # type: ignore[operator]
    return str(folder)


def only(report: WeightReport) -> WeightChange:
    (change,) = report.differing
    return change


@pytest.mark.parametrize("kind", EVERY)
def test_a_model_and_its_folder_have_the_same_weights(kind: str, tmp_path: Path) -> None:
    """Tied names that a folder leaves out are not missing; shards are one model."""
    module = zoo.build(kind)
    whole = saved(module, tmp_path / "whole")
    shards = saved(module, tmp_path / "shards", max_shard_size="60KB")
    assert len(list(Path(shards).glob("*.safetensors"))) > 1
    for a, b in ((module, whole), (whole, shards), (shards, module)):
        report = driftwalk.weights(a, b)
        assert report.ok, report.differing
        assert {one.verdict for one in report.changes} == {"same"}
        assert {one.matched for one in report.changes} == {"name"}


@pytest.mark.parametrize("kind", EVERY)
def test_half_precision_is_no_difference(kind: str, tmp_path: Path) -> None:
    whole = saved(zoo.build(kind), tmp_path / "whole")
    half = saved(zoo.build(kind).bfloat16(), tmp_path / "half")
    report = driftwalk.weights(whole, half)
    assert report.ok
    assert "cast" in {one.verdict for one in report.changes} <= {"cast", "same"}


@pytest.mark.parametrize("kind", EVERY)
def test_an_export_has_the_same_weights_and_a_changed_one_is_named(
    kind: str, tmp_path: Path
) -> None:
    module = zoo.build(kind)
    with driftwalk.backend("onnxruntime", module) as backend:
        backend.run()
        exported = backend._export(backend._fixed(None)).plain  # type: ignore[attr-defined]
        graph = onnx.load(str(exported))
    onnx.save(graph, str(tmp_path / "clean.onnx"))
    clean = driftwalk.weights(module, tmp_path / "clean.onnx")
    assert clean.ok, clean.differing
    assert clean.summary.compared > 0.8 * len(clean.changes)
    matrices = [t for t in graph.graph.initializer if len(t.dims) == 2 and t.data_type == 1]
    chosen = matrices[len(matrices) // 2]
    array = numpy_helper.to_array(chosen).copy()
    array[3, 4] += 0.5
    chosen.CopyFrom(numpy_helper.from_array(array, chosen.name))
    onnx.save(graph, str(tmp_path / "bad.onnx"), save_as_external_data=True, location="w.bin")
    change = only(driftwalk.weights(module, tmp_path / "bad.onnx"))
    assert change.other == chosen.name
    assert change.place == ("[4, 3]" if change.turned else "[3, 4]")
    assert change.max_abs == pytest.approx(0.5, rel=1e-5)


def test_a_port_with_names_of_its_own_is_matched_by_content() -> None:
    module = zoo.build("llama")
    renamed = {f"w{i}": value for i, value in enumerate(module.state_dict().values())}
    port = nn.Module()
    for name, value in renamed.items():
        port.register_parameter(name, nn.Parameter(value.clone()))
    report = driftwalk.weights(module, port)
    assert report.ok, report.differing
    assert {one.matched for one in report.changes} == {"content"}


def test_tied_and_untied(model: nn.Module) -> None:
    untied = copy.deepcopy(model)
    untied.lm_head.weight = nn.Parameter(untied.lm_head.weight.detach().clone())
    report = driftwalk.weights(model, untied)
    assert report.ok, "the numbers are the same"
    assert [one.name for one in report.changes if one.tied == "reference"] == ["lm_head.weight"]


def test_swapped_heads_and_a_rotary_conversion() -> None:
    module = zoo.build("llama")
    port = copy.deepcopy(module)
    attention = port.model.layers[1].self_attn
    size, wide = attention.head_dim, attention.q_proj.weight.shape[0]
    order = torch.arange(wide).view(-1, size // 2, 2).transpose(1, 2).reshape(-1)
    attention.q_proj.weight.data = attention.q_proj.weight.data[order]
    change = only(driftwalk.weights(module, port))
    assert (change.verdict, change.axis) == ("permuted", "rows")
    assert f"pairs taken apart into halves in each {size}" in change.order


# ---- the command ----


def test_exit_codes_and_what_is_printed(model: nn.Module, tmp_path: Path) -> None:
    a = saved(model, tmp_path / "a")
    model.transformer.h[3].mlp.c_proj.weight.data[7, 11] += 0.5
    b = saved(model, tmp_path / "b")
    done = invoke("weights", a, a)
    assert (done.code, done.err) == (0, "")
    assert "all 76 weights compared are the same numbers" in done.out
    assert "ln_f" not in done.out
    assert "ln_f" in invoke("weights", a, a, "--all").out
    done = invoke("weights", a, f"{b}/model.safetensors")
    assert done.code == 1
    last = done.out.splitlines()[-1]
    assert last.startswith(
        "✗ 1 of 76 weights differs, the first: transformer.h.3.mlp.c_proj.weight"
    )
    assert "one entry [7, 11] is off by 0.5" in last


def test_json_and_pages(model: nn.Module, tmp_path: Path) -> None:
    a = saved(model, tmp_path / "a")
    model.transformer.wpe.weight.data[2] *= 2
    b = saved(model, tmp_path / "b")
    out = tmp_path / "out"
    done = invoke("weights", a, b, "--json", "--report", str(out))
    assert done.code == 1
    data = json.loads(done.out)
    assert (data["kind"], data["summary"]["differing"]) == ("weights", 1)
    stored = load(out / "weights.json")
    assert isinstance(stored, WeightReport)
    change = only(stored)
    assert (change.name, change.place, change.factor) == ("transformer.wpe.weight", "[2, :]", 2.0)
    page = (out / "weights.html").read_text("utf-8")
    assert "all entries of [2, :] are 2 times as large" in page


def test_nothing_compared_is_3(tmp_path: Path) -> None:
    one, other = nn.Linear(3, 4), nn.Linear(5, 7)
    assert driftwalk.weights(one, other).exit_code == 1, "shapes that differ"
    graph = nets.residual(tmp_path / "net.onnx")
    report = driftwalk.weights(nn.Linear(3, 5), graph)
    assert (report.exit_code, report.summary.absent) == (3, 2)


def test_two_graphs(tmp_path: Path) -> None:
    stored = nets.weights()
    a = nets.residual(tmp_path / "a.onnx", stored)
    b = nets.residual(tmp_path / "b.onnx", nets.spoilt(stored, "w1"))
    assert invoke("weights", str(a), str(a)).code == 0
    done = invoke("weights", str(a), str(b))
    assert done.code == 1
    assert "w1: one entry [4, 0] is off by 0.5" in done.out


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("pytorch_model.bin", 2, ("pickled weights", "safetensors")),
        ("model.pt", 2, ("pickled weights",)),
        ("nothing.safetensors", 2, ("No such file",)),
        ("garbled.safetensors", 2, ("no safetensors file",)),
        ("garbled.onnx", 3, ("no ONNX graph",)),
        ("nowhere/at/all", 3, ("no folder",)),
        ("empty", 3, ("no safetensors", "save_pretrained")),
        ("pickled", 2, ("pytorch_model.bin", "pickled weights")),
        ("cut", 3, ("model.safetensors is cut off",)),
        ("outside", 3, ("not there",)),
    ],
)
def test_bad_input_is_named(
    name: str, code: int, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("pytorch_model.bin", "model.pt", "garbled.safetensors", "garbled.onnx"):
        Path(file).write_bytes(b"what is this? it is nothing that can be read")
    for folder in ("empty", "pickled", "cut", "outside"):
        Path(folder).mkdir()
    Path("pickled/pytorch_model.bin").write_bytes(b"x")
    Path("cut/model.safetensors").write_bytes(b"x")
    Path("outside/model.safetensors").write_bytes(b"\2" + b"\0" * 7 + b"{}")
    index = {"weight_map": {"w": "../nothing.safetensors"}}
    Path("outside/model.safetensors.index.json").write_text(json.dumps(index))
    invoke("weights", "demo:decoder", name).refused(code, *words)


def test_a_folder_needs_no_model(model: nn.Module, tmp_path: Path) -> None:
    """Weights are compared as they are stored: no config is read, no module made."""
    a = Path(saved(model, tmp_path / "a"))
    (a / "config.json").unlink()
    code = (
        "import driftwalk, sys; r = driftwalk.weights(sys.argv[1], sys.argv[1]); print(r.ok);"
        "print('transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(a)],
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stdout.split() == ["True", "False"]
