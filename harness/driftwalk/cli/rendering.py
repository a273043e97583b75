"""From reports to what a user gets: text, files, what GitHub shows; and the command `report`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from .console import guarded, on_github, say, show, show_json, tell_github, this_command, working
from .options import option

if TYPE_CHECKING:
    from ..document import Document
    from ..result import Report
    from ..tasks.generation.result import Generation

R = TypeVar("R")
FolderOption = Annotated[
    Path | None, option("--report -o DIR", "Write the result and its pages here.")
]


@guarded
def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT",
            help="Stored results of any command, folders that hold them, or what --json printed.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, option("-o --output DIR", "Where to write.")],
    formats: Annotated[
        str | None,
        option(
            "--format LIST",
            "Which files, with commas between: json, html, md, junit, csv, pytest; "
            "all that a kind of result has, if not said.",
        ),
    ] = None,
) -> None:
    """Render stored results again, anywhere: it needs no backend, no torch and no model."""
    from ..document import load_documents

    chosen = None if formats is None else [n.strip() for n in formats.split(",") if n.strip()]
    _save(load_documents(results), output, chosen)


def make_document(make: Callable[..., R], folder: Path | None, *given: Any, **options: Any) -> R:
    """Run what makes a result, or several, with a bar; `folder` is where they are to be written."""
    with working(folder) as bar:
        return make(*given, **({"command": this_command()} | options), progress=bar)


def finish(
    documents: Sequence[Document],
    folder: Path | None,
    as_json: bool,
    code: int | None = None,
    failed: str = "",
    **shown: Any,
) -> None:
    """Print results of any kind, save them, tell GitHub where it listens, and leave.

    Without a `code`, the exit code is that of the reports' verdicts; a gate may know more. `failed`
    says what was found that must not be; `shown` are options of what renders text. Of several
    shapes, those that pass have a line of a table.
    """
    from ..document import KINDS, to_dict
    from ..judge.gate import exit_code
    from ..registry import SHAPES_TEXT, load_target
    from ..result import Report, shapes_told
    from ..tasks.generation.result import Generation

    reports = [document for document in documents if isinstance(document, Report)]
    judged = [document for document in documents if isinstance(document, Report | Generation)]
    if as_json:
        data = [to_dict(document) for document in documents]
        show_json(data[0] if len(data) == 1 else data)
    elif documents:
        color = sys.stdout.isatty()
        short = any(shapes_told(judged))
        texts = [
            load_target(KINDS[item.kind].text)(item, color=color, **shown)
            for item in documents
            if not (short and isinstance(item, Report) and item.ok)
        ]
        texts += [load_target(SHAPES_TEXT)(judged, color=color)] if short else []
        show("\n".join(texts))
    if judged:
        _tell_github(judged)
    if folder is not None:
        _save(documents, folder)
    if failed:
        say(f"driftwalk: {failed}")
    raise typer.Exit(exit_code(reports) if code is None else code)


def finish_document(
    document: Document,
    folder: Path | None,
    as_json: bool,
    code: int = 0,
    failed: str = "",
    **shown: Any,
) -> None:
    """The same for one result, whose exit code is 1 where something was found."""
    finish([document], folder, as_json, 1 if failed else code, failed, **shown)


def _save(
    documents: Sequence[Document], folder: Path, formats: Sequence[str] | None = None
) -> None:
    """Write the files, and name those that a person opens first."""
    from ..document import KINDS
    from ..publish import publish

    files = publish(documents, folder, formats)
    words = {"index.html": "Index"}
    for kind in KINDS.values():
        words |= {kind.formats["json"][0]: "Result", kind.formats["html"][0]: "Report"}
    opened_first = [file for file in files if file.name in words]
    for file in opened_first or files:
        say(f"{words.get(file.name, 'Wrote')}: {file}")


def _tell_github(reports: Sequence[Report | Generation]) -> None:
    """Annotations for the workflow, and a summary for its page, where the environment asks."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not (on_github() or summary):
        return
    from driftwalk_reports.github import annotate, step_summary

    if on_github():
        tell_github(annotate(reports))
    if summary:
        try:
            with open(summary, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(step_summary(reports, already=os.path.getsize(summary)))
        except OSError as error:
            say(f"driftwalk: no step summary in {summary!r}: {error.strerror or error}")
