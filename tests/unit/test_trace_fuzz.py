"""Files that somebody else wrote: no traceback, no path outside, no memory for sizes that lie.

A few hundred cases in all; DRIFTWALK_FUZZ=2500 in the environment makes it 2,500 of each kind.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import struct
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driftwalk import DriftwalkError, Signature, Trace, compare
from driftwalk.signatures.data import digest_of, load_either
from driftwalk.traces.point_map import load_map
from driftwalk.traces.tensor_file import read_tensors
from unit.test_trace_file import trace

fuzz = settings(
    max_examples=int(os.environ.get("DRIFTWALK_FUZZ", "80")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MOST_MEMORY = 256 << 20
"""What all cases together may add to the process, in bytes."""

numbers = st.integers(-(2**70), 2**70) | st.integers(0, 64) | st.floats()
texts = st.text(max_size=6) | st.sampled_from(
    [
        "../outside",
        "/etc/passwd",
        "a/b",
        "..",
        "\0",
        "outside",
        "embed",
        "nan",
        "inf",
        "fp32",
        "F32",
    ]
)
scalars = st.none() | st.booleans() | numbers | texts
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)

opened: list[str] = []
watching = False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if watching and event in ("open", "os.mkdir", "os.remove", "os.rename", "os.scandir"):
        opened.append(os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else "")


@pytest.fixture(autouse=True, scope="module")
def _every_opened_file_is_told() -> None:
    """Not before the first test of this file: the hook slows down all that runs after it."""
    sys.addaudithook(_watch)


@contextlib.contextmanager
def only_inside(folder: Path) -> Iterator[None]:
    """Whatever is opened or changed meanwhile lies in this folder."""
    global watching  # noqa: PLW0603 - an audit hook stays for the life of the process
    opened.clear()
    watching = True
    try:
        yield
    finally:
        watching = False
    # Modules may be loaded on the way; a trace's own file never is one.
    strange = [p for p in opened if p and not p.endswith((".py", ".pyc", ".so")) and "/" in p]
    assert all(Path(p).resolve().is_relative_to(folder.resolve()) for p in strange), strange


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    """A trace, its signature, and a file beside them that nobody may read through them."""
    folder = tmp_path_factory.mktemp("stored")
    trace(size=2).save(folder / "a")
    Signature.of(trace(size=2)).save(folder / "a.signature.json")
    (folder / "outside").write_bytes((folder / "a" / "states.safetensors").read_bytes())
    return folder


@pytest.fixture(autouse=True, scope="module")
def _no_blow_up() -> Iterator[None]:
    before = peak()
    yield
    assert peak() - before < MOST_MEMORY


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    found = [at] if at else []
    if isinstance(value, dict):
        items: Any = value.items()
    else:
        items = enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += paths(item, (*at, key))
    return found


def spoiled(data: Any, draw: st.DataObject) -> Any:
    """A document with one to three of its places changed, removed or doubled."""
    made = deepcopy(data)
    for _ in range(draw.draw(st.integers(1, 3))):
        places = paths(made)
        if not places:
            return made
        *way, last = draw.draw(st.sampled_from(places))
        home = made
        for key in way:
            home = home[key]
        what = draw.draw(st.sampled_from(["change", "change", "remove", "double"]))
        if what == "remove":
            del home[last]
        elif what == "double" and isinstance(home, list):
            home.append(deepcopy(home[last]))
        else:
            home[last] = draw.draw(anything)
    return made


@fuzz
@given(data=st.data())
def test_no_header_does_harm(tmp_path, data):
    entry = st.fixed_dictionaries(
        {},
        optional={
            "dtype": st.sampled_from(["F32", "BF16", "BOOL", "X", "F64"]) | anything,
            "shape": st.lists(numbers, max_size=4) | anything,
            "data_offsets": st.lists(numbers, min_size=2, max_size=2) | anything,
        },
    )
    header = data.draw(st.dictionaries(st.text(max_size=5), entry | anything, max_size=3))
    text = json.dumps(header).encode()
    length = data.draw(st.just(len(text)) | st.integers(0, 2**64 - 1))
    file = tmp_path / "x"
    file.write_bytes(struct.pack("<Q", length) + text + b"\1" * data.draw(st.integers(0, 64)))
    with only_inside(tmp_path):
        try:
            found = read_tensors(file)
        except DriftwalkError:
            return
    assert sum(a.nbytes for a in found.values()) <= 64 * max(1, len(found))


@fuzz
@given(data=st.data())
def test_no_change_of_a_good_header_does_harm(tmp_path, stored, data):
    """Closer to what could be believed than any random header: numbers that do not fit."""
    raw = (stored / "a" / "states.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = spoiled(json.loads(raw[8 : 8 + length]), data)
    text = json.dumps(header).encode()
    folder = tmp_path / "a"
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_bytes((stored / "a" / "manifest.json").read_bytes())
    whole = struct.pack("<Q", len(text)) + text + raw[8 + length :]
    (folder / "states.safetensors").write_bytes(whole)
    with only_inside(folder), contextlib.suppress(DriftwalkError):
        loaded = Trace.load(folder)
        made = trace(size=2)
        assert all(loaded[n].tobytes() == made[n].tobytes() for n in loaded.names)


@fuzz
@given(data=st.data())
def test_no_manifest_does_harm(tmp_path, stored, data):
    good = json.loads((stored / "a" / "manifest.json").read_text("utf-8"))
    folder = tmp_path / "a"
    folder.mkdir(exist_ok=True)
    (folder / "states.safetensors").write_bytes((stored / "outside").read_bytes())
    (tmp_path / "outside").write_bytes((stored / "outside").read_bytes())
    made = spoiled(good, data) if data.draw(st.booleans()) else good
    if isinstance(made, dict) and data.draw(st.booleans()):
        outside = st.sampled_from(["../outside", str(tmp_path / "outside"), "../a/../outside"])
        made["file"] = data.draw(outside | texts)
    (folder / "manifest.json").write_text(json.dumps(made), "utf-8")
    with only_inside(folder), contextlib.suppress(DriftwalkError):
        Trace.load(folder)


@fuzz
@given(data=st.data())
def test_no_signature_does_harm(tmp_path, stored, data):
    """Nor is a changed one believed where it must not: a verdict, or an error that names it."""
    good = json.loads((stored / "a.signature.json").read_text("utf-8"))
    file = tmp_path / "a.signature.json"
    made = spoiled(good, data)
    if isinstance(made, dict):  # as one who wants to be believed would do it
        made.pop("digest", None)
        with contextlib.suppress(ValueError):
            made["digest"] = digest_of(made)
    file.write_text(json.dumps(made), "utf-8")
    with only_inside(tmp_path):
        try:
            signature = Signature.load(file)
        except DriftwalkError:
            return
    with contextlib.suppress(DriftwalkError), np.errstate(all="ignore"):
        assert compare(signature, trace(size=2), "dtype").verdict in ("pass", "drift", "unverified")


@fuzz
@given(raw=st.binary(max_size=80))
def test_no_bytes_do_harm(tmp_path, raw):
    for name in ("states.safetensors", "a.signature.json", "map.toml"):
        (tmp_path / name).write_bytes(raw)
    (tmp_path / "manifest.json").write_bytes(raw[:40])
    with only_inside(tmp_path):
        for load in (
            lambda: Trace.load(tmp_path),
            lambda: read_tensors(tmp_path / "states.safetensors"),
            lambda: load_either(tmp_path / "a.signature.json"),
            lambda: load_map(tmp_path / "map.toml"),
        ):
            with pytest.raises(DriftwalkError):
                load()
