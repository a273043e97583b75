"""Weights in mapped files: which come next, and which are let go; advice, and no number changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import driftwalk
import zoo
from driftwalk.native import library
from driftwalk_backends import lending, reading
from driftwalk_backends.reading import Piece, Reading
from driftwalk_backends.sources import open_model

linux = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
SIZE = 100
NEED, OUT = reading._WILL_NEED, reading._PAGE_OUT


class Told(Reading):
    """What the system would be told, of weights of 100 bytes each."""

    def __init__(self, count: int, stay: int) -> None:
        super().__init__([])
        self._pieces = [Piece(SIZE * i, SIZE, i < stay) for i in range(count)]
        self._starts, self._order = [SIZE * i for i in range(count)], list(range(count))
        self.told: list[tuple[str, int]] = []

    def _tell(self, index: int, what: int) -> None:
        self.told.append(("need" if what == NEED else "out", index))

    def after(self, *indices: int) -> list[tuple[str, int]]:
        self.told = []
        for index in indices:
            self.meet(SIZE * index + 7)
        return self.told


@pytest.fixture(autouse=True)
def two_ahead(monkeypatch):
    monkeypatch.setattr(reading, "AHEAD", 2 * SIZE)


def test_what_follows_is_asked_for_once_and_what_does_not_fit_is_let_go():
    one = Told(6, stay=3)
    assert one.after(0) == [("need", 1), ("need", 2)]
    assert one.after(1, 1, 2) == [("need", 3), ("need", 4)]
    assert one.after(3) == [("need", 5)]
    assert one.after(4, 5) == [("out", 3), ("out", 4)]


def test_the_next_run_begins_with_what_stayed():
    one = Told(6, stay=3)
    one.after(*range(6))
    assert one.after(0) == [("out", 5), ("need", 1), ("need", 2)]


def test_a_block_in_another_order_is_not_the_next_run():
    one = Told(6, stay=3)
    one.after(0, 3)
    assert one.after(2, 1) == []


def test_other_memory_is_nothing_to_it():
    one = Told(6, stay=3)
    one.meet(6 * SIZE)
    one.meet(-5)
    assert one.told == []


@given(st.lists(st.integers(0, 9)), st.integers(0, 10))
def test_nothing_that_stays_or_is_in_use_is_let_go(order, stay):
    one = Told(10, stay)
    for index in order:
        told = one.after(index)
        assert ("out", index) not in told
        assert all(at >= stay for what, at in told if what == "out")


@linux
def test_pieces_are_those_of_mapped_files_in_the_order_of_the_weights(tmp_path):
    from safetensors import safe_open

    save_file({"a": torch.ones(64), "b": torch.ones(32)}, tmp_path / "x.safetensors")
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        a, b = file.get_tensor("a"), file.get_tensor("b")
    pieces = reading.in_order([b, torch.ones(8), a, b], room=200)
    assert [(p.start, p.size, p.stays) for p in pieces] == [
        (b.data_ptr(), 128, True),
        (a.data_ptr(), 256, False),
    ]
    assert reading.free_memory() > 0


@linux
def test_a_folder_is_read_ahead_and_judged_the_same(tmp_path, monkeypatch):
    zoo.build("llama").bfloat16().save_pretrained(tmp_path)
    monkeypatch.setattr(lending, "LARGE", 0)
    monkeypatch.setattr(lending, "SMALLEST", 2)
    told = []
    plain = Reading._tell
    monkeypatch.setattr(
        Reading, "_tell", lambda self, at, what: (told.append(what), plain(self, at, what))
    )
    monkeypatch.setattr(reading, "SHARE", 1.0)
    all_stays = driftwalk.verify(str(tmp_path), "emulated:bf16", cache=False)
    assert set(told) == {NEED}
    monkeypatch.setattr(reading, "SHARE", 0.0)
    none_stays = driftwalk.verify(str(tmp_path), "emulated:bf16", cache=False)
    assert set(told) == {NEED, OUT}
    assert all_stays.verdict == none_stays.verdict == "pass"
    assert all_stays.layers == none_stays.layers
    assert not reading._readings


def test_a_model_that_is_gone_is_not_read(tmp_path, monkeypatch):
    zoo.build("llama").bfloat16().save_pretrained(tmp_path)
    monkeypatch.setattr(lending, "LARGE", 0)
    model = open_model(tmp_path)
    model.at("fp64", "cpu", lend="large")
    assert len(reading._readings) == Path("/proc/self/maps").exists()
    del model
    assert not reading._readings


CUT = """
import sys, os
from driftwalk_backends import lending
lending.LARGE = 0
from driftwalk_backends.sources import open_model
model = open_model(sys.argv[1])
model.at("fp64", "cpu", lend="large")
os.truncate(sys.argv[1] + "/model.safetensors", 4096)
print(sum(float(weight.double().sum()) for weight in model.module.parameters()))
"""


@pytest.mark.skipif(library() is None, reason="needs the compiled part")
def test_a_file_that_is_cut_off_while_it_is_read_is_told(tmp_path):
    zoo.build("llama").bfloat16().save_pretrained(tmp_path)
    command = [sys.executable, "-c", CUT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 3, done.stderr
    assert "was cut off while its weights were read" in done.stderr
    assert done.stdout == ""


@linux
def test_a_weight_that_was_changed_in_place_stays_changed(tmp_path):
    from safetensors import safe_open

    save_file({"a": torch.ones(1 << 18)}, tmp_path / "x.safetensors")
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        weight = file.get_tensor("a")
    weight.mul_(3)
    queue = reading.SimpleQueue()
    for advice in (OUT, NEED):
        queue.put((weight.data_ptr(), weight.nbytes, advice))
    queue.put(None)
    reading._advise(queue)
    assert (weight == 3).all()
