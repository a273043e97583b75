"""A self-test on a terminal: by kind, by layer, what was missed, and the sentences last."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from driftwalk.selftest.result import SelfTest, TrustedTrial

from .console import plain_console, printed
from .numbers import clean, number


def render(result: SelfTest, color: bool = False, width: int = 100) -> str:
    """The result as text; ANSI colours only where asked for."""
    return printed(plain_console(width, color), _parts(result), Text(headline(result)))


def headline(result: SelfTest) -> str:
    """The one sentence that matters; a second one about what the gate trusts."""
    trusted = trusted_headline(result)
    return "\n".join(line for line in (trusted, _candidate_headline(result)) if line)


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
        f"of {clean(result.candidate.dtype)} arithmetic ({result.seconds:.1f} s)"
    )


def _parts(result: SelfTest) -> Iterator[RenderableType]:
    model, candidate = clean(result.model["label"]), clean(result.candidate.spec)
    yield Text(f"{model} on {candidate}, seed {result.seed}")
    yield _kinds(result)
    yield _layers(result)
    if result.trusted_kinds:
        yield _trusted(result)
    for trial in result.failures:
        found = f"blamed on {clean(trial.root_cause)}" if trial.caught else "not caught"
        size = f"{number(trial.excess)} times what is allowed"
        yield Text(f"✗ {clean(trial.right)}: {clean(trial.description)}: {size}, {found}")
    for lie in result.trusted_failures:
        yield Text(f"✗ {clean(lie.kind)}: {clean(lie.description)}: {_believed(lie)}")
    not_run = [(t.description, t.note) for t in result.trials if t.outcome == "not_built"]
    not_run += [(t.description, t.note) for t in result.trusted if t.answer == "not_built"]
    for description, note in not_run:
        yield Text(f"- could not run: {clean(description)}: {clean(note)}")
    for kind, why in result.not_applicable.items():
        yield Text(f"- not applicable: {clean(kind)}: {clean(why)}")


def _kinds(result: SelfTest) -> Table:
    columns = ("fault", "injected", "caught", "placed right", "in the noise", "missed", "no effect")
    table = _table(columns)
    for row in result.kinds:
        numbers = (row.injected, row.caught, row.placed, row.hidden, row.missed, row.no_effect)
        table.add_row(clean(row.kind), *map(str, numbers))
    return table


def _layers(result: SelfTest) -> Table:
    table = _table(("layer", "faults", "smallest caught", "largest not caught", "noise, L2"))
    for row in result.layers:
        numbers = (row.smallest_caught, row.largest_missed, row.limit)
        shown = ("" if n is None else f"{n:.1e}" for n in numbers)
        table.add_row(clean(row.point), str(row.faults), *shown)
    return table


def _trusted(result: SelfTest) -> Table:
    table = _table(("fault in what is trusted", "told", "caught", "unverified", "missed"))
    for row in result.trusted_kinds:
        numbers = (row.told, row.caught, row.unverified, row.failed)
        table.add_row(clean(row.kind), *map(str, numbers))
    return table


def _believed(lie: TrustedTrial) -> str:
    """How a lie got through."""
    if lie.answer == "missed":
        return "it passed"
    where = clean(lie.root_cause or lie.first_divergence or "nowhere")
    if lie.answer == "misplaced":
        return f"blamed on {where}, expected {', '.join(map(clean, lie.points))}"
    right = {"nobody": "no side is wrong", "both": "both sides are wrong"}
    expected = right.get(lie.wrong, f"only the {lie.wrong} is wrong")
    return f"at fault: {clean(lie.at_fault or 'unknown')} ({where}), but {expected}"


def _table(columns: tuple[str, ...]) -> Table:
    table = Table(box=box.SIMPLE)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left", no_wrap=True)
    return table
