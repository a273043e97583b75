"""A bisection: what is shown of it, then how: on a terminal, as Markdown, as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.text import Text

from driftwalk.tasks.bisect.result import Bisection, Question
from driftwalk.tasks.bisect.search import Cause

from . import console, marked
from .layout import Cell, Fact, Head, Sign
from .marked import Markdown
from .numbers import NOTHING, count, cut, number
from .page import page_renderer

MOST_ROWS = 60
MOST_NAMES = 6
TITLES = ("switch", "what it is", "")
SIDES = "l  "
ASKED_TITLES = ("off", "runs", "error", "of allowance", "")
ASKED_SIDES = " rrrl"
PACKAGE_TITLES = ("package", "good", "bad")
_TONES = {"nothing": "pass", "unverified": "unverified", "reference": "unverified"}


@dataclass(frozen=True, kw_only=True)
class BisectView(Head[Bisection]):
    switches: tuple[tuple[Cell, ...], ...]
    asked: tuple[tuple[Cell, ...], ...]
    packages: tuple[tuple[Cell, ...], ...]
    spec: str
    """The candidate with what was found turned off."""
    titles: tuple[str, ...] = TITLES
    sides: str = SIDES
    asked_titles: tuple[str, ...] = ASKED_TITLES
    asked_sides: str = ASKED_SIDES
    package_titles: tuple[str, ...] = PACKAGE_TITLES


def look(result: Bisection) -> BisectView:
    """Everything that is shown of a bisection."""
    return BisectView(
        document=result,
        tone=_TONES.get(result.outcome, "drift"),
        headline=_headline(result),
        sentences=tuple(_sentences(result)),
        about=tuple(_about(result)),
        switches=tuple(_switches(result)),
        asked=tuple(_asked(result)),
        packages=tuple(_packages(result)),
        spec=cut(result.spec, 1000),
        notes=tuple(cut(note, 400) for note in result.notes),
    )


def _headline(result: Bisection) -> str:
    where = f" at {cut(result.point, 80)}" if result.point else ""
    reason = cut(result.reason, 400)
    if result.outcome == "nothing":
        return f"nothing to bisect: {reason}"
    if result.environments and result.outcome in ("found", "none"):
        comes = "comes with" if result.outcome == "found" else "does not come with"
        return f"the drift{where} {comes} the bad environment: {reason}"
    if result.outcome == "found":
        return f"{_named(result)} the drift{where}{_became(result)}"
    if result.outcome == "none":
        return f"none of {count(len(result.searched))} switches causes the drift{where}: {reason}"
    if result.outcome == "stopped":
        left = f"; it goes away without {_list(result.switches)}" if result.switches else ""
        return f"stopped before it was found what causes the drift{where}: {reason}{left}"
    return f"nothing was bisected: {reason}"


def _named(result: Bisection) -> str:
    """Who causes it, as the beginning of a sentence."""
    causes = result.causes
    if len(causes) > 1:
        ways = " and ".join(map(_in_words, causes))
        each = all(cause.alone for cause in causes)
        return f"{ways} each cause" if each else f"{ways} cause"
    if causes and causes[0].together:
        return f"{_list((causes[0].switch, *causes[0].together))} only together cause"
    return f"{_list(result.switches)} {'cause' if len(result.switches) > 1 else 'causes'}"


def _in_words(cause: Cause) -> str:
    own = cut(cause.switch, 80)
    return f"{own} (with {_list(cause.together)})" if cause.together else own


def _became(result: Bisection) -> str:
    before, after = result.before, result.after
    if before is None or after is None:
        return ""
    return (
        f": {number(before.used)} times what is allowed with it, {number(after.used)} without "
        f"(error {number(before.error)}, {number(after.error)})"
    )


def _list(names: Sequence[str]) -> str:
    shown = [cut(name, 80) for name in names[:MOST_NAMES]]
    if len(names) > MOST_NAMES:
        return f"{', '.join(shown)} and {count(len(names) - MOST_NAMES)} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _sentences(result: Bisection) -> Iterator[str]:
    if result.spec:
        yield f"Without it: {cut(result.spec, 1000)}"
    for cause in result.causes:
        name = cut(cause.switch, 80)
        if cause.alone:
            yield f"With all other switches off, {name} alone still causes it."
        elif cause.together:
            yield f"{name} does so only while {_list(cause.together)} is on, too."
        elif cause.alone is False:
            yield f"With all other switches off, {name} does not cause it; it takes others as well."
    if result.elsewhere:
        yield (
            f"With that off, the candidate still drifts at {_list(result.elsewhere)}: another "
            "cause. Bisect that spec again."
        )
    if not result.steady:
        yield (
            f"Runs disagree: {number(100 * result.rate)} % of those with all switches on drift. "
            f"Each question was repeated so often that the answer is right with "
            f"{number(100 * result.confidence)} %."
        )


def _about(result: Bisection) -> Iterator[Fact]:
    yield "candidate", cut(result.candidate.spec, 200)
    yield "reference", cut(result.reference.spec, 200)
    if result.point:
        yield "judged at", cut(result.point, 200)
    if result.searched:
        yield "switches", f"{count(len(result.searched))} that could be turned off"
        yield "measured", f"{count(result.runs)} runs beyond the verification"


def _switches(result: Bisection) -> Iterator[tuple[Cell, ...]]:
    named = {cause.switch: cause for cause in result.causes}
    partners = {name for cause in result.causes for name in cause.together}
    for switch in result.searched:
        named_parts = (part for part in switch.parts if part in {*named, *partners})
        for name in (switch.name, *named_parts):
            sign: Cell = ""
            if name in named or name in result.switches:
                sign = Sign("drift", "✗", "causes it")
            elif name in partners:
                sign = Sign("drift", "✗", "only together")
            what = switch.what if name == switch.name else f"part of {switch.name}"
            yield cut(name, 80), cut(what, 120), sign


def _asked(result: Bisection) -> Iterator[tuple[Cell, ...]]:
    for question in result.questions:
        yield _off(question), count(len(question.runs)), *_numbers(question)


def _packages(result: Bisection) -> Iterator[tuple[Cell, ...]]:
    """Those that differ; what the candidate says of itself first."""
    own = result.candidate.versions
    for name, *versions in sorted(result.packages, key=lambda row: (row[0] not in own, row[0])):
        yield cut(name, 80), *(cut(version, 60) or NOTHING for version in versions)


def _off(question: Question) -> str:
    return _list(question.off) if question.off else "nothing"


def _numbers(question: Question) -> tuple[Cell, ...]:
    """The worst run of a question, and in how many it drifted."""
    worst, bad = question.worst, sum(run.bad for run in question.runs)
    if worst.failed:
        return NOTHING, NOTHING, Sign("unverified", "?", "failed", cut(worst.failed, 200))
    some = f" in {count(bad)} of {count(len(question.runs))}" if bad < len(question.runs) else ""
    sign = Sign("drift", "✗", f"drift{some}") if bad else Sign("pass", "✓", "ok")
    return number(worst.error), number(worst.used), sign


def _parts(view: BisectView, _: Console) -> Iterator[RenderableType]:
    yield console.about(view.about)
    if view.switches:
        yield console.table(TITLES, view.switches[:MOST_ROWS], SIDES)
    if view.asked:
        yield console.table(ASKED_TITLES, view.asked[:MOST_ROWS], ASKED_SIDES)
    if view.packages:
        yield console.table(PACKAGE_TITLES, view.packages[:MOST_ROWS], "lll")
    for text in view.sentences:
        yield Text(text)
    yield from console.noted(view.notes)


def _sections(view: BisectView) -> Iterator[Markdown]:
    yield Markdown("### {} driftwalk bisect").format(view.symbol)
    yield Markdown("**{}**").format(marked.escaped(view.headline, 1500))
    yield marked.facts(view.about)
    for text in view.sentences:
        yield marked.paragraph(text)
    if view.switches:
        yield marked.table(TITLES, view.switches[:MOST_ROWS])
    if view.asked:
        yield marked.table(ASKED_TITLES, view.asked[:MOST_ROWS], ASKED_SIDES)
    if view.packages:
        yield marked.table(PACKAGE_TITLES, view.packages[:MOST_ROWS])
    yield from marked.foot(view)


render = console.text_renderer(look, _parts)
render_markdown = marked.markdown_renderer(look, _sections)
render_page = page_renderer("bisect.html.j2", look)
