"""What operations are given is walked through as pytree does, only faster."""

from __future__ import annotations

from collections import namedtuple

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves, tree_map

from driftwalk_backends.op_values import (
    called_with,
    changed,
    changed_arguments,
    is_random,
    leaves_of,
    tensors_of,
    written,
)

aten = torch.ops.aten
Pair = namedtuple("Pair", "first second")


class Kind(torch.Tensor):
    """Somebody's own kind of tensor."""


PLAIN = st.one_of(
    st.none(),
    st.integers(0, 9),
    st.sampled_from([torch.float32, torch.device("cpu"), torch.Size([2, 3])]),
    st.builds(lambda: torch.zeros(2)),
    st.builds(lambda: torch.zeros(2).as_subclass(Kind)),
)
NESTED = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(Pair, inner, inner),
        st.dictionaries(st.sampled_from("abc"), inner),
    ),
    max_leaves=8,
)
KWARGS = st.dictionaries(st.sampled_from("xyz"), NESTED)


class Seen:  # noqa: PLW1641
    """What stands for a value that was changed."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and self.value is other.value


def alike(ours: list[object], theirs: list[object]) -> bool:
    return len(ours) == len(theirs) and all(a is b for a, b in zip(ours, theirs, strict=True))


@given(NESTED)
def test_values_are_walked_through_as_pytree_does(value):
    assert alike(leaves_of(value), tree_leaves(value))
    assert changed(Seen, value) == tree_map(Seen, value)
    assert type(changed(Seen, value)) is type(tree_map(Seen, value))


@given(st.lists(NESTED, max_size=3).map(tuple), KWARGS)
def test_so_is_what_an_operation_is_given(args, kwargs):
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    assert alike(tensors_of(args, kwargs), tensors)
    assert changed_arguments(Seen, args, kwargs) == (tree_map(Seen, args), tree_map(Seen, kwargs))


def test_an_operation_is_called_with_what_it_is_given_changed():
    x = torch.ones(3)
    twice = called_with(lambda v: 2 * v, aten.add.Tensor, (x, x), {"alpha": 3})
    assert twice.tolist() == [14.0] * 3  # 2 + 6 * 2


def test_what_an_operation_writes_to_is_known():
    x, y = torch.ones(3), torch.empty(3)
    assert written(aten.add.Tensor, (x, x), {}) == []
    assert alike(written(aten.add_.Tensor, (x, y), {}), [x])
    assert alike(written(aten.add.out, (x, x), {"out": y}), [y])
    assert alike(written(aten._foreach_add_.Scalar, ([x, y], 1), {}), [x, y])


def test_what_draws_random_numbers_is_known():
    assert is_random(aten.rand.default)
    assert not is_random(aten.add.Tensor)
