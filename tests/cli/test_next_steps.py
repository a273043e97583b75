"""What to run next: every command that a report prints is run as printed, for each kind of run."""

from __future__ import annotations

import html
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import driftwalk
from cli.factories import LAYERS, Tiny
from cli.program import Outcome, environment, invoke
from nets import residual, spoilt, weights

TINY = "cli.factories:Tiny"
HALF = ("verify", TINY, "-c", "emulated:bf16")
TIGHT = ("--policy", "fixed:1e-6")

PORT = """
import sys
import driftwalk
from cli.factories import Tiny

model = Tiny()
model.blocks[1].linear.weight.data[3, 5] += 0.5
driftwalk.backend("torch", model).trace(driftwalk.Probe.load(sys.argv[1])).save(sys.argv[2])
"""
CONFIG = """
policy = "fixed:1e-6"
[[models]]
model = "cli.factories:Tiny"
name = "tiny [half]"
candidates = ["emulated:bf16"]
"""
EXPECTED = """
[[expected]]
point = "*"
metric = "max_abs"
bound = 1e-5
reason = "half precision"
expires = 2999-01-01
"""


def run(words: Sequence[str]) -> Outcome:
    """The command in this process, as if it were typed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["driftwalk", *words])
        return invoke(*words)


def printed(folder: Path) -> dict[str, str]:
    """Every command on the pages below a folder and in their summaries: what it is said to do."""
    found = {}
    for page in sorted(folder.rglob("report.html")):
        step = re.compile(r"<li>([^<]*)<span class=\"command\"><code>(.*?)</code>", re.DOTALL)
        for text, command in step.findall(page.read_text("utf-8")):
            found[html.unescape(command)] = html.unescape(text)
    for page in sorted(folder.rglob("summary.md")):
        lines = page.read_text("utf-8").splitlines()
        shown = [after for fence, after in pairwise(lines) if fence == "```sh"]
        assert {*shown} <= {*found}, "the summary has a command that the page has not"
    return found


@pytest.fixture(autouse=True)
def things(here: Path) -> None:
    (here / "port.py").write_text(PORT)
    (here / "driftwalk.toml").write_text(CONFIG)
    (here / "expected.toml").write_text(EXPECTED)
    (here / "rows.txt").write_text("1 2 3\n4 5 6\n")
    residual(here / "a.onnx")
    residual(here / "b, 2.onnx", spoilt(weights(), "w1"))
    ids = np.arange(8).reshape(2, 4)
    np.savez(here / "p.npz", input_ids=ids)
    np.save(here / "ids.npy", ids)


KINDS: dict[str, tuple[tuple[str, ...], int, bool, str]] = {
    # what is typed, its exit code, whether it can be allowed, the finer depth
    "pass": (("verify", TINY, "-c", "torch"), 0, False, ""),
    "fixed": ((*HALF, *TIGHT), 1, True, "module"),
    "a rule of one's own": ((*HALF, *TIGHT, "--rule=layer.*=1e-6"), 1, True, "module"),
    "the table": (("verify", TINY, "-c", "emulated:fp8", "--policy", "dtype"), 0, False, ""),
    "modules": ((*HALF, *TIGHT, "--depth=module"), 1, True, ""),
    "sublayers": ((*HALF, *TIGHT, "--depth", "sublayer"), 1, True, "module"),
    "two graphs": (("verify", "a.onnx", "-c", 'onnxruntime,file="b, 2.onnx"'), 1, True, "op"),
    "nodes": (
        ("verify", "a.onnx", "-c", 'onnxruntime,file="b, 2.onnx"', "--depth", "op"),
        *(1, True, ""),
    ),
    "several": ((*HALF, "-c", "torch", "-c", "emulated:fp16", *TIGHT), 1, True, "module"),
    "a file": ((*HALF, *TIGHT, "--probe", "p.npz"), 1, True, "module"),
    "an input": ((*HALF, *TIGHT, "--input", "input_ids=ids.npy"), 1, True, "module"),
    "ids": ((*HALF, *TIGHT, "--ids", "1 2 3"), 1, True, "module"),
    "rows of ids": ((*HALF, *TIGHT, "--ids", "@rows.txt"), 1, True, "module"),
    "nan": (("verify", "cli.factories:with_nan", "-c", "torch"), 3, False, ""),
    "overflow": (
        ("verify", "cli.factories:too_large_for_fp16", "-c", "emulated:fp16"),
        *(1, False, "module"),
    ),
    "a configuration": (("verify",), 1, False, ""),
    "one of a configuration": (
        ("verify", "--config", "driftwalk.toml", "--only", "tiny*"),
        *(1, False, ""),
    ),
    "known deviations": ((*HALF, *TIGHT, "--expected", "expected.toml"), 1, False, "module"),
    "demo": (("demo", "--fault", "3"), 1, False, ""),
}


@pytest.mark.parametrize(("typed", "code", "allowed", "finer"), KINDS.values(), ids=KINDS)
def test_every_command_works(typed: tuple[str, ...], code: int, allowed: bool, finer: str) -> None:
    check(typed, code, allowed, finer)


def check(typed: Sequence[str], code: int, allowed: bool, finer: str) -> None:
    """Each step does what it says: the same again, a closer look, a run that passes."""
    done = run([*typed, "--report", "out"])
    assert done.code == code, done.err
    commands = printed(Path("out"))
    again = [c for c, text in commands.items() if text == "Run it again"]
    deeper = [c for c, text in commands.items() if text.startswith("Look inside")]
    meant = [c for c, text in commands.items() if text.startswith("If this difference is meant")]
    small = [c for c, text in commands.items() if text.startswith("Shrink it")]
    causes = [c for c, text in commands.items() if text == "Find which optimisation causes it"]
    assert {*again, *deeper, *meant, *causes, *small} == {*commands}, (
        "a kind of step that this test does not know"
    )
    assert again
    assert all("\n```sh\ndriftwalk " in p.read_text("utf-8") for p in Path("out").rglob("*.md"))
    assert bool(deeper) == bool(finer)
    assert all(f"--depth {finer}" in command for command in deeper)
    assert bool(meant) == allowed
    for command in (*again, *deeper, *causes):
        assert run(shlex.split(command)[1:]).code == code, command
    for command in small:
        assert run(shlex.split(command)[1:]).code == 0, command
    for command in meant:
        passed = run(shlex.split(command)[1:])
        assert passed.code == 0, f"{command}\n{passed.out}{passed.err}"


def spoilt_module() -> Tiny:
    model = Tiny()
    model.blocks[1].linear.weight.data[3, 5] += 0.5
    return model


def traced(model: Tiny, folder: str) -> None:
    """As a port would write it, that knows nothing of the reference's weights."""
    probe = driftwalk.Probe({"input_ids": [[3, 1, 4, 1, 5]]})
    driftwalk.backend("torch", model).trace(probe).save(folder)


def test_what_needs_a_trace() -> None:
    traced(Tiny(), "own.trace")
    traced(spoilt_module(), "port.trace")
    check(("verify", TINY, "-c", "trace:port.trace"), 1, True, "")
    check(("verify", TINY, "-r", "trace:port.trace", "-c", "torch"), 1, True, "")
    check(("compare", "own.trace", "port.trace"), 1, False, "")


def test_points_without_a_partner() -> None:
    traced(Tiny(LAYERS - 1), "port.trace")
    check(("verify", TINY, "-c", "trace:port.trace"), 1, True, "")


@pytest.mark.slow
def test_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrated, so that it is blamed: a program that gives blocks only is asked for no more."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DRIFTWALK_COMMAND_TIMEOUT", "300")
    check(("verify", TINY, "-c", f"command:{sys.executable} port.py"), 1, True, "")


@pytest.mark.slow
def test_graphs_of_a_model() -> None:
    """Exported, with its nodes, and from a file with one wrong weight."""
    # On x86 it fuses other operations where states are outputs, which moves them by 2e-7.
    typed = ("verify", TINY, "-c", "onnxruntime,opt=basic", "--policy", "fixed:1e-9")
    check(typed, 1, True, "module")
    check((*typed, "--depth", "op"), 1, True, "")
    ids = torch.zeros(1, 5, dtype=torch.int64)
    port = spoilt_module().eval()
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(port, (ids,), "port.onnx", input_names=["input_ids"], verbose=False)
    shape = ("--batch", "1", "--length", "5")
    check(("verify", TINY, "-c", "onnxruntime,file=port.onnx", *shape), 1, True, "module")


@pytest.mark.slow
def test_eight_bits() -> None:
    check(("verify", TINY, "-c", "onnxruntime,quantize=dynamic-int8", *TIGHT), 1, True, "module")


@pytest.mark.slow
def test_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    """They change nothing of what is printed: the commands are those that were tried above."""
    monkeypatch.setattr("driftwalk.cli.verify.BENCH_ROUNDS", 3)
    typed = [*HALF, *TIGHT, "--report", "out"]
    assert run(typed).code == 1
    plain = printed(Path("out"))
    assert run([*typed, "--bench"]).code == 1
    timed = printed(Path("out"))
    assert {c.replace(" --bench", ""): text for c, text in timed.items()} == plain
    assert all("--bench" in command for command in timed)


ODD = 'It\'s `a` <b> | "x" & $HOME *\n\t\\ \u202e é'


def test_a_command_is_printed_as_it_can_be_typed() -> None:
    """Whatever an input is: bash reads back the very words."""
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("no bash here")
    typed = ["verify", "demo:decoder", "-c", "torch", "--policy", "dtype", "--prompt", ODD]
    assert run([*typed, "--report", "out"]).code == 0
    (command,) = printed(Path("out"))
    tell = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    script = f'driftwalk() {{ "{sys.executable}" -c "{tell}" "$@"; }}; {command}'
    done = subprocess.run([shell, "-c", script], capture_output=True, check=True)
    assert list(map(os.fsdecode, done.stdout.split(b"\0"))) == [*typed, "--report", "out"]
