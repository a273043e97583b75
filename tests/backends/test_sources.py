"""Where models come from: what is understood, and what is refused with a way out."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.errors import BackendError, ModelError, UsageError
from driftwalk_backends.fingerprint import fingerprint
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import LoadedModel, open_model, torch_model
from nets import residual


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "vit"])
def test_a_saved_folder_comes_back_with_its_head(name: str, tmp_path: Path) -> None:
    module = zoo.build(name)
    module.save_pretrained(tmp_path / name)
    model = open_model(tmp_path / name)
    assert type(model.module) is type(module)
    assert model.label.endswith(name)
    assert (model.source, model.notes) == ("folder", ())
    assert not model.module.training
    report = driftwalk.verify(str(tmp_path / name), candidate=module, policy="fixed:0")
    assert report.ok, report
    assert report.layers[-1].point.name == "logits"
    assert report.model["source"] == "folder"


def test_a_half_precision_checkpoint_is_opened_in_float32(tmp_path: Path) -> None:
    zoo.build("gpt2").half().save_pretrained(tmp_path)
    assert next(open_model(tmp_path).module.parameters()).dtype is torch.float32


def test_weights_the_checkpoint_lacks_are_the_same_each_time_and_noted(tmp_path: Path) -> None:
    zoo.build("bert").bert.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["BertForMaskedLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    first, second = open_model(tmp_path), open_model(tmp_path)
    assert fingerprint(first.module) == fingerprint(second.module)
    (note,) = first.notes
    assert note.startswith("The checkpoint lacks ")
    assert "made up (seed 0): cls.predictions." in note
    assert note in driftwalk.verify(tmp_path, candidate="torch", policy="dtype").notes


def saved(folder: Path) -> Path:
    zoo.build("gpt2").save_pretrained(folder)
    return folder


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    (saved(tmp_path) / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config\.json.*save_pretrained"):
        open_model(tmp_path)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    (saved(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"config\.json but no weights.*download complete"):
        open_model(tmp_path)


def test_a_folder_with_damaged_weights(tmp_path: Path) -> None:
    (saved(tmp_path) / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(ModelError, match="Cannot load the model in") as caught:
        open_model(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["./no/such/folder", "/no/such/folder", "a/b/c"])
def test_a_missing_folder(given: str) -> None:
    with pytest.raises(ModelError, match=f"There is no folder '{given}'"):
        open_model(given)


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(ModelError, match=r"config\.json"):
        open_model(file)


@pytest.mark.parametrize("given", [None, 3, "", "  ", ["gpt2"]])
def test_what_is_no_model_at_all(given: object) -> None:
    with pytest.raises(UsageError, match=r"Cannot take .* for a model"):
        open_model(given)


def test_a_hub_id_offline_fails_at_once_and_says_what_to_do(monkeypatch) -> None:
    """Nobody is asked, and nothing is tried again after a while."""
    waited: list[object] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(socket.socket, "connect", lambda *there: waited.append(there))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *there, **_: waited.append(there))
    with pytest.raises(ModelError) as caught:
        open_model("nobody/no-such-model-anywhere")
    assert waited == []
    text = str(caught.value)
    assert text.startswith("Cannot load 'nobody/no-such-model-anywhere': it is no folder here")
    assert "hf download nobody/no-such-model-anywhere --local-dir DIR" in text
    assert "demo:decoder" in text
    assert "\n" not in text


def test_an_onnx_file_is_a_model_without_torch(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"Cannot read 'model\.onnx'"):
        open_model("model.onnx")
    found = open_model(str(residual(tmp_path / "a.onnx")))
    assert found.describe()["source"] == "ONNX graph"
    with pytest.raises(UsageError, match="there is no torch model"):
        torch_model(found)


FACTORIES = """
from torch import nn

def good():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

def raising():
    raise RuntimeError("out of luck\\nand more")

def wrong():
    return {"not": "a module"}

number = 3
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working folder, as a user would have it; a name no other test has."""
    name = f"own_models_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name


def test_a_factory(factories: str) -> None:
    model = open_model(f"{factories}:good")
    assert isinstance(model.module, nn.Sequential)
    assert model.source == "factory"
    report = driftwalk.verify(f"{factories}:good", candidate="torch:cpu:fp64", policy="dtype")
    assert report.ok


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        (":missing", "has no attribute 'missing'"),
        (":raising", "the factory raised RuntimeError: out of luck"),
        (":wrong", "gave a dict; a factory returns an nn.Module"),
        (":number", "'int' object is not callable"),
        ("_not_there:good", "No module named"),
    ],
)
def test_a_factory_that_does_not_work(factories: str, rest: str, says: str) -> None:
    with pytest.raises(ModelError) as caught:
        open_model(factories + rest)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_module_and_a_loaded_model_are_taken_as_they_are() -> None:
    module = zoo.build("gpt2")
    model = open_model(module)
    assert model.module is module
    assert (model.label, model.source) == ("GPT2LMHeadModel", "nn.Module")
    assert open_model(model) is model
    assert isinstance(model, LoadedModel)
    assert model.describe()["parameters"] == str(sum(p.numel() for p in module.parameters()))


def test_a_missing_tokenizer_says_what_to_give_instead(tmp_path: Path) -> None:
    for model in (open_model(zoo.build("gpt2")), open_model(saved(tmp_path))):
        with pytest.raises(ModelError, match="Give token ids or arrays instead of text"):
            make_probe(model, "some text")


REMOTE = """
from pathlib import Path
Path(__file__).with_name("it_ran").touch()
Path("it_ran").touch()
from transformers import PretrainedConfig
class OwnConfig(PretrainedConfig):
    model_type = "own"
"""


def test_code_in_a_checkpoint_is_not_run_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "own"
    folder.mkdir()
    auto_map = {"AutoConfig": "own_code.OwnConfig", "AutoModel": "own_code.OwnModel"}
    config = {"model_type": "own", "auto_map": auto_map, "architectures": ["OwnModel"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own_code.py").write_text(REMOTE)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError) as caught:
        open_model(folder)
    assert "brings its own Python code" in str(caught.value)
    assert "--trust-remote-code (trust_remote_code=True)" in str(caught.value)
    assert not list(tmp_path.rglob("it_ran"))


def test_an_architecture_transformers_lacks(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no_such_architecture"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="no_such_architecture") as caught:
        open_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_opening_a_model_leaves_the_random_numbers_alone(tmp_path: Path) -> None:
    saved(tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    open_model(tmp_path)
    open_model("demo:encoder")
    assert torch.equal(torch.rand(1), expected)
