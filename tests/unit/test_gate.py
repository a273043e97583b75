"""The gate: one verdict for a run, one exit code for all runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from driftwalk.judge.gate import exit_code, run_verdict
from driftwalk.judge.walk import Walk, coverage
from driftwalk.measure.metric_list import Nonfinite
from driftwalk.result import Observer
from driftwalk.tolerance import make_policy
from unit.material import layer, report, trace

SEEN = Observer(checked=True)
CHANGED = Observer(True, bit_identical=False, within_tolerance=False, max_abs=0.25, output="logits")


def judge(*rows, observer=None):
    return run_verdict(rows, coverage(rows), observer or {"candidate": SEEN})


def bad_reference(name="layer.1"):
    row = layer(name, "drift")
    metrics = dataclasses.replace(row.metrics, nonfinite=Nonfinite(reference=2))
    return dataclasses.replace(row, metrics=metrics)


def test_all_points_ok_is_a_pass():
    assert judge(layer("embed"), layer("norm")) == ("pass", "")


@pytest.mark.parametrize("verdict", ["drift", "nonfinite", "shape", "missing", "extra"])
def test_one_point_that_is_not_ok_is_drift(verdict):
    assert judge(layer("embed"), layer("norm", verdict)) == ("drift", "")


@pytest.mark.parametrize("verdict", ["missing", "extra"])
def test_an_allowed_gap_is_no_drift(verdict):
    assert judge(layer("embed"), layer("norm", verdict, allowed=True)) == ("pass", "")


def test_nothing_compared_is_never_a_pass():
    assert judge() == ("unverified", "no point was compared")
    assert judge(layer("embed", "missing", allowed=True))[0] == "unverified"


def test_states_without_elements_are_never_a_pass():
    nothing = trace({"embed": np.ones((2, 0, 4))})
    walk = Walk(nothing, nothing.backend, make_policy("dtype"))
    walk.meet(nothing.states[0])
    rows = walk.layers()
    assert run_verdict(rows, coverage(rows), {}) == ("unverified", "no point was compared")


def test_a_nonfinite_reference_can_verify_nothing_and_is_named():
    verdict, reason = judge(layer("embed"), layer("layer.0", "drift"), bad_reference())
    assert verdict == "unverified"
    assert "the reference itself has 2 non-finite value(s) at layer.1" in reason


@pytest.mark.parametrize("verdict", ["ok", "drift"])
def test_an_observer_effect_beyond_tolerance_leaves_the_run_unverified(verdict):
    found, reason = judge(
        layer("embed", verdict), observer={"reference": SEEN, "candidate": CHANGED}
    )
    assert found == "unverified"
    assert "changed the candidate's own output 'logits' by up to 0.25" in reason


def test_an_observer_effect_within_tolerance_is_let_be():
    slight = dataclasses.replace(CHANGED, within_tolerance=True)
    assert judge(layer("embed"), observer={"candidate": slight}) == ("pass", "")
    assert judge(layer("embed"), observer={"candidate": Observer(checked=False)}) == ("pass", "")


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["pass"], 0),
        (["drift"], 1),
        (["unverified"], 3),
        (["pass", "pass"], 0),
        (["pass", "unverified"], 3),
        (["unverified", "drift", "pass"], 1),
        (["drift", "unverified"], 1),
        ([], 3),
    ],
)
def test_drift_outweighs_unverified_which_outweighs_a_pass_and_no_run_is_no_pass(verdicts, code):
    assert exit_code(report(verdict) for verdict in verdicts) == code


def test_what_is_off_where_choices_leave_nothing_to_compare_is_not_drift():
    def found(*rows, reason="by chance"):
        return run_verdict(rows, coverage(rows), {}, "", reason, {"output.boxes"})

    boxes = layer("output.boxes", "drift")
    assert found(layer("embed"), boxes) == ("unverified", "by chance")
    assert found(layer("embed", "drift"), boxes) == ("drift", "")
    assert found(layer("embed"), layer("output.boxes", "shape")) == ("drift", "")
    assert found(layer("embed"), boxes, reason="") == ("drift", "")
    own = dataclasses.replace(boxes.tolerance, norm="introduced l2")
    assert found(layer("embed"), dataclasses.replace(boxes, tolerance=own)) == ("drift", "")
