"""A sample of every model class of transformers: one class of every n-th architecture.

All of them: `tox -e zoo`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from zoo import every, run, table
from zoo.check import check
from zoo.shrinking import Shrink, shrunk

FIRST, EVERY = 5, 48
STEPS = ("probe", "self", "bf16", "fault")
PATIENCE = 5.0
LARGEST = 3_000_000
"""Parameters of a model in the sample; larger ones are left to the whole."""


@pytest.mark.parametrize("folder", every.folders()[FIRST::EVERY])
def test_a_class_passes_against_its_copy(folder: str) -> None:
    known = every.classes([folder])
    if not known:
        pytest.skip("has no model class")
    name = list(known)[len(known) // 2]
    row = check(name, known[name], ("probe",), patience=PATIENCE)
    if not row.get("probe") or row["parameters"] > LARGEST:
        pytest.skip(f"{name}: {row.get('reason', 'too large for a sample')}")
    row = check(name, known[name], STEPS, patience=PATIENCE)
    assert row["self"]["verdict"] == "pass", row["self"]
    assert row["bf16"]["verdict"] in ("pass", "unverified"), row["bf16"]
    if "effect" in row["fault"]:
        assert row["fault"]["verdict"] == "drift", row["fault"]
        assert row["fault"]["placed"], row["fault"]


MUST_RUN = ("bert.BertModel", "clip.CLIPModel", "llava.LlavaModel", "swin.SwinModel")


@pytest.mark.parametrize("name", MUST_RUN)
def test_what_is_skipped_above_is_not_everything(name: str) -> None:
    row = check(name, every.classes([name.partition(".")[0]])[name], ("probe",))
    assert row["probe"], row


def test_a_shrunk_config_keeps_ids_apart_and_inside_the_vocabulary() -> None:
    from transformers import BartConfig

    config = BartConfig(eos_token_id=50_000, bos_token_id=50_001, pad_token_id=50_000)
    small = shrunk(config, Shrink(8))
    assert small.vocab_size == 1000
    assert small.d_model == config.d_model // 8
    assert small.encoder_layers == 2
    assert small.eos_token_id == small.pad_token_id != small.bos_token_id
    assert {small.eos_token_id, small.bos_token_id} <= set(range(1000))
    assert config.vocab_size > 1000  # the one that was given stays as it was


class Hangs:
    """What the pool must live through: a class that cannot be built in any time."""

    def __getattr__(self, name: str) -> Any:
        time.sleep(600)


class Dies:
    def __getattr__(self, name: str) -> Any:
        import os

        os._exit(3)


def test_a_class_that_hangs_or_dies_loses_its_own_row_only() -> None:
    begun = time.monotonic()
    row = run.in_a_process("a.Hangs", Hangs(), ("probe",), 2.0)
    assert row == {"name": "a.Hangs", "died": "still running after 2 s"}
    assert time.monotonic() - begun < 300
    assert run.in_a_process("a.Dies", Dies(), ("probe",), 60.0)["died"].endswith("ended with 3")


def test_rows_are_read_again_and_written_as_a_page(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"name": "a.A", "built": false, "reason": "x | y"}\n{"name": "b.B", "bu')
    rows = run.read(path)
    assert list(rows) == ["a.A"]
    page = tmp_path / "zoo.md"
    for version in ("4.57.6", "5.22.2", "5.22.2"):
        table.write(page, table.page(list(rows.values()), version), version)
    text = page.read_text("utf-8")
    assert text.count("## transformers 5.22.2") == text.count("## transformers 4.57.6") == 1
    assert "| a.A | x \\| y |" in text


def test_reasons_are_told_apart() -> None:
    said = {
        "No default probe was found for X: given hidden_states [2, 16]": "no default probe",
        "The states captured from the blocks are not the model's own hidden_states": (
            "the captured states are not the model's hidden_states"
        ),
        "Backend torch gave point 'norm' twice in one run.": "a point twice in one run",
        "still running after 60 s": "out of time",
        "a new thing": "other",
    }
    assert {reason: table.group(reason) for reason in said} == said
