"""The folder of a reproduction: nothing is ever replaced in it but files of an earlier one.

It also holds what a search was answered so far, from which another one goes on.
"""

from __future__ import annotations

from pathlib import Path

from ...document import KINDS
from ...errors import UsageError
from ..resuming import refuse_others
from .result import Reduction

FILES = frozenset({"repro.py", "repro.onnx", "repro.npz"})
"""What a reproduction consists of, beside its result and the pages of that."""


def own_files() -> frozenset[str]:
    """All names that `reduce` writes."""
    formats = KINDS[Reduction.kind].formats.values()
    return FILES | {name for name, _ in formats}


def free_place(folder: Path) -> Path:
    """Where the reproduction is to be; a folder with anything else in it is refused."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{str(folder)!r} is no folder; name another with -o.")
    if not folder.is_dir():
        return folder
    result = KINDS[Reduction.kind].formats["json"][0]
    names = {file.name for file in folder.iterdir()}
    others = sorted(names - own_files())
    if others or (names and result not in names):
        raise UsageError(
            f"{str(folder)!r} holds {others[0] if others else min(names)!r}, which is not of an "
            "earlier reproduction; nothing is written over it. Name another folder with -o."
        )
    return folder


def refuse_another(now: Reduction, earlier: Reduction, point: str | None) -> None:
    """An earlier search is gone on with where it was of the same drift."""
    asked = (
        ("model", now.model.get("fingerprint", ""), earlier.model.get("fingerprint", "")),
        ("candidate", now.candidate.spec, earlier.candidate.spec),
        ("set of versions", _versions(now), _versions(earlier)),
        ("probe", now.probe, earlier.probe),
        ("point", point or earlier.point, earlier.point),
    )
    refuse_others(asked)


def _versions(made: Reduction) -> str:
    versions = {"driftwalk": made.tool.version, **made.candidate.versions}
    return ", ".join(f"{name} {text}" for name, text in sorted(versions.items()))


def keep_answers(made: Reduction, target: Path | None) -> None:
    """What was answered so far, for a search that does not come to its end.

    Not beside a reproduction: the two are written together.
    """
    if target is not None and not (target / "repro.py").exists():
        made.save(target, ["json"])


def holds_answers(folder: Path) -> bool:
    """Whether a search that did not come to its end has left its answers there."""
    result = KINDS[Reduction.kind].formats["json"][0]
    return (folder / result).is_file() and not (folder / "repro.py").exists()
