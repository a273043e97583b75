"""The folder of a reproduction: nothing is ever replaced in it but files of an earlier one."""

from __future__ import annotations

from pathlib import Path

from ...document import KINDS
from ...errors import UsageError
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
