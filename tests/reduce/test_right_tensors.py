"""What is kept of a run of the truth: each parameter once, however often it is copied."""

from __future__ import annotations

import numpy as np
import torch

from driftwalk_backends.reducing.right import GIVEN, Made, _Recorder


def recorded(run) -> list[Made]:
    recorder = _Recorder()
    with recorder:
        run()
    return recorder.kept


def test_a_parameter_that_is_widened_is_kept_once():
    """A truth widens its weights as it runs: copies of them took all the room there is."""
    weight, x = torch.randn(700, 400), torch.randn(3, 700).double()
    kept = recorded(lambda: x @ weight.detach().clone().double())
    assert [one.op for one in kept if one.numbers.shape == weight.shape] == [GIVEN]
    (product,) = (one for one in kept if one.op == "mm.default")
    assert any(kept[number].numbers.shape == weight.shape for number in product.of)
    assert np.allclose(product.numbers, x.numpy() @ weight.double().numpy())


def test_a_large_parameter_takes_no_memory_of_its_own():
    weight = torch.randn(700, 400)
    kept = recorded(lambda: weight * 2.0)
    (given,) = (one for one in kept if one.op == GIVEN)
    assert np.shares_memory(given.numbers, weight.numpy())


def test_a_coarser_copy_of_a_parameter_is_another_one():
    weight = torch.randn(8, 8)
    kept = recorded(lambda: weight.bfloat16() * 2.0)
    (coarse,) = (one for one in kept if one.op == "_to_copy.default")
    assert np.array_equal(coarse.numbers, weight.bfloat16().double().numpy())
