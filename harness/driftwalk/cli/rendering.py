"""From reports to what a user gets: text, files, what GitHub shows; and the command `report`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..registry import REPORT_FORMATS
from .console import guarded, on_github, say, show, show_json, tell_github
from .studies import render_studies

if TYPE_CHECKING:
    from ..result import Report


@guarded
def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT",
            help="result.json files, folders that hold them, or what `verify --json` printed.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where to write.")],
    formats: Annotated[
        str, typer.Option("--format", metavar="LIST", help="Which files, with commas between.")
    ] = ",".join(REPORT_FORMATS),
) -> None:
    """Render stored results again, anywhere: it needs no backend, no torch and no model."""
    from ..publish import known_formats
    from ..stored import load_results

    chosen = known_formats([name.strip() for name in formats.split(",") if name.strip()])
    others = render_studies(results, output)
    if others:
        _save(load_results(others), output, chosen)


def finish(
    reports: Sequence[Report], folder: Path | None, as_json: bool, code: int | None = None
) -> None:
    """Print, save, tell GitHub where it listens, and leave with the right exit code.

    `code` is that of a gate that knows more than the verdicts: expected drift, runs that failed.
    """
    from ..judge.gate import exit_code
    from ..result import to_dict

    if as_json:
        import json

        data = [to_dict(item) for item in reports]
        document = data[0] if len(data) == 1 else data
        show_json(json.dumps(document, indent=1, allow_nan=False))
    elif reports:
        from driftwalk_reports.terminal import render

        color = sys.stdout.isatty()
        show("\n".join(render(item, color=color) for item in reports))
    _tell_github(reports)
    if folder is not None:
        _save(reports, folder)
    raise typer.Exit(exit_code(reports) if code is None else code)


def _save(reports: Sequence[Report], folder: Path, formats: Sequence[str] | None = None) -> None:
    """Write the files, and name those that a person opens first."""
    from ..publish import publish

    files = publish(reports, folder, formats)
    words = {"result.json": "Result", "report.html": "Report", "index.html": "Index"}
    known = [file for file in files if file.name in words]
    for file in known or files:
        say(f"{words.get(file.name, 'Wrote')}: {file}")


def _tell_github(reports: Sequence[Report]) -> None:
    """Annotations for the workflow, and a summary for its page, where the environment asks."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not (on_github() or summary):
        return
    from driftwalk_reports.github import annotate, step_summary

    if on_github():
        tell_github(annotate(reports))
    if not summary:
        return
    try:
        with open(summary, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(step_summary(reports, already=os.path.getsize(summary)))
    except OSError as error:
        say(f"driftwalk: no step summary in {summary!r}: {error.strerror or error}")
