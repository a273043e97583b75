"""A port's names mapped to points: what is not clear is refused, by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driftwalk import DriftwalkError
from driftwalk.states import Point, State, Trace
from driftwalk.traces.point_map import load_map
from unit.signatures.test_make import trace


def ported(*names: str) -> Trace:
    made = trace()
    states = tuple(State(Point(name), made["embed"]) for name in names)
    return replace(made, states=states)


def mapped(tmp_path, text: str, *names: str) -> tuple[str, ...]:
    (tmp_path / "map.toml").write_text(text, "utf-8")
    return load_map(tmp_path / "map.toml").renamed(ported(*names)).names


GPT = '[points]\n"wte" = "embed"\n"h.{i}.out" = "layer.{i}"\n"h.{i}.*" = ""\n"head" = "logits"\n'


def test_captures_globs_and_what_is_left_out(tmp_path):
    text = GPT.replace('"h.{i}.*"', '"debug.*"')
    names = ("wte", "h.0.out", "debug.a.b", "h.11.out", "head")
    assert mapped(tmp_path, text, *names) == ("embed", "layer.0", "layer.11", "logits")


def test_two_captures_and_odd_letters(tmp_path):
    text = '[points]\n"enc[{a}]/{b}" = "{b}.layer.{a}"\n"+.x" = "embed"\n'
    assert mapped(tmp_path, text, "enc[3]/encoder", "+.x") == ("encoder.layer.3", "embed")


def test_a_capture_is_one_part_of_a_name(tmp_path):
    text = '[points]\n"h.{i}" = "layer.{i}"\n"h.{i}.{part}" = "layer.{i}.{part}"\n'
    assert mapped(tmp_path, text, "h.0", "h.0.mlp") == ("layer.0", "layer.0.mlp")
    with pytest.raises(DriftwalkError, match=r"no line matches the state 'h\.0\.mlp\.act'"):
        mapped(tmp_path, text, "h.0.mlp.act")


def test_the_states_keep_their_own_names_as_modules(tmp_path):
    (tmp_path / "map.toml").write_text(GPT, "utf-8")
    (state,) = load_map(tmp_path / "map.toml").renamed(ported("wte")).states
    assert (state.point.module, state.point.found) == ("wte", "map")


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        (
            GPT,
            ("wte", "h.0.out"),
            r"'h\.0\.out' is ambiguous: .* makes it 'layer\.0'.* makes it ''",
        ),
        (GPT, ("wte", "other"), "no line matches the state 'other'"),
        ('[points]\na = "x"\nb = "x"', ("a", "b"), "'a' and 'b' both become 'x'"),
        ('[points]\n"*" = ""', ("a",), "nothing is left"),
        ('[points]\nh.0 = "layer.0"', ("a",), "names with a dot stand in quotes"),
        ("[points]\na = 3", ("a",), "a point is a text"),
        ('[points]\n"{i}" = "layer.{j}"', ("a",), "uses 'j', which '{i}' does not capture"),
        ('[points]\n"*" = "layer.*"', ("a",), r"uses '\*', which"),
        ('[points]\n"{i}{i}" = "a"', ("a",), "stands twice"),
        ('[points]\n"{1}" = "a"', ("a",), "is no name"),
        ('[points]\n"{i" = "a"', ("a",), "a capture is {name}"),
        ("[points]", ("a",), "maps nothing"),
        ('[point]\na = "b"', ("a",), "unknown key 'point'"),
        ("a = [", ("a",), "is not TOML"),
        ("\ud800", ("a",), "is not TOML"),
    ],
)
def test_mistakes_are_named(tmp_path, text, names, message):
    (tmp_path / "map.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(DriftwalkError, match=message):
        load_map(tmp_path / "map.toml").renamed(ported(*names))


def test_a_map_that_is_not_there():
    with pytest.raises(DriftwalkError, match="Cannot read 'nowhere"):
        load_map("nowhere.toml")
