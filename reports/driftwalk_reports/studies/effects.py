"""Predicted propagation and patching in a drift report: sentences, charts, tables; no markup."""

from __future__ import annotations

from dataclasses import dataclass

from driftwalk.effects import Carried, Patching, Propagation
from driftwalk.result import Report

from ..chart import Chart, Column, Plot, Series, draw
from ..numbers import count, cut, number, seconds

_WORDS = {
    "nothing": "nothing to carry",
    "follows": "as predicted",
    "added": "later layers add their own",
    "nonlinear": "no longer small",
    "nonfinite": "not finite",
}


@dataclass(frozen=True)
class Effect:
    """One section of the page."""

    name: str
    title: str
    hint: str
    sentence: str
    chart: Chart | None
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def effects(report: Report) -> list[Effect]:
    """The sections that were asked for."""
    carried = [_carried(report.propagation)] if report.propagation is not None else []
    return carried + ([_restored(report.patching)] if report.patching is not None else [])


def propagation_sentence(found: Propagation) -> str:
    """Whether the drift is what small errors become; where not, in which of two ways."""
    cost = f" It took {seconds(found.seconds)}."
    if broken := found.first("nonfinite"):
        return f"Propagation cannot be told from {_name(broken)} on: a state is not finite.{cost}"
    if chaotic := found.first("nonlinear"):
        return (
            f"From {_name(chaotic)} on the drift is no longer small: the truth's Jacobian predicts "
            f"{number(chaotic.ratio)} times the inherited drift that was measured, and is off by "
            f"{number(chaotic.off, 2)} of it.{cost}"
        )
    if added := found.first("added"):
        return (
            f"From {_name(added)} on later layers add their own: what {cut(found.source, 40)} "
            f"introduced explains {number(added.source)} of the {number(added.measured)} that was "
            f"inherited there.{cost}"
        )
    if all(layer.finding == "nothing" for layer in found.layers):
        return f"There is no drift to carry.{cost}"
    alone = f" Most of it comes from {cut(found.source, 40)}." if found.source else ""
    return (
        "The drift behaves as small errors do: carried through the truth's Jacobian, what the "
        f"layers introduced predicts the inherited drift within {_within(found)}.{alone}{cost}"
    )


def patching_sentence(found: Patching) -> str:
    """From which layer on errors change no decision."""
    cost = f" {found.runs} runs, {seconds(found.seconds)}."
    if not found.flips:
        return (
            f"No decision of {count(found.positions)} flipped: there is nothing to restore.{cost}"
        )
    which = f"{count(found.flips)} of {count(found.positions)} decisions flipped"
    if found.stops_at is None:
        return f"{which}, and no single restored layer brings all of them back.{cost}"
    return (
        f"{which}; restoring {cut(found.stops_at, 40)} brings all of them back, and so does "
        f"every point after it: what goes wrong later changes no decision.{cost}"
    )


def _name(layer: Carried) -> str:
    return cut(layer.point, 40)


def _within(found: Propagation) -> str:
    worst = found.worst_ratio
    off = 100 * max(worst - 1, 1 / worst - 1)
    return "0.1 %" if off < 0.1 else f"{number(off, 2)} %"


def _carried(found: Propagation) -> Effect:
    layers = [layer for layer in found.layers if layer.finding != "nothing"]
    fine, calm = [layer.finding in ("follows", "added") for layer in layers], [True] * len(layers)
    series = [
        Series("measured", "candidate", [layer.measured for layer in layers], ok=fine),
        Series("predicted", "inherited", [layer.predicted for layer in layers], ok=calm),
    ]
    if found.source:
        alone = [layer.source or None for layer in layers]
        series.append(Series(f"from {cut(found.source, 40)} alone", "reference", alone, ok=calm))
    ratio = Series("ratio", "gain", [layer.ratio for layer in layers], ok=calm)
    plots = [
        Plot("inherited drift (L2)", series, 170.0),
        Plot("predicted / measured", [ratio], 80.0),
    ]
    columns = [
        Column(_name(layer), "✓" if ok else "✗", ok, said=_WORDS[layer.finding])
        for layer, ok in zip(layers, fine, strict=True)
    ]
    label = "Predicted and measured inherited drift, on log scales; the table has the same numbers."
    return Effect(
        name="carried",
        title="What linear theory makes of the drift",
        hint="Every layer's own error, carried through the derivative of the truth's later blocks "
        "and added up, against the inherited drift that was measured. They agree while the drift "
        "is small.",
        sentence=propagation_sentence(found),
        chart=draw(label, columns, plots) if layers else None,
        head=("point", "measured", "predicted", "ratio", "off by", "block by block", "it says"),
        rows=tuple(
            (
                _name(layer),
                number(layer.measured),
                number(layer.predicted),
                *(
                    "" if layer.finding == "nothing" else number(x)
                    for x in (layer.ratio, layer.off)
                ),
                number(layer.step),
                _WORDS[layer.finding],
            )
            for layer in found.layers
        ),
    )


def _restored(found: Patching) -> Effect:
    fine = [not patch.flips for patch in found.patches]
    values = [float(patch.flips) for patch in found.patches]
    columns = [
        Column(
            cut(patch.point, 40),
            "✓" if ok else "✗",
            ok,
            ("errors stop mattering",) if found.flips and patch.point == found.stops_at else (),
            f"of {found.flips}",
        )
        for patch, ok in zip(found.patches, fine, strict=True)
    ]
    plot = Plot("flips left", [Series("flips left", "candidate", values, ok=fine)], 130.0)
    label = (
        "Decisions that stay flipped when one layer is restored; the table has the same numbers."
    )
    return Effect(
        name="restored",
        title="Where errors stop mattering",
        hint="The reference's state put into the candidate at one point, and the decisions that "
        "still differ at the end, for each point.",
        sentence=patching_sentence(found),
        chart=draw(label, columns, [plot]) if columns and found.flips else None,
        head=("restored at", "flips left", "flips removed"),
        rows=tuple(
            (cut(patch.point, 40), count(patch.flips), count(found.removed(patch)))
            for patch in found.patches
        ),
    )
