"""How the commands of studies end: text or JSON, files, an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import say, show, show_json

if TYPE_CHECKING:
    from ..studies.common import Study

StudyReportOption = Annotated[
    Path | None,
    typer.Option("--report", "-o", metavar="DIR", help="Write the JSON result and a page here."),
]


def finish_study(study: Study, folder: Path | None, as_json: bool) -> None:
    """Print, save, and leave: 1 where the study found something that must not be."""
    from ..registry import load_target
    from ..studies.common import save, to_json

    if as_json:
        show_json(to_json(study))
    else:
        render = load_target(f"driftwalk_reports.studies.{study.kind}_text:render")
        show(render(study, color=sys.stdout.isatty()))
    if folder is not None:
        result, page = save(study, folder)
        say(f"Result: {result}")
        say(f"Report: {page}")
    if study.failed:
        say(f"driftwalk: {study.failed}")
    raise typer.Exit(1 if study.failed else 0)


def render_studies(paths: Sequence[Path], folder: Path) -> list[Path]:
    """Render the studies among some files again; the rest is given back."""
    from ..errors import UsageError
    from ..studies.common import is_study, load, save

    found = {path: load(path) for path in paths if is_study(path)}
    kinds = [study.kind for study in found.values()]
    if twice := next((kind for kind in kinds if kinds.count(kind) > 1), None):
        raise UsageError(f"Two studies are both a {twice}; render each to a folder of its own.")
    for study in found.values():
        say(f"Report: {save(study, folder)[1]}")
    return [path for path in paths if path not in found]
