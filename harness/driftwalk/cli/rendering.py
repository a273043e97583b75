"""From reports to what a user gets: text, files, what GitHub shows; and the command `report`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import guarded, on_github, say, show, show_json, tell_github

if TYPE_CHECKING:
    from ..document import Document
    from ..result import Report

FolderOption = Annotated[
    Path | None,
    typer.Option("--report", "-o", metavar="DIR", help="Write the result and its pages here."),
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
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where to write.")],
    formats: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="LIST",
            help="Which files, with commas between: json, html, md, junit, csv, pytest; "
            "all that a kind of result has, if not said.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Render stored results again, anywhere: it needs no backend, no torch and no model."""
    from ..stored import load_documents

    chosen = None if formats is None else [n.strip() for n in formats.split(",") if n.strip()]
    _save(load_documents(results), output, chosen)


def finish_document(
    document: Document, folder: Path | None, as_json: bool, code: int = 0, failed: str = ""
) -> None:
    """Print a result of any kind, save it where a folder is named, and leave.

    `failed` says what was found that must not be: then the exit code is 1.
    """
    from ..document import KINDS, to_json
    from ..registry import load_target

    if as_json:
        show_json(to_json(document))
    else:
        show(load_target(KINDS[document.kind].text)(document, color=sys.stdout.isatty()))
    if folder is not None:
        _save([document], folder)
    if failed:
        say(f"driftwalk: {failed}")
    raise typer.Exit(1 if failed else code)


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


def _save(
    documents: Sequence[Document], folder: Path, formats: Sequence[str] | None = None
) -> None:
    """Write the files, and name those that a person opens first."""
    from ..document import KINDS
    from ..publish import publish

    files = publish(documents, folder, formats)
    words = {one.formats["json"][0]: "Result" for one in KINDS.values()}
    words |= {one.formats["html"][0]: "Report" for one in KINDS.values()} | {"index.html": "Index"}
    known = [file for file in files if file.name in words]
    for file in known or files:
        say(f"{words.get(file.name, 'Wrote')}: {file}")


def make_document(make: Callable[..., Any], folder: Path | None, *given: Any, **more: Any) -> Any:
    """Run a task that makes a result, with a bar; its folder is proved to be writable first."""
    from ..files import writable_folder
    from .console import this_command, working

    if folder is not None:
        writable_folder(folder)
    with working() as bar:
        return make(*given, **more, command=this_command(), progress=bar)


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
