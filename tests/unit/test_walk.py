"""The walk: each candidate state against its partner, in the reference's order of execution."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from driftwalk import compare
from driftwalk.errors import UsageError
from driftwalk.judge.walk import Walk, coverage
from driftwalk.layer_drift import LayerDrift
from driftwalk.states import Point, State
from driftwalk.tolerance import BY_DTYPE, Tolerance, make_policy
from unit.material import probe, trace

ONES = np.ones((2, 3, 4), np.float32)
NAMES = ("embed", "layer.0", "layer.1", "layer.10", "layer.2", "norm", "logits")


def states(**changed):
    """A state of ones at every point; `layer_0=...` changes one."""
    return {name: changed.get(name.replace(".", "_"), ONES) for name in NAMES}


def walk(candidate, reference=None, policy=None, allow_missing=(), of=None) -> Walk:
    met = trace(candidate)
    judged = make_policy(policy or Tolerance(1e-3))
    made = Walk(trace(reference or states(), of), met.backend, judged, allow_missing)
    for state in met:
        made.meet(state)
    return made


def verdicts(made: Walk) -> dict[str, str]:
    return {row.point.name: row.verdict for row in made.layers()}


def first_bad(made: Walk) -> LayerDrift:
    return next(row for row in made.layers() if not row.ok)


def test_equal_states_are_ok_and_numbered_in_order_of_execution():
    rows = walk(states()).layers()
    assert [row.point.name for row in rows] == list(NAMES), "never sorted by name"
    assert [row.index for row in rows] == list(range(7))
    assert all(row.ok and row.verdict == "ok" for row in rows)


def test_the_order_is_the_references_whatever_order_the_candidate_has():
    shuffled = dict(reversed(states().items()))
    assert [row.point.name for row in walk(shuffled).layers()] == list(NAMES)


def test_a_row_says_what_was_found_and_what_was_allowed():
    row = walk(states(layer_1=ONES * np.float32(1.5)), policy=Tolerance(0.125, 0.125)).layers()[2]
    assert row.verdict == "drift"
    assert (row.point, row.shape) == (Point("layer.1", "model.layer.1"), (2, 3, 4))
    assert (row.dtypes.reference, row.dtypes.candidate) == ("fp32", "fp32")
    assert row.metrics is not None
    assert (row.metrics.max_abs, row.metrics.mismatched) == (0.5, 24)
    assert row.tolerance is not None
    assert (row.tolerance.atol, row.tolerance.rtol) == (0.125, 0.125)
    assert (row.tolerance.scale, row.tolerance.needed) == (1.0, 2.0)
    assert row.tokens == ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))


def test_the_first_divergence_does_not_end_the_walk():
    made = walk(states(layer_1=ONES + 1, norm=ONES + 1))
    assert first_bad(made).point.name == "layer.1"
    found = verdicts(made)
    assert [name for name, verdict in found.items() if verdict == "drift"] == ["layer.1", "norm"]
    assert found["logits"] == "ok"


def test_one_element_beyond_its_allowance_is_drift():
    c = ONES.copy()
    c[1, 2, 3] += 0.01
    row = first_bad(walk(states(norm=c)))
    assert row.metrics is not None
    assert row.metrics.worst is not None
    assert (row.metrics.mismatched, row.metrics.worst.index) == (1, (1, 2, 3))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_candidates_have_a_verdict_of_their_own(bad):
    c = ONES.copy()
    c[0, 0, 0] = bad
    row = first_bad(walk(states(layer_0=c), policy=Tolerance(1e300)))
    assert (row.point.name, row.verdict) == ("layer.0", "nonfinite")
    assert row.tolerance is not None
    assert row.tolerance.needed == math.inf, "no tolerance would do"


def test_a_nonfinite_reference_is_never_ok():
    r = ONES.copy()
    r[0, 0, 0] = np.nan
    assert verdicts(walk(states(), states(layer_0=r)))["layer.0"] == "drift"
    assert verdicts(walk(states(layer_0=r), states(layer_0=r)))["layer.0"] == "nonfinite"


def test_another_shape_is_told_and_not_broadcast():
    row = first_bad(walk(states(layer_0=np.ones((2, 3, 1), np.float32))))
    assert (row.verdict, row.metrics) == ("shape", None)
    assert row.note == "reference [2, 3, 4], candidate [2, 3, 1]"
    assert first_bad(walk(states(norm=ONES.reshape(2, 4, 3)))).verdict == "shape"


# -- coverage --------------------------------------------------------------------------------------


def test_a_point_without_a_partner_is_missing():
    lacking = {name: array for name, array in states().items() if name != "layer.1"}
    row = first_bad(walk(lacking))
    assert (row.point.name, row.verdict, row.index) == ("layer.1", "missing", 2)
    assert (row.dtypes.reference, row.dtypes.candidate) == ("fp32", None)
    assert row.metrics is None


def test_a_point_the_reference_lacks_is_extra_and_comes_last():
    made = walk({"early": ONES, **states()})
    row = made.layers()[-1]
    assert (row.point.name, row.verdict, row.index, row.ok) == ("early", "extra", 7, False)
    assert (row.dtypes.reference, row.dtypes.candidate) == (None, "fp32")


def test_a_pattern_allows_missing_and_extra_points_and_nothing_else():
    given = {name: a for name, a in states(norm=ONES + 1).items() if not name.startswith("layer.1")}
    made = walk(given | {"extra.x": ONES}, allow_missing=["layer.1*", "extra.*", "norm"])
    rows = {row.point.name: row for row in made.layers()}
    assert rows["layer.1"].ok
    assert rows["layer.10"].ok
    assert rows["extra.x"].ok
    assert not rows["norm"].ok, "a pattern allows absence, never drift"
    found = coverage(made.layers())
    assert (found.points, found.compared) == (7, 5)
    assert found.missing == ("layer.1", "layer.10")
    assert found.extra == ("extra.x",)
    assert found.allowed == ("layer.1", "layer.10", "extra.x")


def test_a_pattern_that_does_not_match_allows_nothing():
    made = walk({"embed": ONES}, allow_missing=["layer"])
    assert not any(row.allowed for row in made.layers())


def test_a_report_names_patterns_that_stand_for_no_point():
    one, two = trace(states()), trace(states())
    (note,) = compare(one, two, "dtype", allow_missing=["layer.1*", "lyer.*"]).notes
    assert "'lyer.*'" in note


def test_points_of_another_shape_were_not_compared():
    made = walk(dict.fromkeys(NAMES, ONES[0]))
    assert coverage(made.layers()).compared == 0


def test_a_state_without_elements_was_not_compared():
    nothing = np.ones((2, 0, 4), np.float32)
    made = walk({"embed": nothing}, {"embed": nothing})
    assert (coverage(made.layers()).points, coverage(made.layers()).compared) == (1, 0)


# -- policy ----------------------------------------------------------------------------------------


def test_each_point_is_judged_by_its_rule():
    policy = {"layer.1": Tolerance(1e-6), "layer.*": Tolerance(1.0)}
    c = ONES + np.float32(0.5)
    found = verdicts(walk(states(layer_0=c, layer_1=c, layer_10=c), policy=policy))
    assert (found["layer.0"], found["layer.1"], found["layer.10"]) == ("ok", "drift", "ok")


def test_a_rule_that_matches_no_reference_point_stops_the_walk_before_it_starts():
    with pytest.raises(UsageError, match=r"'layers.*' matches no point"):
        Walk(trace(states()), trace(states()).backend, make_policy({"layers.*": Tolerance(1)}))


def test_the_dtype_policy_takes_the_looser_dtype_of_both_sides():
    row = walk(states(embed=ONES.astype(np.float16)), policy="dtype").layers()[0]
    assert row.tolerance is not None
    assert row.tolerance.atol == BY_DTYPE["fp16"].atol
    assert (row.dtypes.reference, row.dtypes.candidate) == ("fp32", "fp16")


def test_a_state_stored_wider_than_its_backend_computes_is_judged_by_the_backend():
    half = replace(trace(states()).backend, dtype="bf16")
    made = Walk(trace(states()), half, make_policy("dtype"))
    made.meet(State(Point("embed"), ONES))
    row = made.layers()[0]
    assert row.tolerance is not None
    assert row.tolerance.atol == BY_DTYPE["bf16"].atol


def test_states_that_are_no_floats_are_compared_too():
    ids = np.arange(6).reshape(2, 3)
    found = walk({"embed": ids}, {"embed": ids}, policy="dtype")
    assert verdicts(found) == {"embed": "ok"}
    assert verdicts(walk({"embed": ids + 1}, {"embed": ids}, policy="dtype")) == {"embed": "drift"}


# -- padding and decisions -------------------------------------------------------------------------


def test_padded_positions_are_left_out_at_every_point():
    mask = np.array([[0, 1, 1], [1, 1, 1]])
    padded = probe(input_ids=np.ones((2, 3), int), attention_mask=mask)
    c = ONES.copy()
    c[0, 0] = np.nan
    made = walk(dict.fromkeys(NAMES, c), of=padded)
    assert all(row.ok for row in made.layers())
    assert made.layers()[0].tokens == ((None, 0.0, 0.0), (0.0, 0.0, 0.0))
    assert made.decisions is not None
    assert made.decisions.positions == 5


def test_decisions_are_taken_at_the_logits_and_nowhere_else():
    r = np.zeros((2, 3, 4), np.float32)
    r[..., 1] = 1
    made = walk(states(logits=r[..., ::-1]), states(logits=r))
    assert made.decisions is not None
    assert (made.decisions.flips, made.decisions.positions) == (6, 6)
    assert walk({"embed": r}, {"embed": r}).decisions is None


def test_a_tie_at_the_logits_is_measured_by_the_tolerance_of_that_point():
    r = np.array([[[1.0, 0.9]]])
    c = np.array([[[0.9, 1.0]]])
    for atol, ties in ((0.1, 1), (0.01, 0)):
        made = walk({"logits": c}, {"logits": r}, policy=Tolerance(atol))
        assert made.decisions is not None
        assert (made.decisions.flips, made.decisions.ties) == (1, ties)


def test_states_are_met_one_by_one_and_not_kept():
    made = Walk(trace(states()), trace(states()).backend, make_policy("dtype"))
    array = ONES.copy()
    made.meet(State(Point("embed"), array))
    array[:] = np.nan
    assert made.layers()[0].verdict == "ok"
    assert made.layers()[1].verdict == "missing", "so far"


@pytest.mark.parametrize("attention", ["eager", "sdpa", None])
def test_weights_that_only_one_attention_gives_are_no_drift(attention):
    """Eager attention hands on its weights; SDPA never has them."""

    def of(more, **flags):
        made = trace(states() | more)
        return replace(made, backend=replace(made.backend, flags=flags))

    plain = of({}, attn="sdpa")
    weights = {"layer.1.out1": ONES / 4, "output.projection_attentions": ONES / 4}
    theirs = of(weights, **({"attn": attention} if attention else {}))
    for one, other in ((plain, theirs), (theirs, plain)):
        report = compare(one, other, "dtype")
        assert report.verdict == ("pass" if attention == "eager" else "drift")
        assert len(report.coverage.allowed) == (2 if attention == "eager" else 0)
    wrong = of(weights | {"layer.1": ONES * 3}, attn="eager")
    assert compare(plain, wrong, "dtype").verdict == "drift"
    stream = {"layer.1.out1": ONES * np.float32(-0.1)}  # no weights: a stream that one side lacks
    for one, other in ((of(stream, attn="sdpa"), of({}, attn="eager")), (plain, of(stream))):
        assert compare(one, other, "dtype").verdict == "drift"
