"""A hardware check on a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from driftwalk.tasks.hardware.result import HardwareReport

from ..console import plain_console, printed
from ..door import renderer
from ..marked import Markdown, code, escaped, foot, table, whole
from .view import DeviceView, Found, HardwareView, Line, Matrix, look

_STYLES = {"pass": "green", "drift": "red", "unverified": "yellow", "": "dim"}
MOST_FOUND = 6
INJECTED = "A FAULT WAS INJECTED ON PURPOSE; this is a test of the checker, not of the hardware"


@renderer
def render(report: HardwareReport, width: int | None = None, color: bool = False) -> str:
    """The check as text; ANSI colours only where asked for."""
    view = look(report)
    last = Text(f"\n{view.symbol} {view.headline}", style=f"bold {_STYLES[view.tone]}")
    return printed(plain_console(width, color), _parts(view), last)


def _parts(view: HardwareView) -> Iterator[RenderableType]:
    if view.injected:
        yield Text(f"!! {INJECTED}: {view.injected}", style="bold red")
    for label, value in view.about:
        yield Text(f"{label:<10} {value}")
    for device in view.devices:
        model = dict(device.facts).get("model", "")
        yield Text(f"\n{device.name}  {model}", style="bold")
        yield _table(device.checks)
        for found in device.found[:MOST_FOUND]:
            yield from map(Text, _mismatch(found))
        left = len(device.found) - MOST_FOUND + device.unlisted
        if left > 0:
            yield Text(f"  and {left} more mismatches")
        if device.matrix is not None:
            yield _matrix(device.matrix)
        yield from (Text(f"Note: {note}") for note in device.notes)
    if view.between is not None:
        yield _table((view.between,))
    yield from (Text(f"Note: {note}") for note in view.notes)


def _table(lines: tuple[Line, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("", overflow="fold")
    table.add_column("took", justify="right", no_wrap=True)
    for line in lines:
        verdict = Text(f"{line.symbol} {line.verdict}", style=_STYLES[line.tone])
        table.add_row(Text(line.name), verdict, Text(line.sentence), Text(line.seconds))
    return table


def _mismatch(found: Found) -> list[str]:
    lines = [f"✗ {found.where}: {found.sentence}"]
    lines += [
        f"    element {element}, bit(s) {bits}: {right} became {wrong}"
        for element, bits, right, wrong in found.flips[:3]
    ]
    return lines


def _matrix(matrix: Matrix) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("change", overflow="fold")
    for dtype in matrix.dtypes:
        table.add_column(dtype, no_wrap=True)
    for name, fields in matrix.rows:
        cells = [Text(f"{f.symbol} {f.outcome}", style=_STYLES[f.tone]) for f in fields]
        table.add_row(Text(name), *cells)
    return table


@renderer
def render_markdown(report: HardwareReport) -> str:
    """The check as a comment or a page of notes."""
    return whole(_sections(look(report)))


def _sections(view: HardwareView) -> Iterator[Markdown]:
    yield Markdown("### {} driftwalk hwcheck: {}").format(view.symbol, view.verdict)
    if view.injected:
        yield Markdown("> **{}**: {}").format(INJECTED, code(view.injected))
    yield Markdown("**{}**").format(escaped(view.headline, 1500))
    about = [(label, code(value)) for label, value in view.about]
    yield Markdown(" · ").join(Markdown("{} {}").format(*pair) for pair in about)
    for device in view.devices:
        yield from _markdown_device(device)
    if view.between is not None:
        yield Markdown("Between devices: {}").format(view.between.sentence)
    yield from foot(view)


def _markdown_device(device: DeviceView) -> Iterator[Markdown]:
    model = dict(device.facts).get("model", "")
    yield Markdown("#### {} {}").format(code(device.name), model)
    rows = [(c.name, f"{c.symbol} {c.verdict}", c.sentence, c.seconds) for c in device.checks]
    yield table(("check", "verdict", "", "took"), rows, "   r")
    for found in device.found[:MOST_FOUND]:
        told = "".join(f": {line.strip()}" for line in _mismatch(found)[1:2])
        yield Markdown("- {}{} ({})").format(code(found.where), told, found.sentence)
    if device.matrix is not None:
        yield invariance_table(device.matrix)


def invariance_table(matrix: Matrix) -> Markdown:
    """The matrix as Markdown."""
    rows = [
        (name, *(f"{f.symbol} {f.outcome}{f' ({f.detail})' if f.detail else ''}" for f in fields))
        for name, fields in matrix.rows
    ]
    return table(("change", *matrix.dtypes), rows)
