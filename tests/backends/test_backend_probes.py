"""`backend.trace(...)` and `.run(...)` take what `verify(probe=)` takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers as tf

import driftwalk
import zoo
from driftwalk.errors import ProbeError, UsageError
from driftwalk.spec import Spec
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.torch_eager import TorchEager

MODEL = "demo:decoder"
IDS = np.array([[1, 2, 3, 4]])


def given(kind: str, folder: Path) -> object:
    probe = driftwalk.Probe({"input_ids": IDS})
    return {
        "nothing": None,
        "text": "The capital",
        "texts": ["The capital", "of"],
        "ids": IDS.tolist(),
        "arrays": {"input_ids": IDS},
        "probe": probe,
        "file": probe.save(folder / "probe.safetensors"),
        "file name": str(probe.save(folder / "probe.safetensors")),
    }[kind]


KINDS = ("nothing", "text", "texts", "ids", "arrays", "probe", "file", "file name")


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_verify_takes(kind: str, tmp_path: Path) -> None:
    asked = given(kind, tmp_path)
    expected = make_probe(open_model(MODEL), asked)
    with driftwalk.backend("torch", MODEL) as backend:
        trace = backend.trace(asked)
        assert trace.probe.sha256 == expected.sha256
        plain = backend.run(asked)
    assert plain.keys() == trace.outputs.keys()
    for name, array in plain.items():
        np.testing.assert_array_equal(array, trace.outputs[name])


def test_nothing_need_be_said_at_all() -> None:
    with driftwalk.backend("emulated:fp16", MODEL) as backend:
        assert backend.trace().probe.sha256 == make_probe(open_model(MODEL)).sha256
        assert "logits" in backend.run()


def test_a_recording_has_a_probe_of_its_own(tmp_path: Path) -> None:
    with driftwalk.backend("torch", MODEL) as backend:
        backend.trace("one two three").save(tmp_path / "golden.trace")
    with driftwalk.backend(f"trace:{tmp_path / 'golden.trace'}", MODEL) as recorded:
        assert recorded.trace().probe.texts == ("one two three",)
        assert recorded.trace("one two three").names == recorded.trace().names
        with pytest.raises(UsageError, match="probe"):
            recorded.trace("other words")


def test_a_wrong_probe_is_refused_as_verify_does() -> None:
    with driftwalk.backend("torch", MODEL) as backend:
        with pytest.raises(ProbeError, match="takes no input 'pixels'"):
            backend.trace({"pixels": IDS})
        with pytest.raises(ProbeError, match="outside the vocabulary"):
            backend.run([[10**6]])


def test_a_backend_of_ones_own_making_says_what_it_needs() -> None:
    bare = TorchEager(Spec("torch"), MODEL)
    assert bare.trace(make_probe(open_model(MODEL), "some text")).names
    with pytest.raises(UsageError, match=r"driftwalk\.backend\(spec, model\)"):
        bare.trace("some text")


@pytest.mark.parametrize("given", [[[5, 6, 7]], {"pixel_values": np.ones((1, 3))}])
def test_ids_for_a_model_of_images_are_told_that_it_wants_an_image(given: object) -> None:
    with pytest.raises(ProbeError, match=r"wants an image there: give --input pixel_values=FILE"):
        make_probe(open_model(zoo.build("vit")), given)


def test_a_tower_without_its_image_is_told_so() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    text = sizes | {"num_attention_heads": 2, "vocab_size": 20, "max_position_embeddings": 8}
    vision = sizes | {"num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    config = tf.CLIPConfig(text_config=text | SPECIAL, vision_config=vision, projection_dim=8)
    model = open_model(tf.CLIPModel(config).eval())
    with pytest.raises(
        ProbeError, match=r"lacks input 'pixel_values'.* Give an image with --input"
    ):
        make_probe(model, {"input_ids": [[1, 2, 3]]})


SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
