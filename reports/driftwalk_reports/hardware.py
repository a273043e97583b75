"""A hardware check: what is shown of it, then how: on a terminal, as Markdown, as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.text import Text

from driftwalk.tasks.hardware.result import (
    Case,
    Cell,
    Check,
    DeviceResult,
    HardwareReport,
    Mismatch,
)

from . import console, marked
from .layout import SYMBOLS, Fact, Head, Sign
from .marked import Markdown
from .numbers import NOTHING, apart, cut, number, seconds
from .page import page_renderer
from .timeline import Timeline, timeline

TONES = {"no fault found": "pass", "fault": "drift", "not comparable": "unverified"}
OUTCOMES = {"bit-exact": "pass", "within noise": "unverified", "broken": "drift", "not run": ""}
OUTCOME_SYMBOLS = {"bit-exact": "✓", "within noise": "≈", "broken": "✗", "not run": NOTHING}
CHECK_NAMES = {
    "repeat": "Repeat: the same states each time",
    "units": "Dtypes and units",
    "load": "Cold and hot",
    "golden": "Against the golden trace",
    "devices": "Between devices",
    "invariance": "Invariance",
}
INJECTED = "A FAULT WAS INJECTED ON PURPOSE; this is a test of the checker, not of the hardware"
MOST_FOUND = 6
"""Mismatches that texts show; the page has all that were stored."""

CheckRow = tuple[str, Sign, str, str]
"""A check, its verdict, what was found, and how long it took."""


@dataclass(frozen=True)
class Found:
    """One mismatch in a sentence, and its elements."""

    where: str
    sentence: str
    flips: tuple[tuple[str, str, str, str], ...]
    """Element, bits, what it should be, what it was."""
    more: str


@dataclass(frozen=True)
class Matrix:
    """What became of each change, in each dtype."""

    dtypes: tuple[str, ...]
    rows: tuple[tuple[str, *tuple[Sign, ...]], ...]


@dataclass(frozen=True)
class DeviceView:
    name: str
    verdict: Sign
    checks: tuple[CheckRow, ...]
    cases: tuple[tuple[str, tuple[tuple[str | Sign, ...], ...]], ...]
    """The cases of each check: name, verdict, repeats, worst error, note, time."""
    found: tuple[Found, ...]
    unlisted: int
    matrix: Matrix | None
    timeline: Timeline | None
    facts: tuple[Fact, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HardwareView(Head[HardwareReport]):
    injected: str
    devices: tuple[DeviceView, ...]
    between: CheckRow | None
    between_found: tuple[Found, ...]


def look(report: HardwareReport) -> HardwareView:
    """Everything a hardware check shows."""
    between = report.between
    return HardwareView(
        document=report,
        tone=TONES[report.verdict],
        headline=cut(report.reason, 600),
        injected=cut(report.injected, 200),
        about=(
            ("level", cut(report.level, 40)),
            ("took", seconds(report.seconds)),
            ("model", cut(report.model.get("label", NOTHING), 80)),
            ("devices", cut(", ".join(device.device for device in report.devices), 200)),
        ),
        devices=tuple(map(_device, report.devices)),
        between=_check(between) if between else None,
        between_found=tuple(map(_found, between.mismatches)) if between else (),
        notes=tuple(cut(note, 400) for note in report.notes),
    )


def _judged(verdict: str) -> Sign:
    return Sign(TONES[verdict], SYMBOLS[TONES[verdict]], verdict)


def _device(device: DeviceResult) -> DeviceView:
    invariance = device.check("invariance")
    return DeviceView(
        name=cut(device.device, 60),
        verdict=_judged(device.verdict),
        checks=tuple(map(_check, device.checks)),
        cases=tuple(
            (_name(check), tuple(map(_case, check.cases))) for check in device.checks if check.cases
        ),
        found=tuple(map(_found, device.mismatches)),
        unlisted=sum(check.unlisted for check in device.checks),
        matrix=to_matrix(invariance.cells) if invariance and invariance.cells else None,
        timeline=timeline(device),
        facts=(*_facts({**device.identity, **device.details}), *_sensed(device)),
        notes=tuple(cut(note, 400) for note in device.notes),
    )


def _facts(described: Mapping[str, str]) -> Iterator[Fact]:
    return ((cut(key, 60), cut(value, 200)) for key, value in described.items())


def _sensed(device: DeviceResult) -> Iterator[Fact]:
    """The range of everything that was sensed, and why clocks were held down."""
    for name in dict.fromkeys(name for reading in device.readings for name in reading.values):
        values = [r.values[name] for r in device.readings if name in r.values]
        low, high = number(min(values), 4), number(max(values), 4)
        yield cut(name, 60), low if low == high else f"{low} to {high}"
    held = Counter(reason for reading in device.readings for reason in reading.throttled)
    for reason, times in held.items():
        said = f"{cut(reason, 80)}, in {times} of {len(device.readings)} readings"
        yield "clocks held down", said


def _name(check: Check) -> str:
    return CHECK_NAMES.get(check.name, cut(check.name, 40))


def _check(check: Check) -> CheckRow:
    return _name(check), _judged(check.verdict), cut(check.sentence, 600), seconds(check.seconds)


def _case(case: Case) -> tuple[str | Sign, ...]:
    worst = number(case.worst) if case.worst is not None else ""
    took = seconds(case.seconds) if case.seconds else ""
    note = cut(case.note, 300)
    return cut(case.name, 120), _judged(case.verdict), str(case.repeats), worst, note, took


def _found(mismatch: Mismatch) -> Found:
    said = []
    if mismatch.total:
        said.append(f"{mismatch.differing} of {mismatch.total} elements differ")
    said.append(f"repeat {mismatch.repeat}, {mismatch.at:.1f} s after the start")
    if mismatch.core is not None:
        said.append(f"on core {mismatch.core}")
    if mismatch.note:
        said.append(cut(mismatch.note, 200))
    flips = []
    for flip in mismatch.flips:
        right, wrong = apart(flip.expected, flip.found)
        flips.append(
            (
                f"{flip.element} [{', '.join(map(str, flip.index))}]",
                ", ".join(map(str, flip.bits)),
                f"{right} (0x{cut(flip.expected_bits, 16)})",
                f"{wrong} (0x{cut(flip.found_bits, 16)})",
            )
        )
    left = mismatch.differing - len(flips)
    more = f"and {left} more" if flips and left > 0 else ""
    where = f"{cut(mismatch.case, 120)}: {cut(mismatch.state, 80)}"
    return Found(where, "; ".join(said), tuple(flips), more)


def to_matrix(cells: Sequence[Cell]) -> Matrix:
    """The outcomes of changes that must not matter, as a matrix."""
    dtypes = dict.fromkeys(cell.dtype for cell in cells)
    known = {(cell.change, cell.dtype): cell for cell in cells}
    return Matrix(
        tuple(cut(dtype, 20) for dtype in dtypes),
        tuple(
            (cut(change, 80), *(_field(known.get((change, dtype))) for dtype in dtypes))
            for change in dict.fromkeys(cell.change for cell in cells)
        ),
    )


def _field(cell: Cell | None) -> Sign:
    if cell is None:
        return Sign("", NOTHING, "not run")
    detail = cut(cell.note, 160)
    if not detail and cell.ratio and cell.worst_state:
        detail = f"{number(cell.ratio, 2)} of the allowance at {cut(cell.worst_state, 60)}"
    return Sign(OUTCOMES[cell.outcome], OUTCOME_SYMBOLS[cell.outcome], cell.outcome, detail)


def _parts(view: HardwareView, _: Console) -> Iterator[RenderableType]:
    if view.injected:
        yield Text(f"!! {INJECTED}: {view.injected}", style="bold red")
    yield console.about(view.about)
    for device in view.devices:
        model = dict(device.facts).get("model", "")
        yield Text(f"\n{device.name}  {model}", style="bold")
        yield _check_table(device.checks)
        for found in device.found[:MOST_FOUND]:
            yield Text(f"✗ {found.where}: {found.sentence}")
            yield from (Text(f"    {_flip(flip)}") for flip in found.flips[:3])
        left = len(device.found) - MOST_FOUND + device.unlisted
        if left > 0:
            yield Text(f"  and {left} more mismatches")
        if matrix := device.matrix:
            titles = ("change", *matrix.dtypes)
            yield console.table(titles, matrix.rows, " ".ljust(len(titles), "l"))
        yield from console.noted(device.notes)
    if view.between is not None:
        yield _check_table((view.between,))
    yield from console.noted(view.notes)


def _check_table(rows: Sequence[CheckRow]) -> RenderableType:
    return console.table(("check", "verdict", "", "took"), rows, "ll r")


def _flip(flip: tuple[str, str, str, str]) -> str:
    element, bits, right, wrong = flip
    return f"element {element}, bit(s) {bits}: {right} became {wrong}"


def _sections(view: HardwareView) -> Iterator[Markdown]:
    yield Markdown("### {} driftwalk hwcheck: {}").format(view.symbol, view.document.verdict)
    if view.injected:
        yield Markdown("> **{}**: {}").format(INJECTED, marked.code(view.injected))
    yield Markdown("**{}**").format(marked.escaped(view.headline, 1500))
    yield marked.facts(view.about)
    for device in view.devices:
        model = dict(device.facts).get("model", "")
        yield Markdown("#### {} {}").format(marked.code(device.name), model)
        yield marked.table(("check", "verdict", "", "took"), device.checks, "   r")
        for found in device.found[:MOST_FOUND]:
            flips = "".join(f": {_flip(flip)}" for flip in found.flips[:1])
            yield Markdown("- {}{} ({})").format(marked.code(found.where), flips, found.sentence)
        if device.matrix is not None:
            yield invariance_table(device.matrix)
    if view.between is not None:
        yield Markdown("Between devices: {}").format(view.between[2])
    yield from marked.foot(view)


def invariance_table(matrix: Matrix) -> Markdown:
    """The matrix as Markdown."""
    rows = [
        (name, *(f"{sign} ({sign.detail})" if sign.detail else sign for sign in signs))
        for name, *signs in matrix.rows
    ]
    return marked.table(("change", *matrix.dtypes), rows)


render = console.text_renderer(look, _parts)
render_markdown = marked.markdown_renderer(look, _sections)
render_page = page_renderer("hardware.html.j2", look)
