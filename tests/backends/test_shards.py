"""Models from a folder: large ones stay as they are stored, and files that are wrong are named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

import driftwalk
import zoo
from driftwalk.cli.app import app
from driftwalk_backends import lending, sources
from driftwalk_backends.shards import what_is_wrong
from driftwalk_backends.sources import open_model

PROBE = {"input_ids": np.arange(24).reshape(2, 12)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    zoo.build("llama").bfloat16().save_pretrained(tmp_path / "model", max_shard_size="60KB")
    return tmp_path / "model"


@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "LARGE", 0)
    monkeypatch.setattr(lending, "SMALLEST", 2)


def dtypes(model):
    return {weight.dtype for weight in model.module.parameters()}


def test_a_large_model_stays_in_the_dtype_that_it_is_stored_in(folder, request):
    assert dtypes(open_model(folder)) == {torch.float32}
    request.getfixturevalue("all_are_large")
    assert dtypes(open_model(folder)) == {torch.bfloat16}


def test_it_is_judged_as_the_same_model_in_float32_is(folder, request):
    small = driftwalk.verify(folder, "emulated:bf16", probe=PROBE, cache=False)
    request.getfixturevalue("all_are_large")
    large = driftwalk.verify(folder, "emulated:bf16", probe=PROBE, cache=False)
    assert large.verdict == small.verdict == "pass"
    assert large.reference.flags["weights"] == "streamed"
    assert "weights" not in small.reference.flags
    for one, other in zip(small.layers, large.layers, strict=True):
        assert one == other, one.point.name


def test_stream_is_for_models_of_any_size(folder, monkeypatch):
    monkeypatch.setattr(lending, "SMALLEST", 2)
    zoo.build("llama").save_pretrained(folder)  # float32, so that bfloat16 is another dtype
    reports = [
        driftwalk.verify(folder, "emulated:bf16", probe=PROBE, cache=False, stream=stream)
        for stream in (False, True)
    ]
    assert [report.candidate.flags.get("weights") for report in reports] == [None, "streamed"]
    assert reports[1].candidate.spec == "emulated:bf16,stream=on"
    for one, other in zip(reports[0].layers, reports[1].layers, strict=True):
        assert one == other, one.point.name
    done = CliRunner().invoke(
        app, ["verify", str(folder), "-c", "emulated:bf16", "--stream", "--json"]
    )
    assert json.loads(done.stdout)["candidate"]["flags"]["weights"] == "streamed"


@pytest.mark.parametrize("asked", ["gpu", "cuda", ""])
def test_a_witness_that_is_not_to_be_had_is_an_error(asked):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = CliRunner().invoke(app, ["verify", "demo:decoder", "-c", "torch", "--witness", asked])
    assert done.exit_code == (3 if asked == "cuda" else 2), done.output


@pytest.mark.usefixtures("all_are_large")
def test_a_changed_weight_in_a_late_block_is_placed(folder):
    wrong = zoo.build("llama")
    wrong.load_state_dict({n: w.float() for n, w in open_model(folder).module.state_dict().items()})
    with torch.no_grad():
        wrong.model.layers[-1].mlp.down_proj.weight *= 1.05
    report = driftwalk.verify(folder, wrong.eval(), probe=PROBE)
    assert report.verdict == "drift"
    assert report.root_cause.point.name == f"layer.{len(wrong.model.layers) - 1}"


@pytest.mark.usefixtures("all_are_large")
def test_what_a_model_makes_up_must_be_as_fine_as_in_float32():
    module = nn.Linear(4, 4).bfloat16()
    assert sources._may_stay(module)
    module.register_buffer("angles", torch.ones(3), persistent=False)
    assert sources._may_stay(module)
    module.register_buffer("angles", torch.ones(3, dtype=torch.bfloat16), persistent=False)
    assert not sources._may_stay(module)
    module.register_buffer("angles", torch.ones(3, dtype=torch.bfloat16), persistent=True)
    assert sources._may_stay(module)
    module.is_quantized = True
    assert not sources._may_stay(module)


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def cut(folder):
    file = shards(folder)[1]
    file.write_bytes(file.read_bytes()[:-7])
    return file.name


def emptied(folder):
    shards(folder)[1].write_bytes(b"")
    return shards(folder)[1].name


def garbled(folder):
    file = shards(folder)[0]
    file.write_bytes(file.read_bytes()[:8] + b"{" * 4000)
    return file.name


def removed(folder):
    file = shards(folder)[1]
    file.unlink()
    return file.name


def broken_index(folder):
    (folder / "model.safetensors.index.json").write_text('{"weight_map": ')
    return "model.safetensors.index.json"


@pytest.mark.parametrize("harm", [cut, emptied, garbled, removed, broken_index])
def test_a_file_that_is_wrong_is_named(folder, harm):
    name = harm(folder)
    done = CliRunner().invoke(app, ["verify", str(folder), "-c", "emulated:bf16"])
    assert done.exit_code == 3, done.output
    assert name in done.output
    assert "Traceback" not in done.output


def test_nothing_is_wrong_with_what_was_saved(folder):
    assert what_is_wrong(folder) == ""


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_no_file_can_hurt(tmp_path_factory, data, framed):
    folder = tmp_path_factory.mktemp("any")
    text = len(data).to_bytes(8, "little") + data if framed else data
    (folder / "model.safetensors").write_bytes(text)
    assert isinstance(what_is_wrong(folder), str)


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=12), x, max_size=3),
    ),
    st.sampled_from(["weight_map", "data_offsets", "model"]),
)
def test_no_header_and_no_index_can_hurt(tmp_path_factory, value, key):
    folder = tmp_path_factory.mktemp("any")
    text = json.dumps({key: value}).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    (folder / "model.safetensors.index.json").write_bytes(text)
    assert isinstance(what_is_wrong(folder), str)


class Meddling(nn.Module):
    """Another implementation, while which runs somebody writes to the folder."""

    def __init__(self, module: nn.Module, file: Path) -> None:
        super().__init__()
        self.module = module
        self.file = file

    def forward(self, input_ids):
        os.utime(self.file, ns=(1, 1))
        return self.module(input_ids=input_ids)


def test_a_file_that_is_changed_during_the_run_is_an_error(folder):
    module = Meddling(open_model(folder).module, shards(folder)[1])
    with pytest.raises(driftwalk.DriftwalkError, match=rf"{shards(folder)[1].name}.*was changed"):
        driftwalk.verify(folder, module, probe=PROBE)
