"""Results that were stored: which files a path stands for, and the reports in them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .errors import UsageError
from .files import read_json
from .registry import REPORT_FORMATS
from .result import Report, from_dict

RESULT = REPORT_FORMATS["json"][0]


def load_results(paths: Iterable[str | Path]) -> list[Report]:
    """Every report of the files and folders named, in the order they were named."""
    files = [file for path in paths for file in result_files(Path(path))]
    return [report for file in files for report in read_results(file)]


def result_files(path: Path) -> list[Path]:
    """A file itself; of a folder its result.json, else those one level below, sorted."""
    if not path.is_dir():
        return [path]
    if (path / RESULT).is_file():
        return [path / RESULT]
    try:
        found = sorted(below / RESULT for below in path.iterdir() if (below / RESULT).is_file())
    except OSError as error:
        raise UsageError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None
    if not found:
        raise UsageError(
            f"No {RESULT} in {str(path)!r}, nor one folder below. "
            "`driftwalk verify ... --report DIR` writes one."
        )
    return found


def read_results(path: Path) -> list[Report]:
    """The report of a result.json, or all of the list that `verify --json` prints."""
    data = read_json(path)
    # An empty list is no result, and `from_dict` says so.
    documents = data if isinstance(data, list) and data else [data]
    return [from_dict(document) for document in documents]
