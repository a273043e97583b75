"""Headers of GGUF files that somebody else wrote: read, or refused by name."""

from __future__ import annotations

import contextlib
import os
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.gguf.raw_files import ARRAY, BOOLEAN, LLAMA, STRING, UINT32, Entry, File, Listed, text
from driftwalk import DriftwalkError
from driftwalk_backends.gguf.header import Header, read_header
from driftwalk_backends.gguf.types import TYPES
from unit.test_trace_fuzz import only_inside, peak

fuzz = settings(
    max_examples=int(os.environ.get("DRIFTWALK_FUZZ", "150")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MOST_MEMORY = 256 << 20
"""What all cases together may add to the process, in bytes."""


@pytest.fixture(autouse=True, scope="module")
def _no_blow_up():
    before = peak()
    yield
    assert peak() - before < MOST_MEMORY


def read(folder: Path, file: File | bytes) -> Header:
    path = folder / "m.gguf"
    path.write_bytes(file if isinstance(file, bytes) else file.raw)
    return read_header(path)


def test_a_good_header_is_read_as_it_is(tmp_path):
    entries = (
        LLAMA,
        Entry("llama.block_count", UINT32, 7),
        Entry("llama.norm_eps", 6, 0.5),
        Entry("general.on", BOOLEAN, 1),
        Entry("sections", ARRAY, struct.pack("<IQ3i", 5, 3, 4, -5, 6)),
        Entry("tokens", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + text(b"\xff\xfe")),
        Entry("long", ARRAY, struct.pack("<IQ", UINT32, 5000) + bytes(20000)),
    )
    tensors = (Listed("w", (64, 2), 8), Listed("b", (3,), 1, 160))
    found = read(tmp_path, File(entries, tensors, 166, tail=b"more"))
    assert found.architecture == "llama"
    assert found.of_model("block_count") == 7
    assert found.metadata["llama.norm_eps"] == 0.5
    assert found.metadata["general.on"] is True
    assert found.metadata["sections"] == (4, -5, 6)
    assert "tokens" not in found.metadata
    assert "long" not in found.metadata
    assert found.lengths == {"sections": 3, "tokens": 2, "long": 5000}
    weight, bias = found.tensors["w"], found.tensors["b"]
    assert (weight.shape, weight.type.name, weight.bytes) == ((2, 64), "Q8_0", 4 * 34)
    assert (bias.shape, bias.type.name, bias.bytes) == ((3,), "F16", 6)
    assert bias.start - weight.start == 160
    assert weight.start % 32 == 0


def test_block_types_are_those_of_ggml():
    gguf = pytest.importorskip("gguf")
    for number, kind in TYPES.items():
        theirs = gguf.GGMLQuantizationType(number)
        assert (kind.name, (kind.numbers, kind.bytes)) == (
            theirs.name,
            gguf.GGML_QUANT_SIZES[theirs],
        )


GOOD = File()
HUGE = 1 << 62


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"", ["is empty"]),
        (b"GG", ["no such file"]),
        (GOOD.but(magic=b"GGML"), ["does not begin with GGUF"]),
        (GOOD.raw[:6], ["ends within its version"]),
        (GOOD.raw[:20], ["ends within its counts"]),
        (GOOD.but(version=1), ["version 1"]),
        (GOOD.but(version=3 << 24), ["big-endian"]),
        (GOOD.but(counts=(HUGE, None)), [f"{HUGE} tensors", "no room"]),
        (GOOD.but(counts=(None, HUGE)), [f"{HUGE} metadata", "no room"]),
        (GOOD.but(counts=(3, None)), ["tensor called ''"]),
        (GOOD.raw[:110], ["ends within"]),
        (GOOD.but(entries=()), ["does not say what model"]),
        (GOOD.but(entries=(Entry("general.architecture", UINT32, 1),)), ["does not say what"]),
        (GOOD.but(entries=(LLAMA, LLAMA)), ["'general.architecture' stands in it twice"]),
        (GOOD.but(entries=(LLAMA, Entry("x", 77, b""))), ["'x' is of type 77"]),
        (GOOD.but(entries=(LLAMA, Entry("x", BOOLEAN, 9))), ["boolean of value 9"]),
        (GOOD.but(entries=(LLAMA, Entry("\x1b[2Jx", UINT32, 1))), [r"'\x1b[2Jx'", "no name"]),
        (GOOD.but(entries=(LLAMA, Entry("", UINT32, 1))), ["key ''"]),
        (GOOD.but(entries=(LLAMA, Entry(b"\xff", UINT32, 1))), ["no UTF-8"]),
        (GOOD.but(entries=(LLAMA, Entry("x", STRING, text("a", HUGE)))), [f"{HUGE} bytes long"]),
        (
            GOOD.but(entries=(LLAMA, Entry("x", ARRAY, struct.pack("<IQ", UINT32, HUGE)))),
            [f"'x' claims {HUGE} elements"],
        ),
        (
            GOOD.but(entries=(LLAMA, Entry("x", ARRAY, struct.pack("<IQ", STRING, 1 << 20)))),
            ["'x' claims 1048576 elements"],
        ),
        (
            GOOD.but(entries=(LLAMA, Entry("x", ARRAY, struct.pack("<IQ", ARRAY, 1)))),
            ["array of arrays"],
        ),
        (
            GOOD.but(entries=(LLAMA, Entry("x", ARRAY, struct.pack("<IQ", 40, 1)))),
            ["array of type 40"],
        ),
        (GOOD.but(entries=(LLAMA, Entry("split.count", UINT32, 4))), ["4 parts", "--merge"]),
        *(
            (GOOD.but(entries=(LLAMA, Entry("general.alignment", *bad))), ["general.alignment"])
            for bad in [(UINT32, 0), (UINT32, 48), (UINT32, 1 << 31), (STRING, "32"), (BOOLEAN, 1)]
        ),
        (GOOD.but(tensors=(Listed("a"), Listed("a", offset=128))), ["'a' stands in it twice"]),
        (GOOD.but(tensors=(Listed("a"), Listed("b", offset=96))), ["'a' and 'b'", "same bytes"]),
        (GOOD.but(tensors=(Listed("a", offset=8),)), ["no multiple of 32"]),
        (GOOD.but(tensors=(Listed("a", offset=HUGE),)), ["is cut off"]),
        (GOOD.but(data=200), ["of", "bytes", "'b' is cut off", "again"]),
        (GOOD.but(tensors=(Listed("a", (HUGE, HUGE)),)), [f"{HUGE} x {HUGE}"]),
        (GOOD.but(tensors=(Listed("a", (0,)),)), ["claims the sizes 0"]),
        (GOOD.but(tensors=(Listed("a", (33,), 8),)), ["rows of 33", "Q8_0 has blocks of 32"]),
        (GOOD.but(tensors=(Listed("a", kind=99),)), ["'a' is of type 99", "unknown", "Q4_K"]),
        (GOOD.but(tensors=(Listed("a", kind=4),)), ["type 4", "no longer"]),
        (GOOD.but(tensors=(Listed("a", ()),)), ["0 axes"]),
        (GOOD.but(tensors=(Listed("a", (1,), axes=1 << 31),)), [f"{1 << 31} axes"]),
        (GOOD.but(tensors=(Listed("a" * 64),)), ["64 bytes long"]),
        (GOOD.but(tensors=(Listed("../a\n"),)), [r"'../a\n'", "no name"]),
        (GOOD.but(tensors=(Listed("a\u202eb"),)), [r"'a\u202eb'", "no name"]),
    ],
)
def test_a_bad_header_is_refused_by_name(tmp_path, file, words):
    with pytest.raises(DriftwalkError) as caught:
        read(tmp_path, file)
    assert all(word in str(caught.value) for word in ["m.gguf", *words]), caught.value
    assert str(caught.value).isprintable()
    assert caught.value.exit_code == 3


def holds(header: Header) -> None:
    """What a reader promises of whatever it lets through."""
    size = header.path.stat().st_size
    spans = sorted((one.start, one.start + one.bytes) for one in header.tensors.values())
    assert all(0 < start < end <= size for start, end in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert all(name.isprintable() and name for name in [*header.tensors, *header.metadata])
    assert header.architecture


numbers = st.integers(0, 2**64 - 1) | st.integers(0, 300) | st.sampled_from([2**31, 2**32, 2**63])
names = st.text(max_size=6) | st.sampled_from(["a", "b", "blk.0.attn_q.weight", "\0", "../a"])
tensors = st.builds(
    Listed,
    names,
    st.lists(numbers, max_size=5),
    st.integers(0, 45) | st.integers(0, 2**32 - 1),
    numbers,
    st.none() | st.integers(0, 2**32 - 1),
)
values = st.one_of(
    st.tuples(st.just(UINT32), st.integers(0, 2**32 - 1)),
    st.tuples(st.just(STRING), st.text(max_size=8)),
    st.tuples(st.just(BOOLEAN), st.integers(0, 255)),
    st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=24)),
    st.tuples(
        st.just(ARRAY),
        st.builds(
            lambda kind, count, rest: struct.pack("<IQ", kind, count) + rest,
            st.integers(0, 14),
            numbers,
            st.binary(max_size=40),
        ),
    ),
)
keys = names | st.sampled_from(["general.alignment", "split.count", "general.architecture"])
entries = st.builds(lambda key, value: Entry(key, *value), keys, values)
files = st.builds(
    File,
    st.lists(entries, max_size=3).map(lambda some: (LLAMA, *some)),
    st.lists(tensors | st.sampled_from(GOOD.tensors), max_size=3).map(tuple),
    st.integers(0, 600),
    st.sampled_from([2, 3, 3, 3, 1, 3 << 24]),
    st.tuples(st.none() | numbers, st.none() | numbers) | st.just((None, None)),
)


@fuzz
@given(file=files)
def test_no_header_does_harm(tmp_path, file):
    with only_inside(tmp_path), contextlib.suppress(DriftwalkError):
        holds(read(tmp_path, file))


@fuzz
@given(data=st.data())
def test_no_change_of_a_good_file_does_harm(tmp_path, data):
    """Bytes changed, cut off or put in: closer to what could be believed than random ones."""
    entries = (LLAMA, Entry("x", ARRAY, struct.pack("<IQ2I", UINT32, 2, 1, 2)))
    raw = bytearray(GOOD.but(entries=entries).raw)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 257))
        what = data.draw(st.sampled_from(["change", "word", "cut", "put"]))
        if what == "change":
            raw[at] = data.draw(st.integers(0, 255))
        elif what == "word":
            raw[at : at + 8] = struct.pack("<Q", data.draw(numbers))
        elif what == "cut":
            del raw[at : at + data.draw(st.integers(1, 64))]
        else:
            raw[at:at] = data.draw(st.binary(max_size=16))
        if len(raw) < 300:
            break
    with only_inside(tmp_path), contextlib.suppress(DriftwalkError):
        holds(read(tmp_path, bytes(raw)))


@fuzz
@given(raw=st.binary(max_size=120))
def test_no_bytes_do_harm(tmp_path, raw):
    with only_inside(tmp_path), pytest.raises(DriftwalkError):
        read(tmp_path, b"GGUF\3\0\0\0" + raw if len(raw) % 2 else raw)
