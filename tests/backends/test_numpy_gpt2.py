"""The worked example: GPT-2 in plain numpy, held to PyTorch layer by layer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import driftwalk
from driftwalk_backends.demo import decoder

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "numpy_gpt2"
PADDED = {
    "input_ids": np.array([[5, 17, 3, 8, 44, 21], [256, 256, 9, 100, 7, 2]]),
    "attention_mask": np.array([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("gpt2")
    decoder().save_pretrained(made)
    return made


def port(folder: Path, *flags: str) -> str:
    words = [sys.executable, str(EXAMPLE / "port.py"), str(folder), *flags]
    return f"command:{' '.join(words)},map={EXAMPLE / 'map.toml'}"


def verified(folder: Path, *flags: str, **options) -> driftwalk.Report:
    spec = port(folder, *flags)
    return driftwalk.verify(str(folder), candidate=spec, probe=PADDED, **options)


def test_the_port_passes_the_calibrated_policy(folder):
    report = verified(folder)
    assert report.verdict == "pass", report
    assert report.policy.name == "calibrated"
    assert [layer.point.name for layer in report.layers] == [
        "embed",
        *(f"layer.{n}" for n in range(6)),
        "norm",
        "logits",
    ]
    assert all(layer.tolerance.k for layer in report.layers)


def test_the_wrong_gelu_is_found_in_the_first_block_s_mlp(folder):
    report = verified(folder, "--gelu", "erf")
    assert report.verdict == "drift"
    assert report.first_divergence.point.name == "layer.0"
    assert report.root_cause.point.name == "layer.0"
    assert report.culprit is not None
    assert report.culprit.module == "transformer.h.0.mlp.act"
    assert report.culprit.sentence.startswith("layer.0 mlp.act: introduced ")


def test_finer_depths_are_asked_of_the_program(folder, monkeypatch):
    report = verified(folder, depth="module")
    inside = [layer for layer in report.layers if layer.point.name.startswith("layer.3.")]
    assert {layer.verdict for layer in inside} == {"ok"}
    assert "layer.3.mlp.act" in [layer.point.name for layer in inside]
    assert report.verdict == "pass"
    assert "DRIFTWALK_DEPTH" not in os.environ


def test_the_port_decodes(folder):
    report = driftwalk.generate(str(folder), port(folder), prompt=PADDED, steps=4)
    assert report.verdict == "pass", report
    assert report.cache_paths["candidate"].agreement == "within noise"
    assert report.layer("layer.5.value").metrics is not None


def test_a_slot_that_is_lost_where_the_cache_grows_is_placed(folder):
    """The ninth token needs another page; what is copied there lacks the eighth."""
    spec = port(folder, "--lose-slot", "2")
    report = driftwalk.generate(str(folder), spec, prompt=[[5, 17, 3, 9]], steps=7)
    assert report.cause == "cache"
    assert (report.root_cause.point.name, report.root_cause.slot) == ("layer.2", 7)
    assert report.root_cause.step == 5
    assert "layer.2: what its cache holds as key in slot 7" in report.explanation
