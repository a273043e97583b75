"""The default gate sees one wrong weight among a few million, and says in which layer it is."""

from __future__ import annotations

import pytest

from benchmarks.one_weight import LAYERS, build, sweep
from driftwalk_backends.sources import open_model


@pytest.mark.slow
@pytest.mark.parametrize(("name", "relative", "least"), [("gpt2", 1e-2, 8), ("llama", 1e-3, 6)])
def test_one_median_weight_off_is_caught_in_its_layer(
    name: str, relative: float, least: int
) -> None:
    """One weight of a random matrix per layer, changed by 1 % or by 0.1 %; -s shows the misses."""
    seen = list(sweep(open_model(build(name)), relative, blame=False))
    for one in seen:
        print(f"{name} {relative:.1%} {one}")  # noqa: T201 - what it cannot see is the result
    caught = sum(one.first == one.layer for one in seen)
    assert caught >= least, f"{caught} of {LAYERS}: " + "; ".join(
        f"{one.layer} {one.matrix}" for one in seen if one.first != one.layer
    )
    assert all(one.first in (None, one.layer) for one in seen)  # none in a wrong layer
