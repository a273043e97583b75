"""The plot of channels: there where a channel is the finding."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from driftwalk.document import from_dict, to_dict
from driftwalk.judge.drill import by_channel, concentration
from driftwalk.layer_drift import ChannelErrors, Culprit
from driftwalk.result import Report
from driftwalk_reports import html
from driftwalk_reports.channels import channel_chart

from . import cases


def finding(channel: int | None, found: ChannelErrors | None) -> Report:
    culprit = Culprit("h.3.mlp.c_proj", 40.0, channel, None, "layer.3 mlp.c_proj did it", found)
    return dataclasses.replace(cases.told(cases.drifting()), culprit=culprit)


def tall(path: str) -> list[float]:
    """Heights of the bars of a path, from the left."""
    bars = re.findall(r"M[\d.]+ ([\d.]+)V([\d.]+)H", path)
    return [float(floor) - float(top) for floor, top in bars]


def test_the_named_channel_stands_out() -> None:
    errors = ChannelErrors(16, tuple(1e-3 if at == 7 else 1e-7 for at in range(16)))
    chart = channel_chart(finding(7, errors))
    assert chart is not None
    assert chart.sentence == (
        "Of the error that h.3.mlp.c_proj made, channel 7 of 16 has 0.001; "
        "the median channel has 1e-07."
    )
    for drawing in chart.drawings:
        assert len(tall(drawing.others)) == 15
        (named,) = tall(drawing.named)
        assert named > 3 * max(tall(drawing.others))
        assert drawing.flag.text == "channel 7"
    page = html.render(finding(7, errors))
    assert "Which channel it is" in page
    assert "the largest of" not in page


def test_many_channels_are_drawn_in_bins() -> None:
    rms = np.full(10_000, 1e-6)
    rms[9_999] = 1.0
    found = by_channel(rms)
    assert found.of == 10_000
    assert len(found.rms) <= 256
    assert found.rms[-1] == 1.0
    chart = channel_chart(finding(9_999, found))
    assert chart is not None
    assert f"a bar is the largest of {found.step} neighbours" in html.render(finding(9_999, found))
    wide = chart.drawings[0]
    assert (
        wide.hits[-1].tip[0] == f"channels {9_999 // found.step * found.step} to 9999, the largest"
    )


@pytest.mark.parametrize(
    ("channel", "found"),
    [
        (None, None),
        (3, None),
        (99, ChannelErrors(2, (1.0, 1.0))),
        (0, ChannelErrors(2, (0.0, 0.0))),
        (1, ChannelErrors(2, (0.0, float("inf")))),
    ],
)
def test_no_plot_without_a_finding(channel: int | None, found: ChannelErrors | None) -> None:
    assert channel_chart(finding(channel, found)) is None
    assert "Which channel it is" not in html.render(finding(channel, found))


def test_the_errors_are_root_mean_squares_of_what_counts() -> None:
    difference = np.full((2, 3, 8), 1e-6)
    difference[..., 5] = 2.0
    difference[1, 2] = 1e9  # padding
    keep = np.array([[True] * 3, [True, True, False]])
    found = concentration(difference, keep)
    assert found.channel == 5
    assert found.channels is not None
    assert found.channels.rms[5] == pytest.approx(2.0)
    assert found.channels.rms[0] == pytest.approx(1e-6)
    assert concentration(np.ones((2, 3, 8))).channels is None, "no channel stands out"


def test_a_result_keeps_them() -> None:
    report = finding(1, ChannelErrors(2, (0.5, 1.5)))
    stored = from_dict(to_dict(report))
    assert isinstance(stored, Report)
    assert stored.culprit == report.culprit
