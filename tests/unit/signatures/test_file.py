"""The file of a signature: nothing damaged is believed, nothing else is written over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from driftwalk import DriftwalkError, Signature, Trace
from driftwalk.signatures.data import digest_of, load_either
from unit.signatures.test_make import trace


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Signature.of(trace()).save(tmp_path / "a.signature.json")


def test_every_flipped_byte_and_every_cut_is_noticed(file: Path) -> None:
    whole = file.read_bytes()
    for place in range(0, len(whole) - 1, 23):
        flipped = bytearray(whole)
        flipped[place] ^= 0x01
        for data in (bytes(flipped), whole[:place]):
            file.write_bytes(data)
            try:
                loaded = Signature.load(file)
            except DriftwalkError as error:
                assert file.name in str(error)  # noqa: PT017 - named, whatever it was
                continue
            assert loaded == Signature.of(trace()), "only white space may have changed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "x" * 64}, "'embed' has no sha256"),
        ({"shape": [2, 4, -16]}, "negative size"),
        ({"counted": 10**15}, "more elements than its shape"),
        ({"nonfinite": 10**6}, "counts what cannot be"),
        ({"projections": [0.0] * 3}, "has not 64 projections"),
        ({"samples": []}, "has not 32 samples"),
        ({"samples": [1e30] * 32}, "sample beyond its extremes"),
        ({"quantiles": []}, "lacks quantiles"),
        ({"quantiles": [3.0, 1.0, 2.0, 3, 3, 3, 3, 3, 3]}, "out of order"),
        ({"unit": -1.0}, "negative size"),
        ({"unit": "inf"}, "not finite"),
        ({"projections": ["nan"] * 64}, "not finite"),
        ({"name": "layer.0"}, "one of them twice"),
    ],
)
def test_numbers_that_cannot_be_are_named(file: Path, change: dict, message: str) -> None:
    """Even where somebody made the digest anew."""
    data = json.loads(file.read_text("utf-8"))
    data["states"][0] |= change
    del data["digest"]
    file.write_text(json.dumps(data | {"digest": digest_of(data)}), "utf-8")
    with pytest.raises(DriftwalkError, match=message):
        Signature.load(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "has version 2"),
        ({"kind": "other"}, "is no signature"),
        ({"states": []}, "lists no points"),
        ({"inputs": {"other": [1]}}, "inputs that its probe does not"),
        ({"inputs": {"input_ids": [10**30] * 8, "attention_mask": [1] * 8}}, "inputs that cannot"),
        ({"inputs": {"input_ids": [0] * 8, "attention_mask": [1] * 8}}, "not those of its probe"),
        ({"seed": 1}, "its digest is not that of what it says"),
    ],
)
def test_what_a_signature_may_not_say(file: Path, change: dict, message: str) -> None:
    data = json.loads(file.read_text("utf-8")) | change
    told = data.pop("digest")
    data["digest"] = told if "seed" in change else digest_of(data)
    file.write_text(json.dumps(data), "utf-8")
    with pytest.raises(DriftwalkError, match=message):
        Signature.load(file)


def test_only_a_signature_is_written_over(file: Path, tmp_path: Path) -> None:
    Signature.of(trace(1)).save(file)
    assert Signature.load(file) == Signature.of(trace(1))
    (tmp_path / "thesis.txt").write_text("years of work")
    for path in (tmp_path / "thesis.txt", tmp_path):
        with pytest.raises(DriftwalkError, match="is no signature; nothing was written"):
            Signature.of(trace()).save(path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_either(file: Path, tmp_path: Path) -> None:
    assert isinstance(load_either(file), Signature)
    assert isinstance(load_either(trace().save(tmp_path / "a")), Trace)
    with pytest.raises(DriftwalkError, match="is no trace"):
        load_either(tmp_path / "nowhere")
    with pytest.raises(DriftwalkError, match="A signature has no states"):
        Trace.load(file)
