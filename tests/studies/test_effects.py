"""Propagation and patching in `verify`: asked for, told in every format, never the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import driftwalk
from cli.program import invoke
from driftwalk.effects import Carried, Patch, Patching, Propagation
from driftwalk.result import from_dict, to_json
from driftwalk_backends.demo import decoder
from driftwalk_reports import html, markdown, terminal
from driftwalk_reports.schema import load_schema
from driftwalk_reports.studies.effects import patching_sentence, propagation_sentence

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")


@pytest.fixture(scope="module")
def report() -> driftwalk.Report:
    broken: Any = decoder()
    with torch.no_grad():
        broken.transformer.h[3].mlp.c_proj.weight *= -8
    return driftwalk.verify(
        "demo:decoder", candidate=broken, probe="It is done.", propagation=True, patch=True
    )


def test_both_are_in_the_result(report: driftwalk.Report) -> None:
    assert report.patching is not None
    assert report.propagation is not None
    assert report.cause == report.patching.stops_at == report.propagation.source == "layer.3"
    assert report.outputs is not None
    assert report.patching.flips == report.outputs.flips
    assert [layer.point for layer in report.propagation.layers] == [
        layer.point.name for layer in report.layers
    ]
    for layer, row in zip(report.propagation.layers, report.layers, strict=True):
        assert row.blame is not None
        assert layer.measured == pytest.approx(row.blame.inherited, rel=1e-6, abs=1e-12)
        assert layer.introduced == pytest.approx(row.blame.introduced, rel=1e-6, abs=1e-12)


def test_the_file_fits_its_schema_and_comes_back(report: driftwalk.Report) -> None:
    data = json.loads(to_json(report))
    jsonschema.Draft202012Validator(load_schema()).validate(data)
    again = from_dict(data)
    assert again.patching == report.patching
    assert again.propagation == report.propagation


def test_every_format_tells_them(report: driftwalk.Report) -> None:
    for text in (html.render(report), markdown.render(report), terminal.render(report)):
        words = " ".join(text.split())
        assert "decisions flipped; restoring layer.3 brings all of them back" in words
        assert "no longer small" in words
    page = html.render(report)
    assert "Where errors stop mattering" in page
    assert page.count('id="page-carried"') == page.count('id="page-restored"') == 1


def test_neither_is_there_unless_asked_for() -> None:
    report = driftwalk.verify("demo:decoder", candidate="torch", probe="It is done.")
    assert report.propagation is None
    assert report.patching is None
    assert not {"propagation", "patching"} & json.loads(to_json(report)).keys()
    assert "page-carried" not in html.render(report)


def test_on_the_command_line(tmp_path: Path) -> None:
    flags = ("--propagation", "--patch")
    done = invoke("verify", "demo:decoder", "-c", "emulated:fp16", "-p", "It is done.", *flags)
    assert done.code == 0, done.err
    assert "The drift behaves as small errors do" in done.out
    assert "No decision of 12 flipped" in done.out


def test_a_candidate_that_takes_no_state_in_gets_a_note(tmp_path: Path) -> None:
    golden = tmp_path / "golden.trace"
    driftwalk.record("demo:decoder", probe="It is done.").save(golden)
    report = driftwalk.verify(
        "demo:decoder", candidate=f"trace:{golden}", propagation=True, patch=True
    )
    assert report.ok
    assert report.patching is None
    assert any("cannot be run from a state in the middle" in note for note in report.notes)
    assert report.propagation is not None  # states are enough for that


def carried(*rows: tuple[float, float, float, float], source: str = "") -> Propagation:
    layers = (Carried(f"layer.{i}", *row[:3], row[1], row[3], 1.0) for i, row in enumerate(rows))
    return Propagation(source, tuple(layers), 1.5)


def test_what_is_said_of_propagation() -> None:
    nothing, fine = (0.0, 0.0, 0.0, 0.0), (1.0, 1.02, 0.03, 0.0)
    assert "no drift to carry. It took 1.5 s" in propagation_sentence(carried(nothing))
    assert "within 2 %." in propagation_sentence(carried(nothing, fine))
    most = propagation_sentence(carried(fine, (1.0, 1.0, 0.0, 0.9), source="layer.0"))
    assert "Most of it comes from layer.0." in most
    added = propagation_sentence(carried(fine, (4.0, 4.0, 0.0, 1.0), source="layer.0"))
    assert "From layer.1 on later layers add their own: what layer.0 introduced explains 1" in added
    wild = propagation_sentence(carried(fine, (1.0, 3.0, 2.0, 3.0)))
    assert "From layer.1 on the drift is no longer small" in wild
    assert "3 times" in wild
    broken = propagation_sentence(carried(fine, (float("inf"), 3.0, 2.0, 3.0)))
    assert "cannot be told from layer.1 on" in broken


def test_what_is_said_of_patching() -> None:
    patches = (Patch("layer.0", 2), Patch("layer.1", 0))
    assert "restoring layer.1 brings all" in patching_sentence(Patching(9, 2, patches, 1.0))
    assert "3 runs, 1 s." in patching_sentence(Patching(9, 2, patches, 1.0))
    assert "nothing to restore" in patching_sentence(Patching(9, 0, (), 1.0))
    never = Patching(9, 2, patches[:1], 1.0)
    assert "no single restored layer" in patching_sentence(never)
