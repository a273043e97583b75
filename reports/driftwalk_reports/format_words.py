"""What a quantised candidate's format costs, in words: shared by every report."""

from __future__ import annotations

import math
from collections.abc import Iterator

from driftwalk.formats import FormatFindings, Misstored
from driftwalk.measure.decisions import Decisions
from driftwalk.result import PolicyInfo, Report

from .numbers import count, cut, names, number, share
from .point_words import called

MOST_RANKED = 3
"""Layers that are named as those at which a format costs most."""


def decibels(value: float) -> str:
    return "no error" if value == math.inf else f"{number(value)} dB"


def costs(report: Report, decisions: bool = True) -> str:
    """What the format costs at the output, and what is decided otherwise for it, in a clause."""
    found = report.format
    output = found.output if found is not None else None
    if found is None or output is None:
        return "what the format costs could not be told: no output has the shape of the model's"
    name, cost = called(report, output[0]), output[1]
    if cost.format == 0:
        return f"the format costs nothing at {name}"
    decided = found.decisions
    text = f"the format costs {number(cost.relative_format)} of {name}"
    text += f" (rel L2; SNR {decibels(cost.snr_db)})"
    if decided is None or not decisions:
        return text
    flips = f"{count(decided.flips)} of {_positions(decided)}"
    return f"{text}, KL divergence {number(decided.kl_mean)}, and flips {flips}"


def _positions(found: Decisions) -> str:
    return f"{count(found.positions)} top choice{'s' if found.positions != 1 else ''}"


def format_sentences(report: Report) -> Iterator[str]:
    """All that is to be said beside the numbers of layers."""
    found = report.format
    if found is None:
        return
    yield f"{begun(costs(report, decisions=False))}."
    if found.decisions is not None:
        decided = found.decisions
        yield (
            f"Alone, it flips {count(decided.flips)} of {_positions(decided)}; top-5 overlap "
            f"{share(decided.top5_overlap)}; KL divergence {number(decided.kl_mean)} on average, "
            f"{number(decided.kl_max)} at most."
        )
    if found.output is not None:
        name, cost = found.output
        yield f"The kernel adds {number(cost.relative_kernel)} at {called(report, name)}."
    ranked, added = found.ranking[:MOST_RANKED], found.added
    if ranked:
        listed = ", ".join(f"{called(report, name)} (by {number(added[name])})" for name in ranked)
        yield f"The format's cost grows most at {listed}."
    if not found.stored:
        yield "How its weights are stored could not be read."
    if found.in_float:
        yield f"Left in float: {names(found.in_float, 8)}."
    if found.own_way:
        yield (
            "Not rounded to the nearest number, but in a way of their own, and taken as they are "
            f"stored: {names(found.own_way, 8)}."
        )


def misstored(found: FormatFindings) -> Iterator[str]:
    """Weights that are no rounding of the model's: drift, whatever the format costs."""
    for wrong in found.wrong.values():
        yield _misstored(wrong)


def misstored_besides(report: Report) -> list[str]:
    """The same without what the culprit's sentence tells already."""
    wrong = report.format.wrong.values() if report.format is not None else ()
    said = report.culprit.sentence if report.culprit is not None else ""
    return [_misstored(one) for one in wrong if one.sentence not in said]


def _misstored(wrong: Misstored) -> str:
    times = f" (up to {number(wrong.beyond)} times what it may be off)" if wrong.beyond > 1 else ""
    return f"{cut(wrong.sentence, 300).rstrip('. ')}{times}."


def beyond(report: Report) -> tuple[str, ...]:
    """Where a format costs more than the user allows."""
    return report.format.exceeded if report.format is not None else ()


def limits(policy: PolicyInfo) -> str:
    """What the user allows a format to cost; empty where nothing was said."""
    kl, snr = policy.max_format_kl, policy.min_format_snr
    said = (
        "" if kl is None else f"KL at most {number(kl)}",
        "" if snr is None else f"SNR at least {number(snr)} dB",
    )
    return ", ".join(filter(None, said))


def begun(text: str) -> str:
    """A clause as the beginning of a sentence."""
    return f"{text[:1].upper()}{text[1:]}"
