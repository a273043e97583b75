"""The command `bench`: files, exit codes, bad input, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from cli.program import environment, invoke
from processes import PATIENCE, alive, children, eventually, started

QUICK = ("--rounds", "2", "--warmup", "0", "--threads", "1", "--no-layers")


def test_it_prints_saves_and_says_where(here: Path) -> None:
    done = invoke(
        *("bench", "demo:decoder", "-b", "torch", "-b", "torch:cpu:fp64", "--in-process"),
        *("--batch", "1,2", "--length", "8", *QUICK, "--report", "out"),
    )
    assert done.code == 0, done.err
    assert "1 x 8" in done.out
    assert "2 x 8" in done.out
    assert done.out.rstrip().splitlines()[-1].startswith("BENCH: ")
    assert "bench.html" in done.err
    names = sorted(path.name for path in (here / "out").iterdir())
    assert names == ["bench.html", "bench.json", "bench.md", "pytest-benchmark.json"]
    stored = json.loads((here / "out" / "bench.json").read_text())
    assert [len(e["bench"]["samples"]) for e in stored["cases"][1]["entries"]] == [2, 2]
    assert stored["cases"][0]["entries"][1]["ratio"]["word"] == "undecided"


def test_json_is_alone(here: Path) -> None:
    done = invoke("bench", "demo:decoder", "-b", "torch", "--in-process", *QUICK, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["complete"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--batch", "1,x"), ("--batch", "whole numbers")),
        (("--length", "0"), ("--length", "whole numbers")),
        (("--fail-on", "drift"), ("--fail-on", "slower")),
        (("-b", "torhc"), ("Unknown backend", "torch")),
        (("--prompt", "x", "--batch", "2"), ("shape the default probe",)),
        (("--prompt", "x", "--probe", "y"), ("--prompt", "--probe")),
    ],
)
def test_bad_input(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    invoke("bench", "demo:decoder", *arguments).refused(2, *words)


def test_verify_takes_timings_along(here: Path) -> None:
    tiny = ("verify", "cli.factories:Tiny", "-c", "torch:cpu:fp64")  # two processes without more
    done = invoke(*tiny, "--bench", "--report", "out")
    assert done.code == 0, done.err
    stored = json.loads((here / "out" / "result.json").read_text())
    assert {side: len(b["samples"]) for side, b in stored["benchmarks"].items()} == {
        "reference": 15,
        "candidate": 15,
    }
    assert "How long one run of the model takes" in (here / "out" / "report.html").read_text()


COUNTED = """
from cli.factories import Tiny

def make():
    model = Tiny()
    model.register_forward_hook(lambda *_: open("ran", "a").write("."))
    return model
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_keeps_and_reports_the_samples(here: Path) -> None:
    (here / "counted.py").write_text(COUNTED)
    ran = here / "ran"
    words = [
        *(sys.executable, "-m", "driftwalk", "bench", "counted:make", "-b", "torch"),
        *("--rounds", "100000", "--threads", "1", "--no-layers", "--report", "out", "--json"),
    ]
    with started(words, env=environment()) as process:
        assert eventually(lambda: ran.is_file() and ran.stat().st_size > 12)
        worker = children(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert eventually(lambda: not any(map(alive, worker)))
    assert process.returncode == 130, err
    stored = json.loads(out)
    assert stored["complete"] is False
    assert len(stored["cases"][0]["entries"][0]["bench"]["samples"]) > 3
    assert (here / "out" / "bench.json").is_file()


def test_a_spilled_reference_gives_the_same_result(here: Path) -> None:
    kept, spilled = (
        invoke("verify", "demo:decoder", "-c", "emulated:bf16", *more, "--json")
        for more in ((), ("--spill",))
    )
    assert kept.code == spilled.code == 0, kept.err + spilled.err
    one, other = (json.loads(done.out)["layers"] for done in (kept, spilled))
    assert one == other
