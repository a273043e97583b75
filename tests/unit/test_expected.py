"""Expected drift: a bound per point, a reason, a last day; and what fails by itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from driftwalk.adapter import BackendInfo
from driftwalk.comparison import compare
from driftwalk.errors import UsageError
from driftwalk.project.expected import Gate, Known, judge, load_expected, named, unmet
from driftwalk.result import Report, from_dict, to_dict
from driftwalk.signatures.data import Signature
from driftwalk.states import Point, State, Trace
from driftwalk_reports import github, index, junit
from driftwalk_reports.schema import load_schema
from driftwalk_reports.sentences import headline
from unit.reports.cases import make, noisy, states, text_probe

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")

TODAY = date(2026, 6, 1)
WHOLE = """
[[expected]]
point = "layer.3"
metric = "rel_l2"
bound = 1e-2
reason = "a vendor's kernel"
expires = 2026-12-31
"""


def drifting(*places: str, by: float = 1e-3, model: str = "tiny-gpt2") -> Report:
    """A report that drifts at these points, by so much of each element."""
    reference = states()
    candidate = noisy(reference)
    for name in places:
        candidate[name] = reference[name] * np.float32(1 + by)
    return make(reference, candidate, model=model)


def known(point: str = "layer.3", bound: float = 1e-2, **changed: object) -> Known:
    made = Known(
        point, "rel_l2", bound, "a kernel", date(2026, 12, 31), where="known.toml: entry 1"
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def held(report: Report, *entries: Known, on: date = TODAY) -> Gate:
    return judge(report, entries, on)


def test_nothing_known_changes_nothing() -> None:
    report = drifting("layer.3")
    gate = held(report)
    assert gate.report is report
    assert (gate.verdict, gate.ok, gate.exit_code) == ("drift", False, 1)


def test_known_drift_is_expected_and_told() -> None:
    report = drifting("layer.3")
    gate = held(report, known())
    assert (gate.verdict, gate.ok, gate.exit_code) == ("expected", True, 0)
    assert gate.report.verdict == "drift"
    assert not gate.report.ok
    (item,) = gate.report.expected
    assert (item.point, item.bound, item.expires) == ("layer.3", 1e-2, "2026-12-31")
    assert item.found == pytest.approx(1e-3, rel=1e-2)
    assert "Expected drift at layer.3: rel_l2 up to 0.001" in gate.report.notes[-1]
    assert "a kernel" in gate.report.notes[-1]


def test_the_bound_is_a_bound() -> None:
    assert held(drifting("layer.3", by=0.0099), known()).verdict == "expected"
    gate = held(drifting("layer.3", by=0.0102), known())
    assert (gate.verdict, gate.ok) == ("drift", False)
    assert gate.report.expected == ()
    assert gate.failures == (), "it is needed, only not enough"
    assert "More than the known drift at layer.3: rel_l2 0.0102 where 0.01" in gate.report.notes[-1]


def test_one_unknown_point_is_drift() -> None:
    gate = held(drifting("layer.3", "layer.4"), known())
    assert (gate.verdict, gate.exit_code) == ("drift", 1)
    assert [item.point for item in gate.report.expected] == ["layer.3"]
    assert held(drifting("layer.3", "layer.4"), known("layer.*")).verdict == "expected"


def test_the_last_day_counts_and_the_next_does_not() -> None:
    report = drifting("layer.3")
    assert held(report, known(), on=date(2026, 12, 31)).ok
    gate = held(report, known(), on=date(2027, 1, 1))
    assert gate.verdict == "drift"
    assert "expired on 2026-12-31: a kernel" in gate.failures[0]
    both = held(report, known(expires=date(2026, 1, 1)), known())
    assert (both.verdict, both.ok, both.exit_code) == ("expected", False, 1)


def test_an_entry_that_nothing_needs_fails() -> None:
    gate = held(drifting(), known())
    assert (gate.verdict, gate.ok, gate.exit_code) == ("pass", False, 1)
    assert "nothing drifts at layer.3 any more" in gate.failures[0]
    gate = held(drifting("layer.3"), known(), known("layr.3"))
    assert not gate.ok
    assert "'layr.3' matches no point. Did you mean 'layer.3'?" in gate.failures[0]


@pytest.mark.parametrize(
    ("changed", "speaks"),
    [
        ({"model": "tiny-*"}, True),
        ({"model": "gpt2"}, False),
        ({"candidate": "onnx*"}, True),
        ({"candidate": "emulated*"}, False),
    ],
)
def test_an_entry_speaks_of_some_runs(changed: dict[str, str], speaks: bool) -> None:
    entry = known(**changed)
    assert held(drifting("layer.3"), entry).ok is speaks
    assert held(drifting(), entry).ok is not speaks, "of no other can it be stale"


def test_what_has_no_size_is_never_expected() -> None:
    everything = known("*", bound=1e300)
    reference = states()
    broken = {**noisy(reference), "layer.3": reference["layer.3"] * np.float32("nan")}
    assert held(make(reference, broken), everything).verdict == "drift"
    less = {name: array for name, array in noisy(reference).items() if name != "norm"}
    gate = held(make(reference, less | {"layer.3": less["layer.3"] * 2}), everything)
    assert gate.verdict == "drift", "norm is missing"
    assert [item.point for item in gate.report.expected] == ["layer.3"]
    bad = {**reference, "embed": reference["embed"] * np.float32("inf")}
    gate = held(make(bad, reference), everything)
    assert (gate.verdict, gate.exit_code, gate.failures) == ("unverified", 3, ())


@pytest.mark.parametrize(("bound", "verdict"), [(0.099, "drift"), (0.11, "drift"), (5, "expected")])
def test_of_a_signature_the_upper_bound_counts(bound: float, verdict: str) -> None:
    """The lower bound proves the drift; that it is small, only the upper one can."""
    reference, probe, info = states(), text_probe(), BackendInfo("a", "a", "cpu", "fp32")
    other = {**reference, "layer.3": reference["layer.3"] * np.float32(1.1)}
    one, two = (
        Trace(tuple(State(Point(n), a) for n, a in made.items()), probe, info)
        for made in (reference, other)
    )
    report = compare(Signature.of(one), two, "l2:1e-3")
    row = report.layer("layer.3")
    assert row.metrics is not None
    assert row.metrics.rel_l2 < 0.1 < known().found(row)
    assert held(report, known(bound=bound)).verdict == verdict
    assert held(report, known(bound=1e9, metric="max_rel")).verdict == "drift", "not known at all"


def test_entries_that_meet_no_run() -> None:
    seen = [named(drifting(model="one")), named(drifting(model="two"))]
    entries = [known(model="t*"), known(model="three"), known(model="x", expires=date(2020, 1, 1))]
    assert [line[:60] for line in unmet(entries, seen, False, TODAY)] == [
        "known.toml: entry 1: the known deviation at layer.3 expired "
    ]
    assert len(unmet(entries, seen, True, TODAY)) == 2
    assert "no run has a model 'three'" in unmet(entries, seen, True, TODAY)[0]


def test_the_result_keeps_it() -> None:
    report = held(drifting("layer.3"), known()).report
    data = to_dict(report)
    jsonschema.Draft202012Validator(load_schema()).validate(data)
    assert from_dict(data).expected == report.expected
    assert "expected" not in to_dict(drifting("layer.3"))


def test_junit_and_the_index_show_it() -> None:
    report = held(drifting("layer.3", "layer.4"), known()).report
    suite = ET.fromstring(junit.render(report))[0]
    assert (suite.attrib["failures"], suite.attrib["skipped"]) == ("1", "1")
    (skipped,) = suite.iter("skipped")
    assert (
        "expected drift, rel_l2 0.001 of 0.01 known until 2026-12-31" in skipped.attrib["message"]
    )
    assert "(expected)" not in index.render([("x/report.html", report)])
    report = held(drifting("layer.3"), known()).report
    assert 'failures="0"' in junit.render(report)
    assert "layer.3 (expected)" in index.render([("x/report.html", report)])


def test_the_headline_and_github_say_it() -> None:
    report = held(drifting("layer.3"), known()).report
    assert headline(report).startswith("DRIFT: first divergence at layer.3")
    assert headline(report).endswith("All of it is expected until 2026-12-31: a kernel.")
    assert github.annotate([report]).startswith("::notice title=driftwalk%3A tiny-gpt2")
    half = held(drifting("layer.3", "layer.4"), known()).report
    assert "expected" not in headline(half)
    assert github.annotate([half]).startswith("::error ")


def test_a_result_cannot_excuse_what_has_no_size() -> None:
    """A result file is not trusted: its list only excuses points that drift."""
    reference = states()
    broken = {**noisy(reference), "layer.3": reference["layer.3"] * np.float32("nan")}
    item = held(drifting("layer.3"), known()).report.expected
    forged = replace(make(reference, broken), expected=item)
    assert not forged.as_expected
    assert 'failures="1"' in junit.render(forged)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(WHOLE + WHOLE.replace("layer.3", "*") + 'model = "m"\ncandidate = "c"\n')
    first, second = load_expected(path)
    assert first == Known(
        *("layer.3", "rel_l2", 1e-2, "a vendor's kernel", date(2026, 12, 31)),
        where="known.toml: expected, entry 1",
    )
    assert (second.point, second.model, second.candidate) == ("*", "m", "c")
    path.write_text("")
    assert load_expected(path) == ()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("point", "pont", "Did you mean 'point'?"),
        ('reason = "a vendor\'s kernel"', "", "'reason' is missing"),
        ('"a vendor\'s kernel"', '" "', "'reason' is empty"),
        ("expires = 2026-12-31", "", "'expires' is missing"),
        ("2026-12-31", '"2026-12-31"', "'expires' should be a date, found text"),
        ("2026-12-31", "2026-12-31T10:00:00", "'expires' should be a date, found a date with a"),
        ("rel_l2", "cosine", "no metric 'cosine' can be bounded"),
        ("rel_l2", "rel_12", "Did you mean 'rel_l2'?"),
        ("1e-2", '"1e-2"', "'bound' should be a finite number"),
        ("1e-2", "inf", "'bound' should be a finite number"),
        ("1e-2", "nan", "'bound' should be a finite number"),
        ("1e-2", "true", "'bound' should be a finite number"),
        ("1e-2", "0", "'bound' should be more than 0"),
        ("[[expected]]", "[[expcted]]", "Did you mean 'expected'?"),
        ("[[expected]]", "[expected]", "'expected' should be a list"),
    ],
)
def test_an_entry_that_says_too_little(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "known.toml"
    path.write_text(WHOLE.replace(old, new))
    with pytest.raises(UsageError) as caught:
        load_expected(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)
