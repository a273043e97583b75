"""Results that were stored: which files a path stands for, and the documents in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from .document import KINDS, RESULT, Document, from_dict
from .errors import UsageError
from .files import read_json
from .result import Report


def load_documents(
    paths: Iterable[str | Path], kinds: Sequence[str] = tuple(KINDS)
) -> list[Document]:
    """Every result of the files and folders named, in the order they were named."""
    names = [KINDS[kind].formats["json"][0] for kind in kinds]
    files = [file for path in paths for file in result_files(Path(path), names)]
    return [document for file in files for document in read_documents(file)]


def load_results(paths: Iterable[str | Path]) -> list[Report]:
    """The same, of `verify` and `compare` only; any other kind is refused."""
    reports = []
    for document in load_documents(paths, [RESULT]):
        if not isinstance(document, Report):
            raise UsageError(f"A result of `driftwalk verify` is needed, not a {document.kind}.")
        reports.append(document)
    return reports


def result_files(path: Path, names: Sequence[str]) -> list[Path]:
    """A file itself; of a folder those of these names, else those one level below, sorted."""
    if not path.is_dir():
        return [path]
    try:
        for folders in ([path], sorted(path.iterdir())):
            found = [at / name for at in folders for name in names if (at / name).is_file()]
            if found:
                return found
    except OSError as error:
        raise UsageError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None
    raise UsageError(
        f"No {names[0]} in {str(path)!r}, nor one folder below"
        + (f"; nor {', '.join(names[1:])}" if names[1:] else "")
        + ". `driftwalk verify ... --report DIR` writes one."
    )


def read_documents(path: Path) -> list[Document]:
    """The result in a file, or all of the list that `verify --json` prints."""
    data = read_json(path)
    # An empty list is no result, and `from_dict` says so.
    documents = data if isinstance(data, list) and data else [data]
    return [from_dict(document) for document in documents]
