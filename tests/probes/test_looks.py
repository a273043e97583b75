"""Many inputs looked at in one run: each as it would be alone, and no judgement of any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
from driftwalk.adapter import Backend
from driftwalk.stage import make_probe, open_model
from driftwalk.states import Probe
from driftwalk.tasks.probes.looks import Look, fit, look_at, stacked
from driftwalk.tasks.shapes.run import open_for_all
from driftwalk.tolerance import make_policy
from probes.test_sets import WRONG, gpt2, ids, with_wrong_row

TABLE = make_policy("dtype")


def looks(candidate: object, probes: Sequence[Probe], model: Any = None) -> list[Look | None]:
    opened = open_model(gpt2() if model is None else model)
    with open_for_all(opened, None, [candidate]) as (first, (other,)):
        assert isinstance(first, Backend)
        assert isinstance(other, Backend)
        fixed = [make_probe(opened, probe) for probe in probes]
        return list(look_at(first, other, fixed, TABLE).looks)


def padded(row: list[int], kept: int) -> Probe:
    mask = [[int(n < kept) for n in range(len(row))]]
    return Probe({"input_ids": np.array([row]), "attention_mask": np.array(mask)})


def test_probes_of_a_batch_come_to_what_each_does_alone() -> None:
    probes = [padded([3, 4, 5, 6], 4), padded([7, WRONG, 8, 9], 4), padded([7, 8, WRONG, 9], 2)]
    assert stacked([make_probe(open_model(gpt2()), one) for one in probes]) is not None
    wrong = with_wrong_row(gpt2())
    together = looks(wrong, probes)
    for one, probe in zip(together, probes, strict=True):
        alone = looks(wrong, [probe])[0]
        assert one is not None
        assert alone is not None
        assert one.quick == pytest.approx(alone.quick, rel=1e-3)
        assert one.reach == pytest.approx(alone.reach, rel=1e-5)
    # The wrong token shows where it is no padding; the padded one counts nowhere.
    assert [one is not None and one.quick > 1 for one in together] == [False, True, False]


def test_a_look_is_as_large_as_the_table_says() -> None:
    model = gpt2()
    report = driftwalk.verify(
        model, with_wrong_row(model), probe=ids([7, WRONG, 8, 9]), policy="dtype"
    )
    needed = max(row.tolerance.needed for row in report.layers if row.tolerance)
    one = looks(with_wrong_row(model), [Probe(ids([7, WRONG, 8, 9]))])[0]
    assert one is not None
    assert one.quick == pytest.approx(needed, rel=0.05)


def test_what_no_batch_takes_is_looked_at_alone() -> None:
    probes = [Probe(ids([3, 4, 5, 6])), Probe(ids([3, 4])), Probe(ids([5, 6, 7]))]
    assert stacked(probes) is None
    assert all(one is not None and one.reach for one in looks(with_wrong_row(gpt2()), probes))


class Refuses(nn.Module):
    """Takes one row alone, and no row that begins with a negative number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 1 or float(x[0, 0]) < 0:
            raise ValueError("one row of positive numbers")
        return torch.as_tensor(self.layer(x))


def test_a_probe_that_a_model_does_not_take_is_left_out() -> None:
    torch.manual_seed(0)
    probes = [Probe({"x": np.full((1, 3), x, np.float32)}) for x in (1.0, -1.0, 2.0)]
    given = looks("torch", probes, Refuses().eval())
    assert [one is None for one in given] == [False, True, False]


def test_what_is_not_finite_on_one_side_is_without_limit() -> None:
    wrong = gpt2()
    wrong.transformer.h[0].mlp.act.register_forward_hook(lambda _, __, out: out / 0)
    one = looks(wrong, [Probe(ids([3, 4]))])[0]
    assert one is not None
    assert one.quick == np.inf


def test_fewer_probes_are_run_at_once_where_each_is_long() -> None:
    assert fit(ids([3] * 16, [4] * 16)) == 16
    assert fit(ids([3])) == 32
    assert fit(ids([3] * 512)) == 2
    assert fit({"pixel_values": np.zeros((1, 3, 224, 224), np.float32)}) == 2
