"""Feeding a graph that others made: names, then types and shapes, and what exporters add."""

from __future__ import annotations

import numpy as np
import pytest

from driftwalk.errors import BackendError
from driftwalk_backends.onnx.feeds import feeds
from driftwalk_backends.onnx.graph import Value

IDS = np.arange(10, dtype=np.int64).reshape(2, 5)
MASK = np.ones((2, 5), dtype=np.int64)
PIXELS = np.ones((2, 3, 4, 4), dtype=np.float32)


def ints(name: str, *shape: int | str) -> Value:
    return Value(name, "tensor(int64)", shape or ("batch", "length"))


def only(values: list[Value], given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    (feed,) = feeds("g.onnx", values, given)
    return feed


def test_inputs_are_matched_by_name_and_cast_to_the_graphs_type() -> None:
    narrow = Value("input_ids", "tensor(int32)", ("b", "s"))
    flags = Value("attention_mask", "tensor(bool)", ("b", "s"))
    feed = only([narrow, flags], {"attention_mask": MASK, "input_ids": IDS})
    assert feed["input_ids"].dtype == np.int32
    assert feed["attention_mask"].dtype == np.bool_
    np.testing.assert_array_equal(feed["input_ids"], IDS)


def test_what_optimum_adds_is_made_up() -> None:
    past = Value("past_key_values.0.key", "tensor(float)", ("b", 4, "past_sequence_length", 8))
    cross = Value("past_key_values.0.encoder.key", "tensor(float)", ("b", 4, "length", 8))
    flag = Value("use_cache_branch", "tensor(bool)", (1,))
    values = [ints("input_ids"), past, cross, flag, ints("position_ids"), ints("token_type_ids")]
    feed = only([*values, ints("attention_mask")], {"input_ids": IDS})
    assert feed[past.name].shape == (2, 4, 0, 8)
    assert feed[cross.name].shape == (2, 4, 5, 8)
    assert feed["use_cache_branch"].tolist() == [False]
    assert feed["position_ids"].tolist() == [[0, 1, 2, 3, 4]] * 2
    assert not feed["token_type_ids"].any()
    assert feed["attention_mask"].all()


def test_a_past_is_empty_where_the_graph_has_no_name_for_its_length() -> None:
    past = Value("past_key_values.0.key", "tensor(float)", ("", 4, "", 8))
    feed = only([ints("input_ids", "", ""), past], {"input_ids": IDS})
    assert feed[past.name].shape == (2, 4, 0, 8)


@pytest.mark.parametrize(
    ("kind", "given", "fits"),
    [
        ("tensor(uint8)", [[0, 255]], True),
        ("tensor(uint8)", [[0, 256]], False),
        ("tensor(uint8)", [[-1, 0]], False),
        ("tensor(bool)", [[0, 1]], True),
        ("tensor(bool)", [[0, 2]], False),
        ("tensor(float)", [[0, 1]], False),
        ("seq(tensor(int64))", [[0, 1]], False),
    ],
)
def test_numbers_are_the_same_in_the_graphs_type_or_refused(
    kind: str, given: list[list[int]], fits: bool
) -> None:
    values = [Value("ids", kind, ("b", "s"))]
    if fits:
        assert only(values, {"ids": np.array(given)})["ids"].tolist() == given
    else:
        with pytest.raises(BackendError, match="Nothing in the probe fits input 'ids'"):
            feeds("g.onnx", values, {"ids": np.array(given)})


def test_padding_on_the_left_leaves_two_ways_to_count() -> None:
    left, right = MASK.copy(), MASK.copy()
    left[0, :2], right[0, 3:] = 0, 0
    values = [ints("input_ids"), ints("attention_mask"), ints("position_ids")]
    assert len(feeds("g", values, {"input_ids": IDS, "attention_mask": right})) == 1
    from_zero, skipping = feeds("g", values, {"input_ids": IDS, "attention_mask": left})
    assert from_zero["position_ids"][0].tolist() == [0, 1, 2, 3, 4]
    assert skipping["position_ids"][0].tolist() == [0, 0, 0, 1, 2]
    given = {"input_ids": IDS, "attention_mask": left, "position_ids": IDS}
    assert only(values, given)["position_ids"] is not None, "what the probe says is not doubted"


def test_without_names_types_and_shapes_decide() -> None:
    image = Value("7", "tensor(float)", ("n", 3, "h", "w"))
    feed = only([ints("3"), image], {"pixel_values": PIXELS, "input_ids": IDS})
    np.testing.assert_array_equal(feed["3"], IDS)
    np.testing.assert_array_equal(feed["7"], PIXELS)


def test_where_types_and_shapes_do_not_decide_every_way_is_given() -> None:
    found = feeds("g", [ints("0"), ints("1")], {"input_ids": IDS, "attention_mask": MASK})
    assert len(found) == 2
    assert {tuple(feed["0"].ravel()) for feed in found} == {tuple(IDS.ravel()), tuple(MASK.ravel())}


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (ints("input_ids", 1, 128), "--batch, --length"),
        (Value("input_ids", "tensor(string)", ("b", "s")), ""),
        (Value("input_ids", "tensor(float)", ("b", "s")), ""),
        (Value("pixel_values", "tensor(float)", ("b", 3, 8, 8)), ""),
        (Value("encoder_hidden_states", "tensor(float)", ("b", "s", 32)), "half of a model"),
    ],
)
def test_what_does_not_fit_lists_both_sides(value: Value, hint: str) -> None:
    with pytest.raises(BackendError) as caught:
        feeds("g.onnx", [value], {"input_ids": IDS})
    text = str(caught.value)
    assert f"input {value.name!r} of g.onnx" in text
    assert "The graph takes" in text
    assert "the probe has 'input_ids' int64 [2, 5]" in text
    assert hint in text


def test_an_input_that_the_graph_ignores_is_an_error_unless_it_says_nothing() -> None:
    assert set(only([ints("input_ids")], {"input_ids": IDS, "attention_mask": MASK})) == {
        "input_ids"
    }
    padded = MASK.copy()
    padded[0, 0] = 0
    with pytest.raises(BackendError, match="does not take 'attention_mask'"):
        feeds("g.onnx", [ints("input_ids")], {"input_ids": IDS, "attention_mask": padded})
