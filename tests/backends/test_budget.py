"""A budget of memory is kept, or refused beforehand with the number that would do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import driftwalk
import zoo
from driftwalk.cli.app import app
from processes import started

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")

PROGRAM = """
import json, os, sys
from threading import Event, Thread
import numpy as np
import driftwalk
from driftwalk.budget import anonymous_memory
from driftwalk_backends import emulated, sources, truth
from transformers import GPT2LMHeadModel

def measured(folder, tokens, budget):
    most, done = [0], Event()

    def look():
        while not done.wait(0.002):
            most[0] = max(most[0], anonymous_memory())

    Thread(target=look, daemon=True).start()
    probe = {"input_ids": np.arange(tokens)[None] * 7 % 1000}
    try:
        report = driftwalk.verify(folder, "emulated:bf16", probe=probe, cache=False, budget=budget)
        told = {"verdict": report.verdict, "notes": report.notes}
    except driftwalk.DriftwalkError as error:
        told = {"refused": str(error), "code": error.exit_code}
    done.set()
    return told | {"most": most[0] / 2**20}

for line in sys.stdin:
    if os.fork() == 0:
        print(json.dumps(measured(*json.loads(line))), flush=True)
        os._exit(0)
    if os.wait()[1]:
        sys.exit("A verification ended with an error.")
"""
"""Each verification has a process of its own, which begins where all was imported and none ran."""

Measured = Callable[[Path, int, str], dict]


@pytest.fixture(scope="module")
def measured() -> Iterator[Measured]:
    """Verifies in a process of its own, and tells the peak of its memory in MiB."""
    with started([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE) as process:

        def measure(folder: Path, tokens: int, budget: str) -> dict:
            process.stdin.write(json.dumps([str(folder), tokens, budget]) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, process.stderr.read()
            return json.loads(line)

        yield measure


def write_gpt2(folder: Path, layers: int, width: int) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"n_layer": layers, "n_embd": width, "n_head": 4, "vocab_size": 1000}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(**sizes, **ends, n_positions=512)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)


SHAPES = [(2, 512, 64), (12, 128, 128), (2, 128, 512)]
"""Layers, width and tokens: weights, states and what is between them are most of it in turn."""


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "width", "tokens"), SHAPES)
def test_what_is_expected_is_never_less_than_what_is_taken(
    tmp_path, measured, layers, width, tokens
):
    write_gpt2(tmp_path, layers, width)
    told = measured(tmp_path, tokens, "64GiB")
    assert told["verdict"] == "pass"
    note = next(note for note in told["notes"] if note.startswith("Budget"))
    expected = int(re.search(r"at most (\d+)MiB were expected", note)[1])
    assert told["most"] <= expected <= 2 * told["most"]


@pytest.mark.slow
def test_the_number_that_a_refusal_names_does(tmp_path, measured):
    write_gpt2(tmp_path, 4, 384)
    refused = measured(tmp_path, 128, "300MiB")
    assert refused["code"] == 2
    number = re.search(r"The smallest budget that would do: (\d+)MiB", refused["refused"])[1]
    kept = measured(tmp_path, 128, f"{number}MiB")
    assert kept["verdict"] == "pass"
    assert kept["most"] <= int(number)
    (note,) = (note for note in kept["notes"] if note.startswith("Budget"))
    assert "weights are cast as they are needed" in note


def test_a_folder_is_judged_alike_with_a_budget_and_without(tmp_path):
    zoo.build("llama").bfloat16().save_pretrained(tmp_path)
    probe = {"input_ids": np.arange(24).reshape(2, 12)}
    both = [
        driftwalk.verify(tmp_path, "emulated:bf16", probe=probe, cache=False, budget=budget)
        for budget in (None, "64GiB")
    ]
    assert [report.verdict for report in both] == ["pass", "pass"]
    for one, other in zip(both[0].layers, both[1].layers, strict=True):
        assert one == other, one.point.name


GREEDY = """
import torch
from torch import nn

runs = [0]
taken = []

class Greedy(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        runs[0] += 1
        for layer in self.layers:
            if runs[0] > 8:
                taken.append(torch.ones(64 * 2**20 // 4))
            x = torch.tanh(layer(x))
        return x

def greedy():
    return Greedy().eval()
"""


@pytest.mark.slow
def test_what_takes_more_than_it_said_is_stopped_and_leaves_nothing(tmp_path):
    (tmp_path / "hog.py").write_text(GREEDY)
    folders = {name: tmp_path / name for name in ("cache", "temporary", "report")}
    folders["temporary"].mkdir()
    from safetensors.numpy import save_file

    save_file({"x": np.ones((1, 4, 16), np.float32)}, tmp_path / "x.safetensors")
    words = ["-m", "driftwalk", "verify", "hog:greedy", "--candidate", "emulated:bf16"]
    words += ["--probe", "x.safetensors", "--report", "report", "--budget", "600MiB"]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=os.environ
        | {"DRIFTWALK_CACHE": str(folders["cache"]), "TMPDIR": str(folders["temporary"])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert re.search(r"Stopped at \d+MiB of anonymous memory", done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    left = [
        path.name
        for folder in folders.values()
        for path in folder.rglob("*")
        if path.is_file() or path.name.startswith((".driftwalk", "driftwalk"))
    ]
    assert left == []


@pytest.mark.parametrize("size", ["8G", "lots", "-1GiB", "1MiB"])
def test_a_bad_budget_is_a_mistake_on_the_command_line(size):
    done = CliRunner().invoke(app, ["verify", "demo:decoder", "-c", "torch", "--budget", size])
    assert done.exit_code == 2, done.output
    assert size in done.output
    assert "Traceback" not in done.output


def test_a_graph_has_none(tmp_path):
    graph = str(tmp_path / "model.onnx")
    done = CliRunner().invoke(app, ["verify", graph, "-c", "onnxruntime", "--budget", "8GiB"])
    assert done.exit_code == 2
    assert "not for a graph" in done.output


def test_the_configuration_has_one_and_the_command_line_goes_before_it(tmp_path):
    file = tmp_path / "driftwalk.toml"
    file.write_text(
        'budget = "64GiB"\n[[models]]\nmodel = "demo:decoder"\ncandidates = ["torch"]\n'
    )
    words = ["verify", "--config", str(file), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "Budget of 65536MiB" in done.stdout
    done = CliRunner().invoke(app, [*words, "--budget", "1MiB"])
    assert done.exit_code == 2
    assert "less than this process takes already" in done.output
    file.write_text('[[models]]\nmodel = "demo:decoder"\nbudget = "8G"\n')
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "driftwalk.toml" in done.output
    assert "'8G'" in done.output
