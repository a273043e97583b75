"""What a format costs, as numbers; and the limits that a user may set on it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftwalk.document import to_dict, to_json
from driftwalk.errors import UsageError
from driftwalk.formats import FormatCost, FormatFindings, Misstored, StoredAs, decibels
from driftwalk.measure.decisions import Decisions
from driftwalk.project.expected import Known, judge
from driftwalk.result import ExpectedDrift, Report, from_dict
from driftwalk.tasks.formats.limits import NO_FORMAT, FormatLimits
from driftwalk.tolerance import Tolerance
from unit.material import layer, report


def cost(format_part: float, kernel: float = 1e-6, scale: float = 1.0) -> FormatCost:
    return FormatCost(format_part, kernel, 0.25, scale)


def findings(**changed: Any) -> FormatFindings:
    """Of a decoder with three blocks; its second costs most."""
    layers = {
        "embed": cost(0.01),
        "layer.0": cost(0.02, scale=2.0),
        "layer.1": cost(0.05),
        "layer.2": cost(0.05),
        "norm": cost(0.04),
        "logits": cost(0.1),
    }
    given: dict[str, Any] = {
        "stored": (StoredAs("int8", "a row", "8 bits, one step for all", 24, 1000, 1040),),
        "layers": layers,
        "decisions": Decisions(28, 2, 0, 0.95, 1.5e-4, 3e-4, ()),
    }
    return FormatFindings(**(given | changed))


def quantised(verdict: Any = "pass", **changed: Any) -> Report:
    rows = (layer("embed"), layer("layer.0", index=1), layer("logits", index=2))
    return replace(report(verdict, rows), format=findings(**changed))


@given(st.floats(1e-12, 1e3), st.floats(1e-6, 1e6))
def test_decibels_are_those_of_the_truth_over_the_cost(part: float, scale: float) -> None:
    found = cost(part * scale, scale=scale)
    assert math.isclose(found.relative_format, part, rel_tol=1e-9)
    assert math.isclose(10 ** (-found.snr_db / 20), part, rel_tol=1e-9)


def test_what_costs_nothing_and_what_is_no_number() -> None:
    assert cost(0.0).snr_db == math.inf
    assert cost(0.0, scale=0.0).relative_format == 0.0
    assert cost(1.0, scale=0.0).snr_db == -math.inf
    assert math.isnan(decibels(math.nan))
    assert StoredAs("int4", "a row", "", 1, 64, 40).smaller == 6.4


def test_errors_add_in_squares_and_a_layer_is_ranked_by_what_it_adds() -> None:
    found = findings()
    added = found.added
    assert added["embed"] == 0.01
    assert added["layer.0"] == 0.0, "relative to the state it costs no more than before"
    assert math.isclose(added["layer.1"], math.sqrt(0.05**2 - 0.01**2))
    assert added["norm"] == 0.0, "where the cost falls, nothing was added"
    assert math.isclose(added["logits"], math.sqrt(0.1**2 - 0.04**2)), "from the norm"
    assert found.ranking == ("logits", "layer.1", "embed")


def test_each_stack_begins_anew_and_parts_of_a_layer_are_not_ranked() -> None:
    names = ("encoder.embed", "encoder.layer.0", "decoder.embed", "decoder.layer.0.mlp")
    layers = dict(zip(names, (cost(0.1), cost(0.3), cost(0.2), cost(0.9)), strict=True))
    added = findings(layers=layers).added
    assert added["decoder.embed"] == 0.2, "it is not made from the encoder's last state"
    assert "decoder.layer.0.mlp" not in added


def test_the_worst_output_counts() -> None:
    layers = {"layer.0": cost(0.9), "logits": cost(0.01), "output.boxes": cost(0.1)}
    assert findings(layers=layers).output == ("output.boxes", cost(0.1))
    broken = layers | {"output.nan": cost(math.nan)}
    assert findings(layers=broken).output[0] == "output.nan"  # type: ignore[index]
    assert findings(layers={"embed": cost(0.1), "layer.0": cost(0.2)}).output[0] == "layer.0"  # type: ignore[index]
    assert findings(layers={}).output is None


def test_a_report_with_a_format_is_written_and_read() -> None:
    wrong = {"h.0": Misstored("h.0 does not hold the model's weights", math.inf)}
    told = quantised(wrong=wrong, own_way=("h.1",), in_float=("head",), exceeded=("SNR 20 dB",))
    data = json.loads(to_json(told))
    assert from_dict(data) == told
    assert data["format"]["layers"]["logits"]["snr_db"] == pytest.approx(20.0)
    assert data["format"]["layers"]["logits"]["total"] == pytest.approx(0.1, rel=1e-3)
    assert "exceeded" not in to_dict(quantised())["format"]


def test_a_report_without_a_format_stays_as_it_was() -> None:
    data = to_dict(report())
    assert "format" not in data
    assert not {"max_format_kl", "min_format_snr"} & set(data["policy"])
    assert from_dict(data).format is None


def limits(kl: float | None = None, snr: float | None = None) -> FormatLimits:
    made = FormatLimits.asked(kl, snr, "calibrated")
    assert made is not None
    return made


def test_a_format_within_its_limits_passes_and_the_limits_are_told() -> None:
    found = limits(1.5e-4, 20.0).judged(quantised(layers={"logits": cost(0.1)}))
    assert (found.verdict, found.reason, found.at_fault) == ("pass", "", None)
    assert (found.policy.max_format_kl, found.policy.min_format_snr) == (1.5e-4, 20.0)
    assert found.notes == quantised().notes


@pytest.mark.parametrize(
    ("kl", "snr", "words"),
    [
        (1.4e-4, None, ["KL divergence 0.00015", "0.00014 is allowed"]),
        (None, 20.1, ["SNR 20 dB at logits", "20.1 dB"]),
        (1e-5, 30.0, ["KL divergence 0.00015", "SNR 20 dB at logits"]),
    ],
)
def test_a_format_that_costs_more_is_drift_and_not_the_kernels(
    kl: float | None, snr: float | None, words: list[str]
) -> None:
    found = limits(kl, snr).judged(quantised())
    assert (found.verdict, found.at_fault) == ("drift", "candidate")
    assert found.first_divergence is None, "no layer of it drifts"
    assert found.reason.startswith("the format, not the kernel, costs more than is allowed: ")
    assert all(word in found.reason for word in words)
    assert found.format is not None
    assert "; ".join(found.format.exceeded) in found.reason


def test_nan_is_within_no_limit() -> None:
    nothing = Decisions(1, 0, 0, 1.0, math.nan, math.nan, ())
    assert limits(kl=1.0).judged(quantised(decisions=nothing)).verdict == "drift"
    broken = {"logits": cost(math.nan)}
    assert limits(snr=0.0).judged(quantised(layers=broken)).verdict == "drift"


def test_a_limit_that_cannot_be_applied_leaves_the_run_unverified() -> None:
    found = limits(kl=1.0).judged(quantised(decisions=None))
    assert found.verdict == "unverified"
    assert "--min-format-snr" in found.reason
    assert limits(snr=1.0).judged(quantised(layers={})).verdict == "unverified"
    unread = limits(snr=1.0).judged(replace(quantised(), format=None), hidden=True)
    assert unread.verdict == "unverified"
    drifting = limits(kl=1.0).judged(quantised("drift", decisions=None))
    assert drifting.verdict == "drift"
    assert "--min-format-snr" in drifting.notes[-1]


def test_a_candidate_that_is_not_quantised_has_nothing_to_pay_for() -> None:
    found = limits(kl=0.0).judged(replace(quantised(), format=None))
    assert found.verdict == "pass"
    assert found.notes[-1] == NO_FORMAT


def test_nothing_is_accused_by_a_truth_in_doubt() -> None:
    found = limits(kl=0.0).judged(replace(quantised("unverified"), reason="in doubt"))
    assert (found.verdict, found.reason) == ("unverified", "in doubt")
    assert found.format is not None
    assert found.format.exceeded


def test_the_reference_stays_at_fault_beside_the_format() -> None:
    found = limits(kl=0.0).judged(replace(quantised("drift"), at_fault="reference"))
    assert found.at_fault == "both"


@pytest.mark.parametrize(
    ("kl", "snr", "policy", "words"),
    [
        (-1.0, None, "calibrated", "max_format_kl=-1.0"),
        (math.nan, None, "calibrated", "max_format_kl=nan"),
        (None, math.inf, "calibrated", "min_format_snr=inf"),
        (True, None, "calibrated", "max_format_kl=True"),
        ("1", None, "calibrated", "max_format_kl='1'"),
        (1.0, None, "dtype", "calibrated"),
        (1.0, None, Tolerance(1e-3), "calibrated"),
    ],
)
def test_a_limit_that_means_nothing_is_refused(kl: Any, snr: Any, policy: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        FormatLimits.asked(kl, snr, policy)
    assert FormatLimits.asked(None, None, policy) is None


def test_what_is_known_of_the_kernel_excuses_no_format() -> None:
    """Expected drift speaks of layers; a format beyond its limit stays drift."""
    rows = (layer("embed"), layer("layer.0", "drift", 1))
    drifting = replace(report("drift", rows), format=findings())
    known = replace(drifting, expected=(ExpectedDrift("layer.0", "rel_l2", 1.0, 0.1, "so", "x"),))
    assert known.as_expected
    assert not limits(kl=0.0).judged(known).as_expected
    entry = Known("layer.*", "rel_l2", 1.0, "so", date(2999, 1, 1))
    assert judge(drifting, [entry]).ok
    assert not judge(limits(kl=0.0).judged(drifting), [entry]).ok
