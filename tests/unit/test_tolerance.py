"""Tolerances, rules per point and policies, as users write them."""

from __future__ import annotations

import math

import pytest

from driftwalk.dtypes import FORMATS, loosest
from driftwalk.errors import UsageError
from driftwalk.tolerance import (
    BY_DTYPE,
    Policy,
    Rule,
    Tolerance,
    make_policy,
    parse_rule,
    parse_tolerance,
)

FP64, FP32, FP16, BF16 = (FORMATS[name] for name in ("fp64", "fp32", "fp16", "bf16"))
LOOSE, TIGHT = Tolerance(1.0), Tolerance(1e-9)


@pytest.mark.parametrize("bad", [-1.0, -1e-300, math.nan, math.inf, "1e-5", None])
def test_a_tolerance_is_finite_and_not_negative(bad):
    with pytest.raises(UsageError, match="atol must be a finite number, zero or more"):
        Tolerance(bad)
    with pytest.raises(UsageError, match="rtol must be a finite number, zero or more"):
        Tolerance(0, bad)


def test_a_misspelt_scale_is_refused():
    with pytest.raises(UsageError, match="scale must be 'rms' or 'one'; got 'RMS'"):
        Tolerance(1, 1, "RMS")


def test_zero_is_a_tolerance():
    assert (Tolerance(0).atol, Tolerance(0).rtol, Tolerance(0).scale) == (0, 0, "one")


# -- the dtype table -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "candidate", "decides"),
    [(FP32, FP32, "fp32"), (FP64, FP16, "fp16"), (BF16, FP16, "bf16"), (FP16, FP64, "fp16")],
)
def test_the_looser_of_both_dtypes_decides(reference, candidate, decides):
    assert loosest([reference, candidate]).name == decides
    assert make_policy("dtype").tolerance("norm", reference, candidate) == BY_DTYPE[decides]


def test_the_table_has_every_format_and_grows_with_its_roundoff():
    ordered = sorted(FORMATS.values(), key=lambda f: f.roundoff)
    rooms = [BY_DTYPE[f.name] for f in ordered]
    assert [r.atol for r in rooms] == sorted(r.atol for r in rooms)
    assert [r.rtol for r in rooms] == sorted(r.rtol for r in rooms)
    assert all(r.scale == "rms" for r in rooms)


# -- rules -----------------------------------------------------------------------------------------


def test_the_first_rule_that_matches_wins():
    policy = make_policy({"layer.1": TIGHT, "layer.*": LOOSE, "*": Tolerance(0.5)})
    found = [policy.tolerance(p, FP32, FP32) for p in ("layer.1", "layer.10", "logits")]
    assert found == [TIGHT, LOOSE, Tolerance(0.5)]


def test_points_no_rule_names_use_the_dtype_table():
    policy = make_policy({"layer.*": LOOSE})
    assert policy.tolerance("embed", FP32, FP16) == BY_DTYPE["fp16"]


def test_a_dtype_rule_shields_its_points_from_later_rules():
    policy = Policy("rules", (parse_rule("norm=dtype"), Rule("*", LOOSE)))
    assert policy.tolerance("norm", FP32, FP32) == BY_DTYPE["fp32"]
    assert policy.tolerance("embed", FP32, FP32) == LOOSE


def test_globs_see_case_and_match_the_whole_name():
    assert Rule("layer.?", LOOSE).matches("layer.3")
    assert not Rule("layer.?", LOOSE).matches("layer.31")
    assert not Rule("Layer.*", LOOSE).matches("layer.3")
    assert not Rule("layer", LOOSE).matches("layer.3")


def test_a_rule_that_matches_no_point_is_an_error_with_a_hint():
    policy = make_policy({"embed": LOOSE, "logit": LOOSE})
    with pytest.raises(UsageError, match=r"'logit' matches no point\. Did you mean 'logits'\?"):
        policy.check_rules(["embed", "layer.0", "logits"])


def test_rules_that_match_pass_the_check():
    make_policy({"layer.*": LOOSE, "*": TIGHT}).check_rules(["embed", "layer.0"])
    make_policy("dtype").check_rules([])


# -- what users write ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-3", Tolerance(1e-3)),
        ("1e-3,1e-4", Tolerance(1e-3, 1e-4)),
        (" 0 , 0.5 ", Tolerance(0, 0.5)),
    ],
)
def test_tolerances_are_read(text, expected):
    assert parse_tolerance(text) == expected
    assert make_policy(f"fixed:{text}") == Policy("fixed", (Rule("*", expected),))


@pytest.mark.parametrize("text", ["", "x", "1,", ",1", "1,2,3", "1,2,", "1 2", "1e-3;1e-4"])
def test_what_is_not_a_tolerance_is_refused(text):
    with pytest.raises(UsageError, match="write ATOL or ATOL,RTOL"):
        parse_tolerance(text)


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "1,-1", "0,nan", "1e999"])
def test_numbers_that_are_no_tolerance_are_refused(text):
    with pytest.raises(UsageError, match="must be a finite number"):
        parse_tolerance(text)


def test_rules_are_read():
    assert parse_rule("layer.*=1e-3,1e-4") == Rule("layer.*", Tolerance(1e-3, 1e-4))
    assert parse_rule(" norm = dtype ") == Rule("norm", None)


@pytest.mark.parametrize("text", ["", "layer.*", "=1e-3", " =1", "layer.*=", "layer.*=a", "a=b=1"])
def test_what_is_not_a_rule_is_refused(text):
    with pytest.raises(UsageError, match="Cannot read"):
        parse_rule(text)


def test_policies_are_made_from_what_is_given():
    assert make_policy("calibrated") == Policy("calibrated", calibrated=True)
    assert make_policy("dtype") == Policy("dtype")
    assert make_policy(LOOSE) == Policy("fixed", (Rule("*", LOOSE),))
    made = make_policy({"layer.*": LOOSE})
    assert made == Policy("rules", (Rule("layer.*", LOOSE),), calibrated=True)
    assert make_policy(made) is made


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("dtyp", "Did you mean 'dtype'"),
        ("fixed", "write fixed:ATOL or fixed:ATOL,RTOL"),
        ("fixed:", "write ATOL or ATOL,RTOL"),
        ({"layer.*": 1e-3}, r"Rule 'layer.\*': expected a Tolerance"),
        (None, "Unknown policy None"),
        (1e-3, "Unknown policy 0.001"),
    ],
)
def test_what_is_not_a_policy_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        make_policy(given)
