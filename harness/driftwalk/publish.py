"""Documents as files: one of a kind fills a folder; several get one each, and an index above."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .document import KINDS, Document
from .errors import UsageError, nearest
from .files import writable_folder, write_atomically
from .registry import REPORT_INDEX, load_target
from .result import Sided, shapes_told

LONGEST_PART = 48
"""Characters that a model or a spec may give to the name of a folder."""


def publish(
    documents: Sequence[Document], folder: str | Path, formats: Iterable[str] | None = None
) -> list[Path]:
    """Write documents in every format they have, or in those named, and say which files were made.

    All texts are made before the first file is written, and the index comes last: it links only
    to pages that are there.
    """
    kinds = [item.kind for item in documents]
    several = {kind for kind in kinds if kinds.count(kind) > 1}
    if twice := next((kind for kind in kinds if kind in several and not KINDS[kind].beside), None):
        raise UsageError(f"Two results are both a {twice}; render each to a folder of its own.")
    chosen = known_formats(formats, kinds)
    reports: list[Any] = [item for item in documents if item.kind in several]
    alone = [item for item in documents if item.kind not in several]
    texts = [text for item in alone for text in _texts(item, chosen, folder)]
    places = folder_names(reports)
    entries = [
        (f"{place}/{KINDS[item.kind].formats['html'][0]}", item)  # safe, and needs no quoting
        for place, item in zip(places, reports, strict=True)
    ]
    for place, report in zip(places, reports, strict=True):
        # The other candidates of the same question.
        siblings = tuple(
            (f"../{link}", other)
            for link, other in entries
            if other is not report and _question(other) == _question(report)
        )
        texts += [
            (f"{place}/{name}", text) for name, text in _texts(report, chosen, folder, siblings)
        ]
    if reports and "html" in chosen:
        name, target = REPORT_INDEX
        texts.append((name, load_target(target)(entries)))
    root = writable_folder(folder)
    return [write_atomically(root / name, text) for name, text in texts]


def known_formats(formats: Iterable[str] | None, kinds: Iterable[str]) -> tuple[str, ...]:
    """The formats named, once each; None is all that these kinds of result have."""
    known = list(dict.fromkeys(name for kind in kinds for name in KINDS[kind].formats))
    wanted = known if formats is None else list(formats)
    for name in wanted:
        if name not in known:
            raise UsageError(f"Unknown report format {name!r}. {nearest(name, known)}")
    if not wanted:
        raise UsageError(f"No report format is named. Known: {', '.join(known)}.")
    return tuple(wanted)


def folder_names(reports: Sequence[Sided]) -> list[str]:
    """Where each report goes below the common folder: nowhere deeper when there is only one."""
    if len(reports) == 1:
        return [""]
    several = len({item.model.get("label", "") for item in reports}) > 1
    shapes = shapes_told(reports)
    digits = max(2, len(str(len(reports))))
    names = []
    for number, (item, shape) in enumerate(zip(reports, shapes, strict=True), start=1):
        model = _safe(item.model.get("label", "")) if several else ""
        parts = (f"{number:0{digits}d}", model, _safe(item.candidate.spec), _safe(shape))
        names.append("-".join(filter(None, parts)))
    return names


def _safe(text: str) -> str:
    """A part of a file name that every system takes, whatever the text is."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text)
    return re.sub(r"\.{2,}", ".", plain)[:LONGEST_PART].strip("-.")


def _texts(
    document: Document,
    formats: Iterable[str],
    folder: str | Path,
    siblings: Sequence[tuple[str, Document]] = (),
) -> Iterable[tuple[str, str]]:
    """The files of one document: their names, and what is in them."""
    for name, (file, target) in KINDS[document.kind].formats.items():
        if name in formats and name == "html":
            more = (siblings,) if siblings else ()
            yield file, load_target(target)(document.placed(Path(folder)), *more)
        elif name in formats:
            yield file, load_target(target)(document)


def _question(report: Any) -> tuple[str, dict[str, str], str, str]:
    """What several candidates can be asked: by kind, model, probe and reference."""
    return report.kind, dict(report.model), report.probe.sha256, report.reference.spec
