"""Faults in the initialisers of an exported graph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import driftwalk.tasks.selftest.run as under_test
import zoo
from driftwalk.registry import create
from driftwalk_backends.faults import planning
from driftwalk_backends.faults.graph import PatchedOnnxRuntime, faulty_backend
from driftwalk_backends.faults.planning import Fault, FaultyModel, Plan
from driftwalk_backends.onnx.runtime import OnnxRuntime
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import LoadedModel, open_model

DENSE = "bert.encoder.layer.1.output.dense.weight"
NORM = "bert.encoder.layer.2.output.LayerNorm.weight"


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return open_model(zoo.build("bert"))


@pytest.fixture(scope="module")
def clean(model: LoadedModel) -> Iterator[OnnxRuntime]:
    with create("onnxruntime", model) as backend:
        assert isinstance(backend, OnnxRuntime)
        yield backend


def flip(name: str, point: str) -> Fault:
    settings = {"role": "exponent_low", "bit": 25, "element": 70 if "dense" in name else 3}
    return Fault("bit_flip", (point,), name, f"{name} flipped", settings | {"dtype": "fp32"})


@pytest.mark.parametrize(("name", "point"), [(DENSE, "layer.1"), (NORM, "layer.2")])
def test_a_flip_needs_no_new_export(
    model: LoadedModel, clean: OnnxRuntime, name: str, point: str
) -> None:
    """The dense weight stands in the graph transposed and renamed, the norm's under its name."""
    probe = make_probe(model)
    faulty = FaultyModel(model, flip(name, point))
    right = clean.trace(probe)
    with faulty_backend(clean, faulty, probe) as wrong, create("torch", faulty) as same:
        assert isinstance(wrong, PatchedOnnxRuntime)
        assert len(wrong._changes) == 1
        found, expected = wrong.trace(probe), same.trace(probe)
        plain = wrong.run(probe)
    for state in expected:
        np.testing.assert_allclose(found[state.point.name], state.array, rtol=0, atol=1e-5)
    before = right.names[: right.names.index(point)]
    assert all(np.array_equal(found[n], right[n]) for n in before)
    assert np.abs(found[point] - right[point]).max() > 1e-3
    np.testing.assert_allclose(plain["logits"], found["logits"], atol=1e-5)


def test_the_clean_export_is_left_alone(model: LoadedModel, clean: OnnxRuntime) -> None:
    probe = make_probe(model)
    files = {path: path.read_bytes() for path in clean._export(probe).folder.iterdir()}
    with faulty_backend(clean, FaultyModel(model, flip(DENSE, "layer.1")), probe) as wrong:
        wrong.trace(probe)
        assert wrong._export(probe).folder != clean._export(probe).folder  # type: ignore[attr-defined]
    assert files == {path: path.read_bytes() for path in files}


def test_what_was_folded_away_is_exported_anew(model: LoadedModel, clean: OnnxRuntime) -> None:
    """The exporter looks positions up once and for all; an epsilon is no initialiser."""
    probe = make_probe(model)
    table = "bert.embeddings.position_embeddings.weight"
    rolled = Fault("shifted_positions", ("embed",), table, "shifted")
    settings = {"name": "eps", "value": 1e-3}
    wrong = Fault(
        "wrong_epsilon", ("layer.0",), "bert.encoder.layer.0.output.LayerNorm", "", settings
    )
    for fault in (rolled, wrong):
        backend = faulty_backend(clean, FaultyModel(model, fault), probe)
        assert type(backend) is OnnxRuntime
        assert backend.spec.options["cache"] == "off"


def test_selftest_through_onnx_runtime(
    model: LoadedModel, clean: OnnxRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (flip(DENSE, "layer.1"), flip(NORM, "layer.2"))
    monkeypatch.setattr(planning, "plan", lambda *_: Plan(given, {}))
    result = under_test.selftest(model, "onnxruntime", trusted=0)
    assert [trial.root_cause for trial in result.trials] == ["layer.1", "layer.2"]
    assert result.exit_code == 0
