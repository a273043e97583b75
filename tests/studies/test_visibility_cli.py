"""The command `visibility`: what it prints, writes and ends with."""

from __future__ import annotations

import json
from pathlib import Path

from cli.program import invoke
from driftwalk.document import load
from driftwalk.tasks.studies.results import Visibility

ASKED = ("demo:decoder", "--text", "It is done.", "--layer", "3", "--position", "4")


def test_text_and_files(tmp_path: Path) -> None:
    done = invoke("visibility", *ASKED, "--directions", "2", "-o", str(tmp_path / "out"))
    assert done.code == 0, done.err
    assert "layer.3 at token 4 “i” sees 20 of 48 earlier states" in done.out
    assert "outside the cone every derivative is exactly zero" in done.out
    lines = [line.split() for line in done.out.splitlines()]
    shades = {words[0]: words[1] for words in lines if len(words) == 2}
    assert shades["layer.3"] == "····◆·······"
    assert shades["layer.5"][:4] == "····"
    assert "·" not in shades["layer.5"][4:]
    assert shades["embed"][5:] == "·······"
    assert "·" not in shades["embed"][:5]
    found = load(tmp_path / "out" / "visibility.json")
    assert isinstance(found, Visibility)
    assert (found.point, found.position, found.directions) == ("layer.3", 4, 2)
    assert found.command.startswith("driftwalk")
    page = (tmp_path / "out" / "visibility.html").read_text("utf-8")
    assert "The cone of a state" in page
    assert "http:" not in page.replace("http://www.w3.org", "")


def test_json_alone() -> None:
    done = invoke("visibility", "demo:encoder", "--ids", "5 7 9", "--directions", "1", "--json")
    assert done.code == 0, done.err
    data = json.loads(done.out)
    assert data["kind"] == "visibility"
    assert data["causal"] is False
    assert data["leak"]["pairs"] > 0
    assert data["error"] is None


def test_an_encoder_that_should_be_causal_fails() -> None:
    done = invoke("visibility", "demo:encoder", "--ids", "5 7 9", "--directions", "1", "--causal")
    assert done.code == 1
    assert "FAILED: the model is causal, but" in done.out
    assert "look ahead" in done.err


def test_bad_input_is_refused() -> None:
    invoke("visibility", *ASKED, "--ids", "5 7").refused(2, "Give one of")
    invoke("visibility", *ASKED, "--layer", "9").refused(2, "no layer '9'")
    invoke("visibility", *ASKED, "-b", "trace:nowhere").refused(2, "nowhere")
