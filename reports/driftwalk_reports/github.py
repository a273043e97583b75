"""What a GitHub runner shows of reports: annotations, a step summary; and text it cannot obey."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from driftwalk.result import Report
from driftwalk.tasks.generation.result import Generation

from . import generation, markdown
from .door import renderer
from .numbers import cut
from .view import look

MOST_ANNOTATIONS = 10
"""GitHub shows this many of each level for a step, and drops the rest without a word."""
MOST_BYTES = 1024 * 1024
"""A step's summary of more than this is dropped whole."""

LEVELS = {"drift": "error", "unverified": "warning", "expected": "notice"}
_WORDS = {"drift": "drifts", "unverified": "could not be verified", "expected": "drifts as known"}
_RULE = "\n---\n\n"

# Commands: `::name key=value::text` at the start of a line, and the older `##[name]` anywhere.
_COMMAND = re.compile(r"(?:^|(?<=\r))[\s\u200b]*:(?=:)|#(?=#\[)", re.MULTILINE)


Judged = Report | Generation
"""Results with a verdict that a build goes by."""


@renderer
def annotate(reports: Sequence[Judged]) -> str:
    """One workflow command for each report that is not a pass, drift before the unverified."""
    lines = [line for verdict in LEVELS for line in _of_verdict(verdict, reports)]
    return "".join(f"{line}\n" for line in lines)


def _of_verdict(verdict: str, reports: Sequence[Judged]) -> Iterator[str]:
    found = [r for r in reports if ("expected" if r.as_expected else r.verdict) == verdict]
    fits = len(found) <= MOST_ANNOTATIONS
    for report in found if fits else found[: MOST_ANNOTATIONS - 1]:
        view = look(report) if isinstance(report, Report) else generation.look(report)
        candidate = cut(report.candidate.spec, 80)
        title = f"driftwalk: {cut(view.model, 100)} on {candidate} {_WORDS[verdict]}"
        yield command(LEVELS[verdict], title, view.headline)
    if not fits:
        rest = found[MOST_ANNOTATIONS - 1 :]
        who = ", ".join(cut(report.candidate.spec, 80) for report in rest[:20])
        title = f"driftwalk: {len(rest)} more: {_WORDS[verdict]}"
        yield command(LEVELS[verdict], title, who + (" and others" if len(rest) > 20 else ""))


def _marked(report: Judged) -> str:
    if isinstance(report, Report):
        return markdown.render(report)
    return generation.render_markdown(report)


def command(level: str, title: str, message: str) -> str:
    """A workflow command, with the runner's own escapes: nothing in it ends it or adds to it."""
    named = _data(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={named}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def harmless(text: str) -> str:
    """The same text to a reader; to a runner no line of it is a command."""
    return _COMMAND.sub(lambda found: f"{found.group()}\u2060", text)


@renderer
def step_summary(reports: Sequence[Judged], already: int = 0) -> str:
    """The Markdown of all reports, those that are no pass first; whole reports, as many as fit.

    `already` is how many bytes the summary holds: the limit is on the whole of it.
    """
    room = MOST_BYTES - already - 200  # for the note, and to stay below
    kept: list[str] = []
    for report in sorted(reports, key=lambda item: item.ok):
        text = _marked(report)
        room -= len(text.encode(errors="backslashreplace")) + len(_RULE)
        if room < 0:
            break
        kept.append(text)
    left = len(reports) - len(kept)
    if left and already < MOST_BYTES - 200:
        kept.append(f"*{left} of {len(reports)} reports found no room in this summary.*\n")
    return ("\n" if already and kept else "") + _RULE.join(kept)
