"""A self-test: what is shown of it, then how: on a terminal, and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.text import Text

from driftwalk.tasks.selftest.result import SelfTest, TrustedTrial

from .console import table, text_renderer
from .layout import Head, model_name
from .numbers import number, seconds
from .page import page_renderer

_TONES = {0: "pass", 1: "drift", 3: "unverified"}


@dataclass(frozen=True)
class Grid:
    """A table: a name in the first column, numbers in the others."""

    title: str
    hint: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    @property
    def sides(self) -> str:
        return "l" + "r" * (len(self.columns) - 1)


@dataclass(frozen=True, kw_only=True)
class SelfTestView(Head[SelfTest]):
    grids: tuple[Grid, ...]
    remarks: tuple[str, ...]


def look(result: SelfTest) -> SelfTestView:
    """Everything a self-test shows; the sentence about what failed is the headline."""
    said = [_candidate_headline(result), _trusted_headline(result)]
    first, other = sorted(said, key=lambda line: not line.startswith("✗"))
    return SelfTestView(
        document=result,
        tone=_TONES[result.exit_code],
        headline=first[2:],
        sentences=(other,) if other else (),
        about=(
            ("model", model_name(result.model)),
            ("candidate", result.candidate.spec),
            ("seed", str(result.seed)),
            ("took", seconds(result.seconds)),
        ),
        grids=tuple(_grids(result)),
        remarks=tuple(_remarks(result)),
        notes=result.notes,
    )


def _trusted_headline(result: SelfTest) -> str:
    """How the gate fared with faults in what it trusts; empty where none was seeded."""
    found = result.summary.trusted
    if not found.told:
        return ""
    return (
        f"{'✗' if result.trusted_failures else '✓'} {found.caught + found.unverified} of "
        f"{found.told} faults in what the gate trusts did not get through: {found.caught} caught, "
        f"{found.unverified} unverified"
    )


def _candidate_headline(result: SelfTest) -> str:
    found = result.summary
    if not found.injected:
        return "? no fault with an effect could be injected: nothing is known about this gate"
    return (
        f"{'✗' if result.failures else '✓'} {found.above_noise_placed} of {found.above_noise} "
        f"faults above the noise were caught in the right layer; of all {found.injected} with an "
        f"effect {found.caught} were caught, the rest hides in the noise of "
        f"{result.candidate.dtype} arithmetic ({result.seconds:.1f} s)"
    )


def _grids(result: SelfTest) -> Iterator[Grid]:
    yield Grid(
        "Faults by kind",
        "Each fault was put into a copy of the candidate's model.",
        ("fault", "injected", "caught", "placed right", "in the noise", "missed", "no effect"),
        tuple(
            (row.kind, row.injected, row.caught, row.placed, row.hidden, row.missed, row.no_effect)
            for row in result.kinds
        ),
    )
    yield Grid(
        "What the gate sees at each layer",
        "Effects relative to the state (L2). Other norms see smaller ones that are concentrated.",
        ("layer", "faults", "smallest caught", "largest not caught", "noise, L2"),
        tuple(
            (row.point, row.faults, *("" if size is None else f"{size:.1e}" for size in sizes))
            for row in result.layers
            for sizes in [(row.smallest_caught, row.largest_missed, row.limit)]
        ),
    )
    if result.trusted_kinds:
        yield Grid(
            "Faults in what the gate trusts",
            "A lie must be caught, or the run be unverified.",
            ("fault in what is trusted", "told", "caught", "unverified", "missed"),
            tuple(
                (row.kind, row.told, row.caught, row.unverified, row.failed)
                for row in result.trusted_kinds
            ),
        )


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


def _parts(view: SelfTestView, _: Console) -> Iterator[RenderableType]:
    about = dict(view.about)
    yield Text(f"{about['model']} on {about['candidate']}, seed {about['seed']}")
    for grid in view.grids:
        yield table(grid.columns, (map(str, row) for row in grid.rows), grid.sides)
    yield from map(Text, (*view.remarks, *view.sentences))


render = text_renderer(look, _parts)
render_page = page_renderer("selftest.html.j2", look)
