"""A contrast in words: what its page and its text show, without markup."""

from __future__ import annotations

from dataclasses import dataclass

from driftwalk.measure.tokens import TokenErrors
from driftwalk.tasks.studies.contrast_result import AlignedRow, Contrast, ContrastLayer

from ..numbers import NOTHING, cut, number, part_of
from ..sentences import in_units
from ..view import model_name

MOST_TOKENS = 48
"""Columns of a table of single numbers; the heatmap and the JSON file have all."""

Fact = tuple[str, str]


@dataclass(frozen=True)
class TokenHead:
    """One position of both inputs."""

    text: str
    differs: bool


@dataclass(frozen=True)
class LayerRow:
    """One point, all batch rows."""

    point: str
    distance: str
    drift: str
    share: str
    l2: tuple[tuple[str, ...], ...]
    mean: tuple[tuple[str, ...], ...]
    std: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class PairView:
    """One row of both inputs, and what stands above its columns."""

    first: str
    second: str
    tokens: tuple[TokenHead, ...]
    more: int
    """Tokens that found no place."""


@dataclass(frozen=True)
class ContrastView:
    headline: str
    failed: bool
    sentences: tuple[str, ...]
    about: tuple[Fact, ...]
    pairs: tuple[PairView, ...]
    rows: tuple[LayerRow, ...]
    with_drift: bool
    notes: tuple[str, ...]
    command: str
    created: str
    tool: str
    environment: tuple[Fact, ...]


def look(study: Contrast) -> ContrastView:
    """Everything a contrast shows."""
    pairs = _pairs(study)
    most = max((len(pair.tokens) for pair in pairs), default=1)
    candidate = study.candidate
    about = [
        ("model", model_name(study.model)),
        ("backend", study.backend.spec),
        ("candidate", candidate.spec if candidate else NOTHING),
        ("causal", f"{_yes(study.causal)}: {study.causal_by}"),
    ]
    return ContrastView(
        headline=headline(study),
        failed=bool(study.failed),
        sentences=tuple(_sentences(study)),
        about=tuple(about),
        pairs=pairs,
        rows=tuple(_row(layer, most) for layer in study.layers),
        with_drift=candidate is not None,
        notes=study.notes,
        command=study.command,
        created=study.created,
        tool=f"{study.tool.name} {study.tool.version}",
        environment=tuple(study.environment.items()),
    )


def headline(study: Contrast) -> str:
    """One sentence: the fault, or the drift in units of meaning, or the distance."""
    if study.failed:
        return f"FAILED: {study.failed}"
    pair = names_of(study.rows)
    worst = study.largest_share
    if worst is not None and study.candidate is not None and worst.share is not None:
        both = f"{pair[0]} and {pair[1]}"
        return in_units(study.candidate.spec, worst.share, both, worst.point.name)
    hidden = [layer for layer in study.layers if layer.point.name != "logits"] or study.layers
    far = max(hidden, key=lambda layer: layer.distance)
    where = cut(far.point.name, 60)
    return f"{pair[0]} and {pair[1]} are farthest apart at {where}: {number(far.distance)} a token."


def names_of(rows: tuple[AlignedRow, ...]) -> tuple[str, str]:
    """What to call the two inputs."""
    texts = rows[0].texts if len(rows) == 1 else ("", "")
    if not all(texts):
        return "the first input", "the second"
    return f"“{cut(texts[0], 60)}”", f"“{cut(texts[1], 60)}”"


def _sentences(study: Contrast) -> list[str]:
    told = []
    starts = [row.start for row in study.rows if row.start is not None]
    if study.causal and not study.failed and starts:
        early = _before(study)
        told.append(
            "The first token differs already, so that no earlier state could show a leak."
            if max(starts) == 0
            else "Before the first token that differs nothing differs in any layer, bit by bit, as "
            "it must be in a causal model."
            if early == 0
            else "Before the first token that differs states differ by rounding alone (up to "
            f"{number(early)}): which tokens share an expert is not the same."
        )
    if study.causal is False:
        told.append(
            "The model is not causal: a token that differs changes the states of those before it."
        )
    same = [layer.point.name for layer in study.layers if layer.distance == 0]
    if same:
        told.append(f"The inputs are the same at {', '.join(cut(n, 40) for n in same[:4])}.")
    return told


def _before(study: Contrast) -> float:
    """The largest distance of a token before the first that differs."""
    found = [
        value
        for layer in study.layers
        for row, line in zip(study.rows, layer.l2, strict=False)
        if len(line) >= len(row.differs)
        for value in line[: row.start or 0]
    ]
    return max((value for value in found if value is not None), default=0.0)


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "not told"}[value]


def _pairs(study: Contrast) -> tuple[PairView, ...]:
    profile = study.layers[0].l2 if study.layers else ()
    widths = [sum(value is not None for value in line) for line in profile]
    found = []
    for number_, width in enumerate(widths):
        row = study.rows[number_] if number_ < len(study.rows) else None
        heads = tuple(_token(row, i) for i in range(min(width, MOST_TOKENS)))
        first, second = row.texts if row else ("", "")
        found.append(
            PairView(cut(first, 500), cut(second, 500), heads, max(0, width - MOST_TOKENS))
        )
    return tuple(found)


def _token(row: AlignedRow | None, at: int) -> TokenHead:
    differs = row is not None and at < len(row.differs) and row.differs[at]
    if row is None or at >= len(row.first) or at >= len(row.second):
        return TokenHead(str(at), differs)
    first, second = cut(row.first[at], 24), cut(row.second[at], 24)
    return TokenHead(f"{first} | {second}" if first != second else first, differs)


def column(study: Contrast, batch_row: int, at: int) -> str:
    """What a column of the heatmap stands for, in full."""
    row = study.rows[batch_row] if batch_row < len(study.rows) else None
    head = _token(row, at)
    words = f" {head.text}" if row is not None and row.first else ""
    return f"row {batch_row}, token {at}{words}{' (differs)' if head.differs else ''}"


def _row(layer: ContrastLayer, most: int) -> LayerRow:
    def cells(values: TokenErrors) -> tuple[tuple[str, ...], ...]:
        return tuple(
            tuple("0" if v == 0 else number(v) for v in line[:most] if v is not None)
            for line in values
        )

    return LayerRow(
        cut(layer.point.name, 60),
        number(layer.distance),
        number(layer.drift),
        part_of(layer.share),
        cells(layer.l2),
        cells(layer.mean),
        cells(layer.std),
    )
