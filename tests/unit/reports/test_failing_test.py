"""What a test says of a run that it gated."""

from __future__ import annotations

from dataclasses import replace

from driftwalk_reports.failing_test import failure, summary_line
from unit.material import layer, report

STALE = ("known.toml: entry 1: nothing drifts at layer.3 any more.",)


def drifting():
    return report(layers=[layer("embed"), layer("layer.0", "drift"), layer("logits", "drift")])


def test_drift_is_placed_and_leads_on() -> None:
    assert summary_line(drifting(), "drift", ()).startswith("DRIFT ")
    assert summary_line(drifting(), "drift", ()).startswith("DRIFT layer.0 of ")
    text = failure(drifting(), "drift", (), "out/report.html", "Try again.")
    assert "layer.0" in text
    assert text.endswith("  Report: out/report.html\n  Try again.")


def test_a_narrow_summary_still_names_the_layer() -> None:
    """pytest shows as much of the first line as fits beside the name of the test."""
    blamed = replace(drifting(), cause="logits")
    assert failure(drifting(), "drift", ()).startswith("layer.0 drifts.\nDRIFT: ")
    assert failure(replace(blamed, cause="layer.0"), "drift", ()).startswith(
        "layer.0 drifts, and is the root cause.\n"
    )
    assert failure(blamed, "drift", ()).startswith(
        "logits is the root cause; drift shows at layer.0.\n"
    )
    assert summary_line(blamed, "drift", ()).startswith("DRIFT logits of ")
    unverified = report(layers=[], verdict="unverified")
    assert failure(unverified, "unverified", ()).startswith("UNVERIFIED: ")
    assert summary_line(unverified, "unverified", ()).startswith("UNVERIFIED tiny on ")


def test_an_entry_that_nothing_needs_is_what_fails() -> None:
    passing = report(layers=[layer("embed"), layer("logits")])
    line = summary_line(passing, "pass", STALE)
    assert line.startswith("STALE ")
    assert STALE[0] in line
    text = failure(passing, "pass", STALE)
    assert text.startswith("The expected drift is out of date.")
    assert text.count(STALE[0]) == 1
    assert "Report:" not in text


def test_a_name_commands_no_terminal() -> None:
    hostile = replace(drifting(), model={"label": "a\x1b[2Jb\nc"})
    for text in (summary_line(hostile, "drift", ()), failure(hostile, "drift", ())):
        assert "\x1b" not in text
        assert "a\\x1b[2Jb\\nc" in text
