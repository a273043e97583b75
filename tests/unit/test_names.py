"""The grammar of points: what is made can be taken apart again."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftwalk import names

WORDS = st.text("abcdefgh_0123456789", min_size=1, max_size=8)
STACKS = st.one_of(
    st.just(""),
    st.lists(WORDS, min_size=1, max_size=3)
    .map(".".join)
    .filter(lambda stack: not re.search(r"(^|\.)(embed|norm|output)(\.|$)", stack)),
)
INSIDE = st.lists(st.one_of(WORDS, st.just("layer.0"), st.just("norm")), max_size=3).map(".".join)


@given(STACKS, st.integers(0, 200), INSIDE)
def test_a_layer_and_what_is_inside(stack: str, number: int, inside: str) -> None:
    layer = names.in_stack(stack, names.layer(number))
    place = names.place_of(f"{layer}.{inside}" if inside else layer)
    assert place == names.Place(stack, number, inside)
    assert place.layer == layer
    assert place.is_state == (not inside)


@given(STACKS, st.sampled_from(["embed", "norm"]))
def test_the_ends_of_a_stack(stack: str, end: str) -> None:
    name = names.in_stack(stack, end)
    assert names.place_of(name) == names.Place(stack, None, "", end)
    assert names.layer_of(name) is None
    assert names.stack_of(name) == stack


@pytest.mark.parametrize("name", ["logits", "output.0.layer.3", "output.norm", "output.layer.1"])
def test_outputs_stand_in_no_stack(name: str) -> None:
    assert names.is_output(name)
    assert names.place_of(name) is None
    assert names.layer_of(name) is names.stack_of(name) is None


@pytest.mark.parametrize(
    "name",
    [
        *("pooler", "layers.3", "layer.x", "sublayer.3", "norm.weight", ""),
        *("layer." + "7" * 5000, "layer.1234567890", "layer.\N{SUPERSCRIPT TWO}", "layer.\u0663"),
    ],
    ids=lambda name: ascii(name[:20]),
)
def test_other_names_are_no_places(name: str) -> None:
    assert names.place_of(name) is None


def test_second_streams_are_canonical_and_modules_are_not() -> None:
    assert names.place_of("layer.3.out1").is_canonical
    assert not names.place_of("layer.3.mlp").is_canonical
    assert not names.place_of("layer.3.out1").is_state


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("shared.rotary.0", True),
        ("decoder.shared.mask", True),
        ("shared.layer.0", False),
        ("shared.embed", False),
        ("layer.3.shared", False),
        ("layer.3", False),
    ],
)
def test_what_layers_share(name: str, shared: bool) -> None:
    assert names.is_shared(name) == shared
