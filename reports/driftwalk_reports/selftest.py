"""A self-test: what is shown of it, then how: on a terminal, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from driftwalk.tasks.selftest.result import SelfTest, TrustedTrial

from .console import plain_console, printed
from .door import renderer
from .numbers import number, seconds
from .page import fill
from .view import model_name


@dataclass(frozen=True)
class Grid:
    """A table: a name in the first column, numbers in the others."""

    title: str
    hint: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class SelfTestView:
    headlines: tuple[str, ...]
    """About what the gate trusts, where that was tried; then about the candidate."""
    tone: str
    symbol: str
    about: tuple[tuple[str, str], ...]
    grids: tuple[Grid, ...]
    remarks: tuple[str, ...]
    notes: tuple[str, ...]
    command: str
    created: str
    tool: str
    environment: tuple[tuple[str, str], ...]


def look(result: SelfTest) -> SelfTestView:
    """Everything a self-test shows."""
    tones = {0: ("pass", "✓"), 1: ("drift", "✗"), 3: ("unverified", "?")}
    tone, symbol = tones[result.exit_code]
    told = (trusted_headline(result), _candidate_headline(result))
    return SelfTestView(
        headlines=tuple(line for line in told if line),
        tone=tone,
        symbol=symbol,
        about=(
            ("model", model_name(result.model)),
            ("candidate", result.candidate.spec),
            ("seed", str(result.seed)),
            ("took", seconds(result.seconds)),
        ),
        grids=tuple(_grids(result)),
        remarks=tuple(_remarks(result)),
        notes=result.notes,
        command=result.command,
        created=result.created,
        tool=f"{result.tool.name} {result.tool.version}",
        environment=tuple(result.environment.items()),
    )


def trusted_headline(result: SelfTest) -> str:
    """How the gate fared with faults in what it trusts; empty where none was seeded."""
    rows = result.trusted_kinds
    told, caught, unverified = (
        sum(getattr(row, name) for row in rows) for name in ("told", "caught", "unverified")
    )
    if not told:
        return ""
    mark = "✗" if result.trusted_failures else "✓"
    return (
        f"{mark} {caught + unverified} of {told} faults in what the gate trusts did not get "
        f"through: {caught} caught, {unverified} unverified"
    )


def _candidate_headline(result: SelfTest) -> str:
    counted, owed = result.counted, result.owed
    if not counted:
        return "? no fault with an effect could be injected: nothing is known about this gate"
    placed = sum(trial.outcome == "placed" for trial in owed)
    caught = sum(trial.caught for trial in counted)
    mark = "✗" if result.failures else "✓"
    return (
        f"{mark} {placed} of {len(owed)} faults above the noise were caught in the right layer; "
        f"of all {len(counted)} with an effect {caught} were caught, the rest hides in the noise "
        f"of {result.candidate.dtype} arithmetic ({result.seconds:.1f} s)"
    )


def _grids(result: SelfTest) -> Iterator[Grid]:
    kinds = [
        (row.kind, row.injected, row.caught, row.placed, row.hidden, row.missed, row.no_effect)
        for row in result.kinds
    ]
    yield _grid(
        "Faults by kind",
        "Each fault was put into a copy of the candidate's model.",
        ("fault", "injected", "caught", "placed right", "in the noise", "missed", "no effect"),
        kinds,
    )
    layers = [
        (row.point, row.faults, *map(_effect, (row.smallest_caught, row.largest_missed, row.limit)))
        for row in result.layers
    ]
    yield _grid(
        "What the gate sees at each layer",
        "Effects relative to the state (L2). Other norms see smaller ones that are concentrated.",
        ("layer", "faults", "smallest caught", "largest not caught", "noise, L2"),
        layers,
    )
    trusted = [(r.kind, r.told, r.caught, r.unverified, r.failed) for r in result.trusted_kinds]
    if trusted:
        yield _grid(
            "Faults in what the gate trusts",
            "A lie must be caught, or the run be unverified.",
            ("fault in what is trusted", "told", "caught", "unverified", "missed"),
            trusted,
        )


def _grid(
    title: str, hint: str, columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]
) -> Grid:
    return Grid(title, hint, columns, tuple(tuple(map(str, row)) for row in rows))


def _effect(size: float | None) -> str:
    return "" if size is None else f"{size:.1e}"


def _remarks(result: SelfTest) -> Iterator[str]:
    """What was missed, and what could not be tried."""
    for trial in result.failures:
        found = f"blamed on {trial.root_cause}" if trial.caught else "not caught"
        size = f"{number(trial.excess)} times what is allowed"
        yield f"✗ {trial.right}: {trial.description}: {size}, {found}"
    for lie in result.trusted_failures:
        yield f"✗ {lie.kind}: {lie.description}: {_believed(lie)}"
    not_run = [(t.description, t.note) for t in result.trials if t.outcome == "not_built"]
    not_run += [(t.description, t.note) for t in result.trusted if t.answer == "not_built"]
    for description, note in not_run:
        yield f"- could not run: {description}: {note}"
    for kind, why in result.not_applicable.items():
        yield f"- not applicable: {kind}: {why}"


def _believed(lie: TrustedTrial) -> str:
    """How a lie got through."""
    if lie.answer == "missed":
        return "it passed"
    where = lie.root_cause or lie.first_divergence or "nowhere"
    if lie.answer == "misplaced":
        return f"blamed on {where}, expected {', '.join(lie.points)}"
    right = {"nobody": "no side is wrong", "both": "both sides are wrong"}
    expected = right.get(lie.wrong, f"only the {lie.wrong} is wrong")
    return f"at fault: {(lie.at_fault or 'unknown')} ({where}), but {expected}"


@renderer
def render(result: SelfTest, color: bool = False, width: int = 100) -> str:
    """The result as text; ANSI colours only where asked for."""
    view = look(result)
    return printed(plain_console(width, color), _parts(view), Text("\n".join(view.headlines)))


def _parts(view: SelfTestView) -> Iterator[RenderableType]:
    about = dict(view.about)
    yield Text(f"{about['model']} on {about['candidate']}, seed {about['seed']}")
    yield from map(_table, view.grids)
    yield from map(Text, view.remarks)


def _table(grid: Grid) -> Table:
    table = Table(box=box.SIMPLE)
    for place, name in enumerate(grid.columns):
        table.add_column(name, justify="right" if place else "left", no_wrap=True)
    for row in grid.rows:
        table.add_row(*map(Text, row))
    return table


@renderer
def render_page(result: SelfTest) -> str:
    """The whole page as text; the sentence about what failed stands on top."""
    view = look(result)
    said = sorted(view.headlines, key=lambda line: line.startswith("✗"))[::-1]
    return fill("selftest.html.j2", view=view, top=said[0], rest=said[1:])
