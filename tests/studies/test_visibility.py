"""What a state sees: against finite differences, and nothing of the future in a causal model."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from driftwalk.document import from_dict, to_dict, to_json
from driftwalk.dtypes import Array
from driftwalk.errors import DriftwalkError, ModelError, ProbeError, UsageError
from driftwalk.tasks.studies.results import Pairs, Visibility
from driftwalk.tasks.studies.visibility import look_ahead, standard_error, visibility
from driftwalk_reports.schema import load_schema

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")

IDS = np.random.default_rng(3).integers(3, zoo.VOCABULARY, (1, 9))
BLOCKS: dict[str, Callable[[Any], Any]] = {
    "gpt2": lambda model: model.transformer.h,
    "llama": lambda model: model.model.layers,
    "bert": lambda model: model.bert.encoder.layer,
}


def block_outputs(model: Any, blocks: Any, shift: tuple[int, int, Array] | None) -> list[Array]:
    """Input of the first block and outputs of all, each row with its own shift at one state."""
    seen: list[Array] = []
    rows = 1 if shift is None else len(shift[2])

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        if shift is not None and shift[0] == len(seen):
            tensor[:, shift[1]] += torch.from_numpy(shift[2])
        seen.append(tensor.numpy().copy())
        return tensor

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (moved(args[0]), *args[1:]), kwargs

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        return (moved(output[0]), *output[1:]) if isinstance(output, tuple) else moved(output)

    handles = [blocks[0].register_forward_pre_hook(before, with_kwargs=True)]
    handles += [block.register_forward_hook(after) for block in blocks]
    try:
        with torch.no_grad():
            model(input_ids=torch.from_numpy(IDS).expand(rows, -1))
    finally:
        for handle in handles:
            handle.remove()
    return seen


def by_differences(
    name: str, model: Any, source: tuple[int, int], target: tuple[int, int]
) -> float:
    """The same influence, from central differences along every axis."""
    step = 1e-4 * np.eye(zoo.WIDTH)
    ends = [
        block_outputs(model, BLOCKS[name](model), (*source, sign * step))[target[0]][:, target[1]]
        for sign in (1, -1)
    ]
    return float(np.linalg.norm((ends[0] - ends[1]) / 2e-4) / np.sqrt(zoo.WIDTH))


@pytest.fixture(scope="module")
def maps() -> dict[str, Visibility]:
    return {name: visibility(zoo.build(name), IDS, backend="truth") for name in BLOCKS}


@pytest.mark.parametrize("name", BLOCKS)
def test_equals_finite_differences(maps: dict[str, Visibility], name: str) -> None:
    found = maps[name]
    assert found.exact
    model = zoo.build(name).double()
    model.set_attn_implementation("eager")
    random = np.random.default_rng(5)
    checked = nonzero = 0
    while checked < 50:
        a, b = sorted(random.integers(0, zoo.LAYERS + 1, 2).tolist())
        s, t = random.integers(0, IDS.shape[1], 2).tolist()
        if a == b:
            continue
        expected = by_differences(name, model, (a, s), (b, t))
        assert found.influence[b, t, a, s] == pytest.approx(expected, rel=0.01, abs=1e-10)
        checked += 1
        nonzero += expected > 1e-6
    assert nonzero > 15


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_causal_model_sees_nothing_of_the_future(maps: dict[str, Visibility], name: str) -> None:
    found = maps[name]
    positions = len(found.tokens)
    for t in range(positions):
        assert not found.influence[:, t, :, t + 1 :].any()
    for row in range(1, zoo.LAYERS + 1):  # and all of the past, but for the norm
        assert all(found.influence[row, t, :row, : t + 1].all() for t in range(positions))
    assert found.causal is True
    assert found.leak is None
    assert found.failed == ""


def test_an_encoder_has_no_cone(maps: dict[str, Visibility]) -> None:
    found = maps["bert"]
    assert found.causal is False
    assert found.leak is not None
    assert found.leak.target_position < found.leak.source_position
    assert found.failed == ""
    assert found.influence[1, 0, 0, 1:].all()


def test_a_layer_that_looks_ahead_is_found() -> None:
    """One block of a causal model that hands every token a little of all."""
    model: Any = zoo.build("gpt2")

    def peek(module: nn.Module, args: Any, output: Any) -> Any:
        state = output[0] if isinstance(output, tuple) else output
        mixed = state + 1e-6 * state.mean(dim=1, keepdim=True)
        return (mixed, *output[1:]) if isinstance(output, tuple) else mixed

    model.transformer.h[1].register_forward_hook(peek)
    found = visibility(model, IDS, directions=2)
    assert found.leak is not None
    assert found.failed.startswith("the model is causal, but ")
    assert found.leak.source_position > found.leak.target_position
    # Up to the block before it, nothing leaks.
    assert not any(found.influence[1, t, :, t + 1 :].any() for t in range(IDS.shape[1]))


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_each_half_of_an_encoder_decoder(name: str) -> None:
    ids = {"input_ids": IDS, "decoder_input_ids": IDS[:, :6]}
    decoder = visibility(zoo.build(name), ids, directions=2)
    assert decoder.stack == "decoder"
    assert len(decoder.tokens) == 6
    assert decoder.leak is None
    assert decoder.causal is True
    assert "map of decoder alone" in decoder.notes[-1]
    encoder = visibility(zoo.build(name), ids, directions=2, stack="encoder", layer=1)
    assert encoder.point == "encoder.layer.1"
    assert encoder.leak is not None
    assert encoder.failed == ""


@pytest.mark.parametrize("name", ["mixtral", "gemma3", "gpt_neox", "albert", "modernbert", "vit"])
def test_other_architectures(name: str) -> None:
    probe = IDS if name != "vit" else None
    found = visibility(zoo.build(name), probe, directions=1)
    assert found.failed == ""
    assert (found.leak is None) == (name in {"mixtral", "gemma3", "gpt_neox"})


def test_few_directions_estimate_what_all_give() -> None:
    """Within a few of the standard errors that are told, in float32 with the model's own sdpa."""
    model = zoo.build("llama")
    exact, some = (visibility(model, IDS, directions=n) for n in (0, 8))
    assert exact.error == 0.0
    assert some.error is not None
    assert 0.005 < some.error < 0.2
    there = exact.influence > 0
    off = np.abs(some.influence[there] / exact.influence[there] - 1)
    assert np.median(off) < 1.5 * some.error
    assert np.median(off) > 0.2 * some.error
    assert visibility(model, IDS, directions=1).error is None


def test_a_derivative_that_is_not_finite_is_no_zero() -> None:
    model: Any = zoo.build("gpt2")
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[0, 0] = np.nan
    with pytest.raises(ModelError, match=r"derivative of layer\.1 is not finite"):
        visibility(model, IDS, directions=1)


def test_the_model_is_left_as_it_was() -> None:
    model = zoo.build("gpt2")
    before = copy.deepcopy(model.state_dict())
    visibility(model, IDS, directions=1)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_normalisations(maps: dict[str, Visibility]) -> None:
    found = maps["gpt2"]
    raw, layer, norm = (found.cone("layer.1", 4, kind) for kind in ("raw", "layer", "norm"))
    np.testing.assert_array_equal(raw[:2], found.influence[2, 4, :2])
    np.testing.assert_array_equal(raw[3:], found.influence[3:, :, 2, 4])
    assert raw[2, 4] == 1
    assert raw[2].sum() == 1
    np.testing.assert_allclose(layer.max(axis=1), 1)
    np.testing.assert_allclose(layer[0], raw[0] / raw[0].max())
    sizes = np.array(found.norms)
    np.testing.assert_allclose(norm[0, :5], raw[0, :5] * sizes[0, :5] / sizes[2, 4])
    np.testing.assert_allclose(norm[4, 4:], raw[4, 4:] * sizes[2, 4] / sizes[4, 4:])


def test_a_result_is_strict_json_and_comes_back(maps: dict[str, Visibility]) -> None:
    found = maps["llama"]
    data = json.loads(to_json(found))
    assert data["kind"] == "visibility"
    jsonschema.Draft202012Validator(load_schema(kind="visibility")).validate(data)
    again = from_dict(data)
    assert isinstance(again, Visibility)
    assert to_dict(again) == to_dict(found)
    np.testing.assert_array_equal(again.influence, found.influence)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"position": 99}, "at position 99"),
        ({"point": "layer.77"}, "layer.77"),
        ({"norms": [[1.0]]}, "9 tokens"),
        ({"pairs": {"low": 0.0, "step": 1.0, "codes": "AAAA"}}, "pairs.codes"),
        ({"pairs": {"low": 0.0, "step": 1.0, "codes": "<script>"}}, "pairs.codes"),
    ],
)
def test_a_file_that_does_not_add_up_is_refused(
    maps: dict[str, Visibility], changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        from_dict(to_dict(maps["gpt2"]) | changes).influence  # type: ignore[attr-defined]  # noqa: B018


def test_codes_lose_nothing_that_matters() -> None:
    random = np.random.default_rng(0)
    values = 10 ** random.uniform(-12, 3, (3, 4, 3, 4)) * (random.random((3, 4, 3, 4)) > 0.3)
    for n in range(3):
        values[n, :, n:] = 0
    again = Pairs.of(values).array(3, 4)
    assert ((again == 0) == (values == 0)).all()
    np.testing.assert_allclose(again, values, rtol=1e-3)
    assert not Pairs.of(np.zeros((3, 4, 3, 4))).array(3, 4).any()


def test_the_largest_leak_is_told() -> None:
    influence = np.zeros((3, 4, 3, 4))
    influence[2, 3, 1, 0] = 9.0  # the past: no leak
    assert look_ahead(("embed", "layer.0", "layer.1"), influence) is None
    influence[1, 0, 0, 1] = 1e-30  # the next token is the future already
    assert look_ahead(("embed", "layer.0", "layer.1"), influence) is not None
    influence[2, 1, 1, 3] = 0.5
    leak = look_ahead(("embed", "layer.0", "layer.1"), influence)
    assert leak is not None
    assert (leak.pairs, leak.influence) == (2, 0.5)
    assert (leak.source, leak.source_position) == ("layer.0", 3)
    assert (leak.target, leak.target_position) == ("layer.1", 1)


def test_the_standard_error_is_that_of_a_mean() -> None:
    """Many estimates of one Jacobian scatter by what each says of itself."""
    random = np.random.default_rng(0)
    jacobian = random.standard_normal((24, 24)) * random.exponential(1, 24)
    true = np.linalg.norm(jacobian)
    offs, told = [], []
    for _ in range(400):
        columns = np.linalg.qr(random.standard_normal((24, 6)))[0]
        squares = 24 * np.linalg.norm(jacobian.T @ columns, axis=0) ** 2
        offs.append(np.sqrt(squares.mean()) / true - 1)
        error = standard_error(np.array([squares.mean()]), np.array([squares.var()]), 6, 24)
        assert error is not None
        told.append(error)
    assert np.sqrt(np.mean(np.square(told))) == pytest.approx(np.std(offs), rel=0.2)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"layer": 7}, UsageError, "There is no layer '7' here; there is embed, layer.0"),
        ({"position": 9}, UsageError, "the text has 9 tokens"),
        ({"directions": -1}, UsageError, "expected 0"),
        ({"stack": "decoder"}, UsageError, "There is no stack 'decoder'"),
        ({"text": np.ones((2, 4), int)}, ProbeError, "the probe has 2 rows"),
        ({"backend": "onnxruntime"}, UsageError, "has no derivatives"),
        ({"backend": "emulated:fp16"}, UsageError, "in fp16 a small derivative"),
        (
            {"text": {"input_ids": IDS, "attention_mask": (IDS.min() < IDS).astype(int)}},
            ProbeError,
            "without padding",
        ),
        ({"text": np.ones((1, 600), int)}, DriftwalkError, "Shorten the"),
    ],
)
def test_what_cannot_be_mapped(
    arguments: dict[str, Any], error: type[DriftwalkError], says: str
) -> None:
    with pytest.raises(error, match=says):
        visibility(zoo.build("gpt2"), **{"text": IDS} | arguments)
