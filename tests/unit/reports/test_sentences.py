"""The sentences: every verdict in words, with the facts of the result and no others."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from driftwalk.layer_drift import Blame, Culprit, TruthErrors
from driftwalk.result import Report
from driftwalk.states import Probe
from driftwalk.tolerance import Tolerance, parse_rule
from driftwalk_reports import html, numbers, sentences, story, terminal, tolerances
from driftwalk_reports.rows import Gap, labels, short, to_rows
from driftwalk_reports.view import look
from unit.reports import cases


def test_a_pass_names_the_closest_call() -> None:
    report = cases.passing()
    layers = {layer.point.name: layer for layer in report.layers}
    closest = max(layers, key=lambda name: layers[name].tolerance.needed)  # type: ignore[union-attr]
    needed = layers[closest].tolerance.needed  # type: ignore[union-attr]
    assert sentences.headline(report) == (
        f"PASS: all 9 points agree within tolerance; the closest call is {closest}, "
        f"at {100 * needed:.0f} % of its allowance."
    )


def test_equal_states_are_called_exactly_equal() -> None:
    assert sentences.headline(cases.exact()) == (
        "PASS: all 9 points agree exactly, element by element."
    )


def test_drift_names_the_point_the_numbers_and_the_last_good_point() -> None:
    report = cases.drifting()
    first = report.layer("layer.3")
    assert first.metrics is not None
    assert first.tolerance is not None
    assert first.metrics.worst is not None
    tolerance = first.tolerance
    room = tolerance.atol * tolerance.scale + tolerance.rtol * abs(first.metrics.worst.reference)
    assert sentences.headline(report) == (
        f"DRIFT: first divergence at layer.3: max abs {first.metrics.max_abs:.3g} where {room:.3g} "
        f"was allowed ({first.metrics.mismatched} of 96 elements beyond); "
        "layer.2 was the last point within tolerance."
    )


def test_the_root_cause_is_named_where_blame_found_one() -> None:
    assert sentences.headline(cases.blamed()).endswith(
        "; the root cause is layer.1 (within its allowance as a whole; what it made itself grows "
        "on the way)."
    )


def placed(report: Report, module: str) -> Report:
    """The same, taken from these modules: `{}` is the number of the layer."""
    layers = [
        dataclasses.replace(
            layer, point=dataclasses.replace(layer.point, module=module.format(layer.index - 1))
        )
        for layer in report.layers
    ]
    return dataclasses.replace(report, layers=tuple(layers))


def test_a_layer_that_its_name_does_not_tell_is_named_with_its_module() -> None:
    report = placed(cases.drifting(), "features.down")
    headline = sentences.headline(report)
    assert headline.startswith("DRIFT: first divergence at layer.3 (features.down): max abs")
    assert "; layer.2 (features.down) was the last point within tolerance" in headline
    rows = {row.name: row.module for row in to_rows(report)}
    assert rows["layer.3"] == "features.down"
    assert rows["logits"] == ""


@pytest.mark.parametrize("module", ["transformer.h.{}", "", "blocks.stage0.block{}"])
def test_a_layer_of_a_list_is_named_by_its_number_alone(module: str) -> None:
    assert "first divergence at layer.3: max abs" in sentences.headline(
        placed(cases.drifting(), module)
    )


def test_nan_is_counted_and_placed() -> None:
    report = cases.nonfinite()
    value = report.layer("layer.2").metrics.worst.reference  # type: ignore[union-attr]
    assert sentences.headline(report) == (
        "DRIFT: first divergence at layer.2: 3 of 96 candidate values are NaN or infinite, the "
        f"first at [0, 1, 3]: NaN where the reference has {value:.3g}; "
        "layer.1 was the last point within tolerance."
    )


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (cases.missing, "first divergence at layer.4: the candidate has no layer.4, layer.5; "),
        (cases.extra, "layer.4: the reference has no layer.4, layer.5; layer.3 was the last point"),
        (cases.shape, "layer.0: the shapes differ: reference [2, 4, 16], candidate [2, 3, 16]; "),
        (cases.missing_allowed, "PASS: all 8 points agree"),
        (cases.missing_allowed, "; not compared, as a pattern allows: embed."),
        (cases.nothing, "UNVERIFIED: no point was compared."),
        (cases.bad_reference, "UNVERIFIED: the reference itself has 1 non-finite value(s)"),
    ],
)
def test_other_verdicts(case: Callable[[], Report], words: str) -> None:
    assert words in sentences.headline(case())


def test_drift_at_the_very_first_point() -> None:
    reference = cases.states()
    candidate = reference | {"embed": reference["embed"] + np.float32(1)}
    assert "it is the very first point." in sentences.headline(cases.make(reference, candidate))


def test_a_large_difference_within_its_own_room_is_not_blamed() -> None:
    """rtol gives a large value room; the small element beside it is what is beyond."""
    reference = {"embed": np.array([[[1000.0, 0.001]]])}
    candidate = {"embed": np.array([[[1000.5, 0.002]]])}
    probe = Probe({"x": np.ones((1, 1))})
    report = cases.make(reference, candidate, policy=Tolerance(0.0, 1e-3), probe=probe)
    text = sentences.headline(report)
    assert "embed: 1 of 2 elements beyond, at up to" in text
    assert "max abs" not in text


@pytest.mark.parametrize("name", ["layer.3", "layer.5", "logits"])
def test_the_tolerance_said_to_pass_does_pass(name: str) -> None:
    report = cases.drifting()
    rule = parse_rule(tolerances.would_pass(report.layer(name)))
    assert rule.tolerance is not None
    reference = cases.states()
    assert _with_rule(reference, name, rule.tolerance).layer(name).ok
    tighter = Tolerance(rule.tolerance.atol * 0.5, rule.tolerance.rtol * 0.5)
    assert not _with_rule(reference, name, tighter).layer(name).ok


def _with_rule(reference: cases.States, name: str, tolerance: Tolerance) -> Report:
    return cases.make(reference, cases.drifted(reference), policy={name: tolerance})


def test_a_zero_tolerance_asks_for_the_difference_itself() -> None:
    reference = cases.states()
    report = cases.make(reference, cases.noisy(reference), policy="fixed:0")
    first = report.layers[0]
    assert first.tolerance is not None
    assert first.metrics is not None
    assert first.tolerance.needed == np.inf
    (atol,) = tolerances.passing_tolerance(first)
    assert first.metrics.max_abs <= float(atol) <= first.metrics.max_abs * 1.1
    assert "no difference at all is allowed" in tolerances.overall_tolerance(report)


def test_decisions_in_words() -> None:
    report = cases.drifting()
    assert report.outputs is not None
    text = sentences.decision_impact(report)
    assert text.startswith(f"The top choice flips at {report.outputs.flips} of 6 positions; ")
    assert report.outputs.flips > 0
    ties = dataclasses.replace(report.outputs, ties=1)
    assert "(1 inside the noise" in sentences.decision_impact(
        dataclasses.replace(report, outputs=ties)
    )
    assert sentences.decision_impact(cases.passing()).startswith("No decision changes")
    assert sentences.decision_impact(cases.nothing()) == ""


def test_a_flip_shows_the_token_it_happened_at() -> None:
    (flip, *_) = look(cases.drifting()).flips
    assert flip[:2] == ("[0, 3]", "Ġhere")


def test_the_observer_effect_in_words() -> None:
    view = look(cases.disturbed())
    assert view.disturbed == (
        "Whether capturing states changes the reference's outputs was not checked.",
        "Capturing states changed the candidate's output logits by up to 3e-07, within tolerance.",
    )
    assert look(cases.passing()).disturbed == ()


def test_both_sides_are_held_against_each_other() -> None:
    sides = {pair.key: pair for pair in look(cases.passing()).sides}
    assert sides["numpy"].differs
    assert (sides["numpy"].reference, sides["numpy"].candidate) == ("2.4", "2.3")
    assert not sides["dtype"].differs
    assert not sides["torch"].differs, "what only one side has is no difference"


def test_numbers_over_nothing_finite_are_not_shown() -> None:
    report = cases.nonfinite()
    facts = {row.name: dict(row.facts) for row in to_rows(report)}
    partly, wholly = facts["layer.2"], facts["layer.3"]
    assert "cosine" in partly
    assert "cosine" not in wholly
    assert wholly["not finite"].startswith("0 in the reference, 96 in the candidate")


def test_truth_and_blame_are_shown_where_they_are_known() -> None:
    report = cases.drifting()
    blame = Blame(0.25, 0.125, 1.0, 500.0, True, {})
    truth = TruthErrors(0.5, 0.25, 0.125, 8.0, 2.0, "candidate", {})
    layer = dataclasses.replace(report.layer("layer.3"), blame=blame, truth=truth)
    (row,) = to_rows(dataclasses.replace(report, layers=(layer,)))
    facts = dict(row.facts)
    own = "0.25 of the error is its own, made by this layer; 0.125 came in with its input"
    assert facts["blame"] == own
    both = "reference 0.5, candidate 0.25, yardstick 0.125"
    assert facts["L2 from the truth"] == (
        f"{both}; the candidate is closer; the state itself has 8"
    )


def test_a_short_table_keeps_the_marks_and_counts_the_rest() -> None:
    rows = look(cases.deep()).rows
    shown = short(rows, 30)
    assert len([row for row in shown if not isinstance(row, Gap)]) <= 30
    assert sum(row.count if isinstance(row, Gap) else 1 for row in shown) == len(rows)
    assert rows[150] in shown
    assert rows[149] in shown
    assert rows[150].marks == ("first divergence",)


def test_labels_keep_the_order_of_each_row() -> None:
    (run,) = look(cases.missing()).around
    merged = labels(run)
    assert len(merged) == len(set(merged))
    for row in run:
        own = [label for label, _ in row.facts]
        assert sorted(own, key=merged.index) == own


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "0.0123"), (1.2e-5, "1.2e-05"), (1025.4, "1025"), (999.9, "1000"), (0, "0")],
)
def test_numbers(value: float, text: str) -> None:
    assert numbers.number(value) == text


def test_numbers_that_differ_look_different() -> None:
    assert numbers.apart(1.00001, 1.0) == ("1.00001", "1")
    assert numbers.apart(2.0, 2.0) == ("2", "2")


@pytest.mark.parametrize("value", [1e-300, 0.1, 0.30000000000000004, 1.0, 99.1, 12345.6, 1e200])
def test_rounding_up_never_rounds_down(value: float) -> None:
    assert value <= float(numbers.round_up(value)) <= value * 1.1


def test_unsafe_characters_become_visible_and_others_stay() -> None:
    assert numbers.clean("a\x1b[31m\n\u202eb\ud800\ufffe") == r"a\x1b[31m\n\u202eb\ud800\ufffe"
    assert numbers.clean("Ġdrift größer 漢字 👩‍💻") == "Ġdrift größer 漢字 👩‍💻"
    assert numbers.clean("abcdefghij", 5) == "ab…ij"


def accused(cause: str, sentence: str) -> Report:
    """A drift with its root cause, and what a drill would say of it."""
    report = cases.told(cases.drifting())
    return replace(report, cause=cause, culprit=Culprit("m", 9.0, None, None, sentence))


@pytest.mark.parametrize(
    ("sentence", "part", "did"),
    [
        ("layer.3 mlp.c_proj: introduced 9x, channel 1", "mlp.c_proj", "introduced 9x, channel 1"),
        ("layer.3: introduced 9x; gone when exposed", "", "introduced 9x; gone when exposed"),
        ("layer.3, before ln_2: introduced 9x", "before ln_2", "introduced 9x"),
        ("layer.3, between attn and its end: made NaN", "between attn and its end", "made NaN"),
        ("layer.33 mlp: introduced 9x", "", "layer.33 mlp: introduced 9x"),
        ("first diverging node: Add(a, b)", "", "first diverging node: Add(a, b)"),
    ],
)
def test_a_culprit_is_told_from_its_root_cause_which_is_named_once(
    sentence: str, part: str, did: str
) -> None:
    report = accused("layer.3", sentence)
    assert sentences.inside(report) == (part, did)
    said = sentences.headline(report).partition("is also the root cause: ")[2]
    assert said == (f"{part}: {did}." if part else f"{did}.")
    page = "".join(part.text for tile in story.tell(report, "m").tiles for part in tile.answer)
    for text in (sentences.headline(report), page, terminal.render(report)):
        assert not re.search(r"layer\.3: layer\.3\b", text)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_branch_of_the_tree_ends_in_nothing(width: int) -> None:
    long = "introduced 9x the yardstick, all channels and tokens (suspect an operation or a dtype)"
    for who in ("layer.3", "layer.3 mlp.c_proj", "layer.3, before ln_2"):
        lines = terminal.render(accused("layer.3", f"{who}: {long}"), width=width).splitlines()
        assert not any(line.rstrip().endswith(("└─", "├─")) for line in lines)


def test_a_root_cause_after_the_first_divergence_says_why() -> None:
    report = replace(cases.told(cases.drifting()), cause="layer.5")
    first = report.first_divergence
    assert first is not None
    assert "the root cause is layer.5 (after it: up to layer.3 each layer" in sentences.headline(
        report
    )
    unblamed = tuple(replace(row, blame=None) for row in report.layers)
    assert "(after it: what layer.3 made itself could not" in sentences.headline(
        replace(report, layers=unblamed)
    )
    (tile,) = (t for t in story.tell(report, "m").tiles if t.question == "Where it comes from")
    assert tile.more.startswith("After it: up to layer.3")


def test_a_cause_that_is_one_of_several_is_said_to_be() -> None:
    report = replace(cases.blamed(), cause_among=("embed", "layer.0"))
    said = "layer.1, or what comes before it and gave no state: embed, layer.0"
    assert said in sentences.headline(report)
    assert said in "".join(part.text for part in story.tell(report, "tiny").sentence)
    tiles = {tile.question: tile.more for tile in story.tell(report, "tiny").tiles}
    assert "It is one of 3 that may be the cause" in tiles["Where it comes from"]
    assert said in html.render(report)
    certain = replace(report, cause_among=())
    assert "gave no state" not in sentences.headline(certain)
    assert "that may be the cause" not in html.render(certain)
