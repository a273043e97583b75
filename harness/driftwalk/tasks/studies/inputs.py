"""What studies are given: pairs of inputs that differ in a few tokens, and labelled sentences.

Of a pair, each row is run by itself and without padding, real token beside real token. Padding,
and the other way that attention takes when some of it is masked, would otherwise stand between two
inputs that must agree bit by bit.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...dtypes import Array
from ...errors import ModelError, ProbeError, UsageError, nearest
from ...stage import make_probe
from ...states import Probe
from .results import AlignedRow

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel

IDS = "input_ids"
DEFAULT_PAIR = ("The capital of France is Paris.", "The capital of Germany is Berlin.")
DEFAULT = "default"
"""Stands for the built-in pair."""

LEAST, MOST = 4, 2000
"""Sentences: fewer have no neighbourhoods; every pair of more would fill the memory."""
BUILT_IN = {
    "cities": "Paris and Berlin: 25 + 25 sentences cut before the name, 25 + 25 complete ones",
    "cities-incomplete": "only those cut before the name",
    "cities-complete": "only the complete ones",
}


def has_tokenizer(model: LoadedModel) -> bool:
    try:
        return model.tokenizer is not None
    except ModelError:
        return False


# ---- two inputs ----


def read_pair(given: object) -> tuple[object, object]:
    """Two inputs from `a|b`, from a pair, or from `default`."""
    if given is True or given == DEFAULT:
        return None, None
    if isinstance(given, str):
        parts = [part.strip() for part in given.split("|")]
        if len(parts) != 2 or not all(parts):
            raise UsageError(
                f"--contrast {given!r}: write two inputs with one | between them, "
                f"'one text|another text', or {DEFAULT} for the built-in pair."
            )
        return parts[0], parts[1]
    if isinstance(given, Sequence) and len(given) == 2:
        return given[0], given[1]
    raise UsageError(f"contrast={given!r}: give a pair of inputs, 'a|b', or True.")


def make_pair(model: LoadedModel, first: object, second: object) -> tuple[Probe, Probe]:
    """Both probes, checked against the model; the default pair where none is given."""
    if (first is None) != (second is None):
        raise UsageError("A contrast needs two inputs, or none for the default pair.")
    if first is None and has_tokenizer(model):
        first, second = DEFAULT_PAIR
    if first is not None:
        return make_probe(model, first), make_probe(model, second)
    probe = make_probe(model, None, batch=1)
    if IDS not in probe.inputs:
        return probe, make_probe(model, None, batch=1, seed=1)
    ids = np.array(probe.inputs[IDS])
    middle = ids.shape[1] // 2
    ids[0, middle] = ids[0, middle] - 1 if ids[0, middle] > 0 else 1
    origin = f"{probe.origin}, token {middle} changed"
    changed = Probe({**probe.inputs, IDS: ids}, origin, others=probe.others)
    return probe, make_probe(model, changed)


@dataclass(frozen=True, eq=False)
class RowPair:
    """One row of each probe, ready to be run, and how their tokens stand side by side."""

    probes: tuple[Probe, Probe]
    row: AlignedRow


def paired(first: Probe, second: Probe, cut: bool) -> list[RowPair]:
    """Row beside row; `cut` drops what the longer has more, which earlier states cannot see."""
    unlike = f"The two inputs cannot be contrasted: {first.difference(second)}."
    if first.inputs.keys() != second.inputs.keys():
        raise ProbeError(unlike)
    if first.sha256 == second.sha256:
        raise ProbeError("The two inputs are the same; a contrast needs two that differ.")
    if IDS not in first.inputs:  # pixels, sound: compared as they are
        if any(a.shape != second.inputs[name].shape for name, a in first.inputs.items()):
            raise ProbeError(unlike)
        texts = (" | ".join(first.texts), " | ".join(second.texts))
        return [RowPair((first, second), AlignedRow(texts, (), (), (), (0, 0)))]
    rows = [len(probe.inputs[IDS]) for probe in (first, second)]
    if rows[0] != rows[1]:
        raise ProbeError(
            f"The first input has {rows[0]} rows, the second {rows[1]}; rows are contrasted one "
            "by one, so both must have as many."
        )
    return [_aligned(single_row(first, i), single_row(second, i), cut) for i in range(rows[0])]


def _aligned(one: Probe, two: Probe, cut: bool) -> RowPair:
    lengths = (one.inputs[IDS].shape[1], two.inputs[IDS].shape[1])
    common = min(lengths)
    texts = ("".join(one.texts[:1]), "".join(two.texts[:1]))
    names = [probe.tokens[0][:common] if probe.tokens else () for probe in (one, two)]
    differs = np.zeros(common, dtype=bool)
    for name, array in one.inputs.items():
        if _per_token(one, name) and _per_token(two, name):
            unequal = array[0, :common] != two.inputs[name][0, :common]
            differs |= unequal.reshape(common, -1).any(axis=1)
    row = AlignedRow(texts, names[0], names[1], tuple(map(bool, differs)), lengths)
    return RowPair((_shortened(one, common), _shortened(two, common)) if cut else (one, two), row)


def _per_token(probe: Probe, name: str) -> bool:
    return probe.inputs[name].shape[:2] == probe.inputs[IDS].shape


def single_row(probe: Probe, number: int) -> Probe:
    """One row, its padding cut out."""
    ids, mask = probe.inputs[IDS], probe.inputs.get("attention_mask")
    keep = np.ones(ids.shape[1], dtype=bool)
    if mask is not None and mask.shape == ids.shape:
        keep = mask[number] != 0

    def sliced(name: str, array: Array) -> Array:
        if array.ndim == 0 or len(array) != len(ids):
            return array
        row = array[number : number + 1]
        return row[:, keep] if _per_token(probe, name) else row

    inputs = {name: sliced(name, array) for name, array in probe.inputs.items()}
    texts = (probe.texts[number],) if len(probe.texts) == len(ids) else ()
    tokens: tuple[tuple[str, ...], ...] = ()
    if len(probe.tokens) == len(ids) and len(probe.tokens[number]) == len(keep):
        tokens = (tuple(compress(probe.tokens[number], keep)),)
    return Probe(inputs, probe.origin, texts, tokens, others=probe.others)


def _shortened(probe: Probe, length: int) -> Probe:
    inputs = {
        name: array[:, :length] if _per_token(probe, name) else array
        for name, array in probe.inputs.items()
    }
    tokens = tuple(row[:length] for row in probe.tokens)
    return Probe(inputs, probe.origin, probe.texts, tokens, others=probe.others)


# ---- labelled sentences ----


@dataclass(frozen=True)
class Dataset:
    """Sentences and their labels, in order."""

    name: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]


def load_dataset(given: str | Path) -> Dataset:
    """A built-in set by its name, or a CSV or JSONL file with the columns text and label."""
    if isinstance(given, str) and given in BUILT_IN:
        return _cities(given)
    path = Path(given)
    readers = {".csv": _csv, ".jsonl": _jsonl}
    if path.suffix.lower() not in readers:
        raise UsageError(
            f"Unknown dataset {str(given)!r}. {nearest(str(given), BUILT_IN)} "
            "Or name a .csv or .jsonl file with the columns text and label."
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{str(path)!r} is not UTF-8: {error.reason}.") from None
    rows = list(readers[path.suffix.lower()](path.name, text))
    if not LEAST <= len(rows) <= MOST:
        raise UsageError(f"{path.name} has {len(rows)} rows; {LEAST} to {MOST} are needed.")
    return Dataset(path.name, *zip(*rows, strict=True))


def _cities(name: str) -> Dataset:
    text = files(__package__).joinpath("cities.csv").read_text(encoding="utf-8")
    form = name.partition("-")[2]
    chosen = [r for r in csv.DictReader(io.StringIO(text)) if form in ("", r["form"])]
    labels = (row["label"] if form else f"{row['label']}, {row['form']}" for row in chosen)
    return Dataset(name, tuple(row["text"] for row in chosen), tuple(labels))


def _csv(name: str, text: str) -> Iterator[tuple[str, str]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = reader.fieldnames or ()
        if missing := [column for column in ("text", "label") if column not in columns]:
            raise UsageError(
                f"{name}, line 1: no column {' and no column '.join(missing)}; the first line "
                "names the columns, among them text and label."
            )
        for row in reader:
            yield _checked(name, reader.line_num, row)
    except csv.Error as error:
        raise UsageError(f"{name}, line {reader.reader.line_num}: {error}.") from None


def _jsonl(name: str, text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{name}, line {number}: not JSON: {error}.") from None
        if not isinstance(row, dict):
            raise UsageError(f"{name}, line {number}: expected an object with text and label.")
        yield _checked(name, number, row)


def _checked(name: str, line: int, row: dict[str, object]) -> tuple[str, str]:
    for key in ("text", "label"):
        value = row.get(key)
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{name}, line {line}: {key} is empty or not a text.")
    if None in row:  # csv puts what is beyond the columns under this key
        raise UsageError(f"{name}, line {line}: more values than columns; quote commas in texts.")
    return str(row["text"]), str(row["label"])
