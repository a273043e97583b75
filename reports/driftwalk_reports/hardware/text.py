"""A hardware check on a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from driftwalk.hardware.result import HardwareReport

from ..console import plain_console, printed
from ..markdown import code, escaped
from .view import DeviceView, Found, HardwareView, Line, Matrix, look

_STYLES = {"pass": "green", "drift": "red", "unverified": "yellow", "": "dim"}
MOST_FOUND = 6
INJECTED = "A FAULT WAS INJECTED ON PURPOSE; this is a test of the checker, not of the hardware"


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


def render_markdown(report: HardwareReport) -> str:
    """The check as a comment or a page of notes."""
    view = look(report)
    parts = [f"### {view.symbol} driftwalk hwcheck: {escaped(view.verdict)}"]
    if view.injected:
        parts.append(f"> **{INJECTED}**: {code(view.injected)}")
    parts.append(f"**{escaped(view.headline, 1500)}**")
    parts.append(" · ".join(f"{label} {code(value)}" for label, value in view.about))
    for device in view.devices:
        parts += _markdown_device(device)
    if view.between is not None:
        parts.append(f"Between devices: {escaped(view.between.sentence)}")
    parts += [f"> {escaped(note)}" for note in view.notes]
    if view.command:
        parts.append(f"Reproduce: {code(view.command)}")
    parts.append(f"<sub>{escaped(view.tool)}, {escaped(view.created)}</sub>")
    return "\n\n".join(parts) + "\n"


def _markdown_device(device: DeviceView) -> Iterator[str]:
    model = dict(device.facts).get("model", "")
    yield f"#### {code(device.name)} {escaped(model)}"
    rows = [
        f"| {escaped(line.name)} | {line.symbol} {line.verdict} | {escaped(line.sentence)} | "
        f"{line.seconds} |"
        for line in device.checks
    ]
    yield "\n".join(["| check | verdict | | took |", "|---|---|---|--:|", *rows])
    for found in device.found[:MOST_FOUND]:
        told = "".join(f": {line.strip()}" for line in _mismatch(found)[1:2])
        yield f"- {code(found.where)}{escaped(told)} ({escaped(found.sentence)})"
    if device.matrix is not None:
        yield invariance_table(device.matrix)


def invariance_table(matrix: Matrix) -> str:
    """The matrix as Markdown."""
    dtypes = " | ".join(escaped(dtype) for dtype in matrix.dtypes)
    lines = [f"| change | {dtypes} |", f"|---|{'---|' * len(matrix.dtypes)}"]
    for name, fields in matrix.rows:
        cells = [
            f"{f.symbol} {f.outcome}" + (f" ({escaped(f.detail)})" if f.detail else "")
            for f in fields
        ]
        lines.append(f"| {escaped(name)} | {' | '.join(cells)} |")
    return "\n".join(lines)
