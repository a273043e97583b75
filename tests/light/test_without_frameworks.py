"""Without torch, transformers, onnxruntime: results are rendered, the rest says what it lacks."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from light.program import BARE, HEAVY, RESULTS, ROOT, driftwalk, python

FILES = ["junit.xml", "layers.csv", "report.html", "result.json", "summary.md"]


def test_there_are_results_to_render() -> None:
    assert [path.stem for path in RESULTS] == ["drift", "nan", "pass"]


@pytest.mark.parametrize("name", HEAVY)
def test_the_frameworks_cannot_be_imported(name: str) -> None:
    done = python(f"import {name}")
    assert done.code == 1
    assert "ModuleNotFoundError" in done.err


@pytest.mark.skipif(not BARE, reason="only `tox -e light` has an environment without them")
def test_they_are_not_installed_and_driftwalk_is() -> None:
    look = f"import importlib.util as u; print([n for n in {HEAVY!r} if u.find_spec(n)])"
    assert python(look).out.strip() == "[]"
    where = python("import driftwalk, sys; print(driftwalk.__file__, sys.prefix)").out.split()
    assert Path(where[0]).is_relative_to(where[1]), "the built wheel, not the checkout"


@pytest.mark.parametrize("result", RESULTS, ids=lambda path: path.stem)
def test_every_format(result: Path, tmp_path: Path) -> None:
    done = driftwalk("report", str(result), "-o", str(tmp_path / "out"))
    assert done.code == 0, done.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
    stored = json.loads(result.read_text("utf-8"))
    texts = {name: (tmp_path / "out" / name).read_text("utf-8") for name in FILES}
    names = [layer["point"] for layer in stored["layers"]]
    assert [row["point"] for row in csv.DictReader(texts["layers.csv"].splitlines())] == names
    suite = ET.fromstring(texts["junit.xml"].encode())
    assert {case.attrib["name"] for case in suite.iter("testcase")} >= set(names)
    assert json.loads(texts["result.json"])["verdict"] == stored["verdict"]
    word = {"pass": "PASS", "drift": "DRIFT"}[stored["verdict"]]
    for name in ("report.html", "summary.md", "junit.xml"):
        assert f"{word}: " in texts[name], name


def test_several_results_and_some_formats(tmp_path: Path) -> None:
    folder = str(tmp_path / "out")
    done = driftwalk("report", *map(str, RESULTS), "-o", folder, "--format", "html,csv")
    assert done.code == 0, done.err
    assert (tmp_path / "out" / "index.html").is_file()
    assert len(list((tmp_path / "out").glob("*/report.html"))) == 3
    assert not list((tmp_path / "out").glob("*/result.json"))


@pytest.mark.parametrize("result", RESULTS, ids=lambda path: path.stem)
def test_the_terminal_report(result: Path) -> None:
    code = (
        "import sys, driftwalk; from driftwalk_reports.terminal import render;"
        "sys.stdout.write(render(driftwalk.load(sys.argv[1])))"
    )
    done = python(code, str(result))
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1][2:].startswith(("PASS: ", "DRIFT: "))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["verify", "--help"]])
def test_help(arguments: list[str]) -> None:
    done = driftwalk(*arguments)
    assert done.code == 0
    assert "driftwalk" in done.out


def test_backends_says_why_nothing_that_runs_a_model_is_usable() -> None:
    done = driftwalk("backends", "--json")
    assert done.code == 0, done.err
    found = {row["spec"].partition(":")[0]: row for row in json.loads(done.out)}
    assert {"torch", "onnxruntime", "emulated"} <= found.keys()
    assert all(found.pop(name)["usable"] for name in ("trace", "command"))
    assert not any(row["usable"] for row in found.values())
    named = ("torch", "onnx", "openvino")
    assert all(any(name in row["note"] for name in named) for row in found.values())


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "demo:decoder"],
        ["verify", "demo:decoder", "-c", "torch"],
        ["verify", "some/model", "-c", "emulated:fp16"],
        ["verify", "model.onnx", "-c", "onnxruntime"],
        ["demo"],
        ["demo", "--fault", "3"],
        ["selftest", "demo:decoder"],
    ],
    ids=" ".join,
)
def test_what_needs_a_framework_names_it(arguments: list[str], tmp_path: Path) -> None:
    """Exit code 3: could not verify."""
    done = driftwalk(*arguments, cwd=tmp_path)
    assert done.code == 3, done.err
    assert done.out == ""
    assert done.err.startswith("driftwalk: ")
    assert "torch" in done.err or "onnx" in done.err or "transformers" in done.err
    assert "install" in done.err or "driftwalk backends" in done.err


RECORD = """
import sys
import numpy as np
from driftwalk import BackendInfo, Point, Probe, State, Trace

for name, shift in (("a", 0), ("b", float(sys.argv[1]))):
    states = [State(Point(f"layer.{n}"), np.full((1, 2, 4), n + 1.0 + shift)) for n in range(3)]
    probe = Probe({"input_ids": np.zeros((1, 2), np.int64)})
    Trace(tuple(states), probe, BackendInfo(name, name, "cpu", "fp64")).save(name)
"""


@pytest.mark.parametrize(("shift", "code"), [("1e-12", 0), ("1e-3", 1)])
def test_traces_are_written_and_compared(tmp_path: Path, shift: str, code: int) -> None:
    made = python(RECORD, shift, cwd=tmp_path)
    assert made.code == 0, made.err
    done = driftwalk("compare", "a", "b", cwd=tmp_path)
    assert done.code == code, done.err
    assert ("PASS" if code == 0 else "DRIFT") in done.out


GOLDEN = ROOT / "tests" / "data" / "traces"
SIGN = """
import sys
from driftwalk import Signature, Trace

Signature.of(Trace.load(sys.argv[1])).save("made.signature.json")
"""


def test_a_trace_is_signed_and_compared_with_its_signature(tmp_path: Path) -> None:
    """Byte for byte what another kind of machine made of it; both were recorded on aarch64."""
    trace, signature = GOLDEN / "gpt2-aarch64.trace", GOLDEN / "gpt2-aarch64.signature.json"
    made = python(SIGN, str(trace), cwd=tmp_path)
    assert made.code == 0, made.err
    assert (tmp_path / "made.signature.json").read_bytes() == signature.read_bytes()
    for pair in (
        (trace, signature),
        (signature, trace),
        (signature, tmp_path / "made.signature.json"),
    ):
        done = driftwalk("compare", *map(str, pair))
        assert done.code == 0, done.err
        assert "agree exactly" in done.out
        assert "bounds, not measurements" in done.out


@pytest.mark.parametrize(("shift", "code"), [("1e-12", 0), ("1e-7", 3), ("1e-3", 1)])
def test_a_signature_gives_bounds(tmp_path: Path, shift: str, code: int) -> None:
    assert python(RECORD, shift, cwd=tmp_path).code == 0
    assert python(SIGN, "a", cwd=tmp_path).code == 0
    done = driftwalk("compare", "made.signature.json", "b", "--report", "out", cwd=tmp_path)
    assert done.code == code, done.err
    assert {0: "PASS", 1: "DRIFT", 3: "UNVERIFIED"}[code] in done.out
    assert (tmp_path / "out" / "report.html").is_file()


def test_names_are_mapped(tmp_path: Path) -> None:
    assert python(RECORD, "0", cwd=tmp_path).code == 0
    (tmp_path / "map.toml").write_text('[points]\n"layer.{i}" = "block.{i}"\n', "utf-8")
    done = driftwalk("compare", "a", "b", "--map", "map.toml", "--json", cwd=tmp_path)
    assert done.code in (1, 3)
    assert "block.2" in json.loads(done.out)["coverage"]["extra"]
