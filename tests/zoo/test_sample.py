"""A sample of every model class of transformers: one class of every n-th architecture.

All of them: `tox -e zoo`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from zoo import every, run, table
from zoo.check import check
from zoo.shrinking import MOST, Shrink, shrunk

FIRST, EVERY = 5, 48
STEPS = ("probe", "self", "bf16", "fault")
PATIENCE = 5.0
LARGEST = 3_000_000
"""Parameters of a model in the sample; larger ones are left to the whole."""
SIDE = 128
"""Pixels of an image's side in the sample; the whole has larger ones."""


@pytest.mark.parametrize("folder", every.folders()[FIRST::EVERY])
def test_a_class_passes_against_its_copy(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MOST, "image", SIDE)
    known = every.classes([folder])
    if not known:
        pytest.skip("has no model class")
    name = list(known)[len(known) // 2]
    row = check(name, known[name], STEPS, patience=PATIENCE, largest=LARGEST)
    if not row.get("probe") or row["parameters"] > LARGEST:
        pytest.skip(f"{name}: {row.get('reason', 'too large for a sample')}")
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


def test_widths_of_a_list_are_divided_together_or_not_at_all() -> None:
    config = PretrainedConfig()
    config.stem_channels, config.widths = [3, 48, 96], [16, 64, 128]
    config.sizes = [24, 50, 64]
    config.patch_embeds_hidden_size, config.patch_size = 96, 16
    config.moe_intermediate_size = 1407
    small = shrunk(config, Shrink(8))
    assert (small.stem_channels, small.widths) == ([3, 6, 12], [2, 8, 16])
    assert small.sizes == [24, 50, 64]
    assert (small.patch_embeds_hidden_size, small.patch_size) == (12, 16)
    assert small.moe_intermediate_size == 176
    assert shrunk(config, Shrink(8, deep=True)).widths == [16, 64, 128]


class Windowed(PreTrainedModel):
    """A class whose own default config lacks what it needs."""

    config_class = PretrainedConfig

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.table = nn.Embedding(9, 4)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        raise ValueError("the config states no window for 12 heads")


class Seeing(Windowed):
    def forward(
        self, input_ids: torch.Tensor, pixel_values: torch.Tensor | None = None
    ) -> torch.Tensor:
        if pixel_values is None:
            raise ValueError("pixel_values must be given")
        return self.table(input_ids)


class Working(Windowed):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.table(input_ids)


def test_what_its_own_config_cannot_run_is_told_from_what_lacks_an_input() -> None:
    said = {kind: every.own_failure(kind, kind(PretrainedConfig())) for kind in (Windowed, Seeing)}
    assert said == {Windowed: "ValueError: the config states no window for 12 heads", Seeing: ""}
    assert every.own_failure(Working, Working(PretrainedConfig())) == ""
    assert every.own_failure(Windowed, Working(PretrainedConfig())) == ""


def test_what_its_own_config_cannot_run_is_no_missing_probe() -> None:
    rows = [
        {"name": "a.A", "built": True, "probe": True, "self": {"verdict": "pass"}},
        {"name": "b.B", "built": True, "probe": False, "reason": "no guess", "own": "no window"},
    ]
    page = table.page(rows, "5")
    assert "default probe | 1 | 100.0 % of 1 |" in page
    assert "not run by transformers with their own default config | 1 |" in page
    assert "| b.B | no window |" in page
