"""Reports as files: one report fills a folder; several get a folder each, and an index above."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from .errors import UsageError, nearest
from .files import writable_folder, write_atomically
from .registry import REPORT_FORMATS, REPORT_INDEX, load_target
from .result import Report

LONGEST_PART = 48
"""Characters that a model or a spec may give to the name of a folder."""


def publish(
    reports: Sequence[Report], folder: str | Path, formats: Iterable[str] | None = None
) -> list[Path]:
    """Write reports in every format, or in those named, and say which files were written.

    All texts are made before the first file is written, and the index comes last: it links only
    to pages that are there.
    """
    chosen = known_formats(formats)
    places = folder_names(reports)
    texts = [
        (name, text)
        for number in range(len(reports))
        for name, text in _texts(reports, places, number, chosen)
    ]
    if len(reports) > 1 and "html" in chosen:
        entries = [(_page(place), item) for place, item in zip(places, reports, strict=True)]
        name, target = REPORT_INDEX
        texts.append((name, load_target(target)(entries)))
    root = writable_folder(folder)
    return [write_atomically(root / name, text) for name, text in texts]


def known_formats(formats: Iterable[str] | None) -> tuple[str, ...]:
    """The formats named, once each and in our order; None is all of them."""
    wanted = list(REPORT_FORMATS) if formats is None else list(formats)
    for name in wanted:
        if name not in REPORT_FORMATS:
            raise UsageError(f"Unknown report format {name!r}. {nearest(name, REPORT_FORMATS)}")
    if not wanted:
        raise UsageError(f"No report format is named. Known: {', '.join(REPORT_FORMATS)}.")
    return tuple(name for name in REPORT_FORMATS if name in wanted)


def folder_names(reports: Sequence[Report]) -> list[str]:
    """Where each report goes below the common folder: nowhere deeper when there is only one."""
    if len(reports) == 1:
        return [""]
    models = [item.model.get("label", "") for item in reports]
    names = []
    for number, (item, model) in enumerate(zip(reports, models, strict=True), start=1):
        parts = [f"{number:0{max(2, len(str(len(reports))))}d}"]
        parts += [_safe(model)] if len(set(models)) > 1 else []
        names.append("-".join(part for part in (*parts, _safe(item.candidate.spec)) if part))
    return names


def _safe(text: str) -> str:
    """A part of a file name that every system takes, whatever the text is."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text)
    return re.sub(r"\.{2,}", ".", plain)[:LONGEST_PART].strip("-.")


def _texts(
    reports: Sequence[Report], places: Sequence[str], number: int, formats: Iterable[str]
) -> Iterable[tuple[str, str]]:
    """The files of one report: where below the common folder, and what is in them."""
    report, place = reports[number], places[number]
    for name in formats:
        file, target = REPORT_FORMATS[name]
        given = (report, _siblings(reports, places, number)) if name == "html" else (report,)
        text = load_target(target)(*given)
        yield (f"{place}/{file}" if place else file), text


def _siblings(
    reports: Sequence[Report], places: Sequence[str], number: int
) -> tuple[tuple[str, Report], ...]:
    """The other candidates of the same question: same model, probe and reference."""
    return tuple(
        (f"../{_page(places[other])}", item)
        for other, item in enumerate(reports)
        if other != number and _question(item) == _question(reports[number])
    )


def _question(report: Report) -> tuple[dict[str, str], str, str]:
    return dict(report.model), report.probe.sha256, report.reference.spec


def _page(place: str) -> str:
    """The page of a report, as a link from the common folder; a safe name needs no quoting."""
    return f"{place}/{REPORT_FORMATS['html'][0]}"
