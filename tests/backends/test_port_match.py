"""A port's states found by value: in order, clearly, or not at all."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

import driftwalk
from backends.test_numpy_gpt2 import EXAMPLE, PADDED
from cli.program import invoke
from driftwalk.errors import UsageError
from driftwalk.states import Point, State, Trace
from driftwalk_backends.demo import decoder
from driftwalk_backends.matching import by_value


@pytest.fixture(scope="module")
def recorded() -> Trace:
    return driftwalk.record("demo:decoder", probe=PADDED)


def written(made: Trace, arrays: Iterable[tuple[str, np.ndarray]]) -> Trace:
    return replace(made, states=tuple(State(Point(name), array) for name, array in arrays))


def shuffled_names(made: Trace) -> list[tuple[str, np.ndarray]]:
    return [(f"t{number}", state.array) for number, state in enumerate(made)]


def test_every_point_is_found_among_others_and_in_other_shapes(recorded):
    states = [
        (name, array.reshape(-1, array.shape[-1])) for name, array in shuffled_names(recorded)
    ]
    noise = np.random.default_rng(0)
    others = [(f"o{n}", noise.standard_normal(a.shape)) for n, (_, a) in enumerate(states)]
    mixed = [item for pair in zip(others, states, strict=True) for item in pair]
    found = by_value(recorded, written(recorded, mixed))
    assert found.names == recorded.names
    assert [s.point.module for s in found] == [name for name, _ in states]
    assert driftwalk.compare(recorded, found, "dtype").verdict == "pass"


def test_what_was_written_in_another_order_is_not_believed(recorded):
    states = shuffled_names(recorded)
    states[2], states[4] = states[4], states[2]
    found = by_value(recorded, written(recorded, states))
    assert len(found) < len(recorded)
    assert driftwalk.compare(recorded, found, "dtype").verdict == "drift"


def test_two_that_are_as_near_are_none(recorded):
    states = shuffled_names(recorded)
    name, array = states[3]
    near = [(name, array * np.float32(1 + 2e-5)), ("twin", array * np.float32(1 - 2e-5))]
    found = by_value(recorded, written(recorded, [*states[:3], *near, *states[4:]]))
    assert set(recorded.names) - set(found.names) == {"layer.2"}


def test_nothing_found_is_said(recorded):
    noise = np.random.default_rng(0)
    states = [(n, noise.standard_normal(a.shape)) for n, a in shuffled_names(recorded)]
    with pytest.raises(UsageError, match="found none of the points"):
        by_value(recorded, written(recorded, states))


def test_auto_on_the_command_line_and_in_a_spec(recorded, tmp_path):
    port = written(recorded, shuffled_names(recorded)).save(tmp_path / "port")
    recorded.save(tmp_path / "a")
    done = invoke("compare", str(tmp_path / "a"), str(port), "--map", "auto")
    assert done.code == 0, done.err
    report = driftwalk.verify("demo:decoder", candidate=f"trace:{port},map=auto")
    assert report.verdict == "pass"
    assert report.layers[0].point.found == "value"


def test_a_faulty_port_is_found_by_value_and_its_fault_by_blame(tmp_path):
    decoder().save_pretrained(tmp_path)
    words = f"{sys.executable} {EXAMPLE / 'port.py'} {tmp_path}"
    run = {"probe": PADDED}
    assert driftwalk.verify(str(tmp_path), f"command:{words},map=auto", **run).verdict == "pass"
    report = driftwalk.verify(str(tmp_path), f"command:{words} --gelu erf,map=auto", **run)
    assert report.verdict == "drift"
    assert report.root_cause.point.name == "layer.0"
    assert "mlp" in report.culprit.sentence
