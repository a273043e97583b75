"""Input that does not fit: a clear message on stderr, the right exit code, never a traceback."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.program import environment, invoke
from processes import PATIENCE, started

IDS = np.arange(8).reshape(1, 8)
ONES = np.ones_like(IDS)
SHORT = np.array([[1, 1, 1, 1, 0]])

ProbeFile = Callable[..., str]


@pytest.fixture
def probe_file(here: Path) -> ProbeFile:
    """Writes named arrays where `--probe` finds them."""
    from safetensors.numpy import save_file

    def write(**arrays: Any) -> str:
        path = here / "probe.safetensors"
        save_file(arrays, path)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", ""], ["Prompt 1 of 1 is empty"]),
        (["--prompt", "fine", "--prompt", " \t"], ["Prompt 2 of 2 is empty"]),
        (["--prompt", "x" * 400], ["401 positions", "at most 256", "Shorten"]),
        (["--ids", "5 258"], ["258", "0 to 257"]),
        (["--ids", "5 -1"], ["-1", "outside the vocabulary"]),
        (["--ids", "five"], ["'five'", "whole numbers"]),
        (["--ids", "1" * 30], ["input_ids"]),
        (["--ids", ""], ["empty"]),
        (["--probe", "nowhere.safetensors"], ["nowhere.safetensors", "No such file"]),
        (["--probe", "."], ["Cannot read a probe", "safetensors"]),
    ],
    ids=lambda value: " ".join(value)[:24] if value[0].startswith("-") else "",
)
def test_prompts_and_ids(arguments: list[str], words: list[str]) -> None:
    invoke("verify", "demo:decoder", "-c", "torch", *arguments).refused(2, *words)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"attention_mask": ONES}, ["lacks input 'input_ids'", "it has attention_mask"]),
        ({"input_ids": IDS, "attention_mask": 0 * ONES}, ["attention_mask", "all zero"]),
        (
            {"input_ids": IDS, "attention_mask": SHORT},
            ["[1, 8]", "[1, 5]", "not take them so"],
        ),
        ({"input_ids": IDS.astype(np.float32)}, ["float32", "whole numbers"]),
        ({"input_ids": IDS[0]}, ["shape [8]", "[rows, positions]"]),
        ({"input_ids": IDS[:0]}, ["'input_ids' is empty"]),
        ({"input_ids": IDS + 999}, ["999", "outside the vocabulary"]),
    ],
    ids=["lacking", "all masked", "short mask", "float ids", "one row", "empty", "vocabulary"],
)
def test_probe_files(probe_file: ProbeFile, arrays: dict[str, Any], words: list[str]) -> None:
    done = invoke("verify", "demo:decoder", "-c", "torch", "--probe", probe_file(**arrays))
    done.refused(2, *words)


def test_a_probe_file_that_lacks_what_a_plain_module_needs(probe_file: ProbeFile) -> None:
    done = invoke("verify", "cli.factories:Masked", "-c", "torch", "--probe", probe_file(x=IDS))
    done.refused(2, "no input 'x'", "input_ids, attention_mask")
    file = probe_file(input_ids=IDS)
    done = invoke("verify", "cli.factories:Masked", "-c", "torch", "--probe", file)
    done.refused(2, "lacks input 'attention_mask'")
    file = probe_file(input_ids=IDS, attention_mask=ONES)
    assert invoke("verify", "cli.factories:Masked", "-c", "torch", "--probe", file).code == 0


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 64, b"\x02" + bytes(7) + b"{}"])
def test_a_probe_file_of_garbage(here: Path, content: bytes) -> None:
    path = here / "probe.safetensors"
    path.write_bytes(content)
    done = invoke("verify", "demo:decoder", "-c", "torch", "--probe", str(path))
    done.refused(2, "probe")


def test_a_prompt_that_is_not_utf8_runs(here: Path) -> None:
    prompt = os.fsdecode(b"caf\xe9")
    done = invoke("verify", "demo:decoder", "-c", "torch", "-p", prompt, "--report", str(here))
    assert done.code == 0, done.err
    assert (here / "result.json").is_file()


def test_a_report_folder_that_cannot_be_written(here: Path) -> None:
    """Found out before a model is loaded: hours later would be too late."""
    (here / "file").write_text("")
    folder = str(here / "file" / "below")
    done = invoke("verify", "cli.factories:leaves", "-c", "torch", "--report", folder)
    done.refused(2, "Cannot write", folder)
    invoke("demo", "--report", folder).refused(2, "Cannot write", folder)


def test_a_report_file_that_cannot_be_replaced(here: Path) -> None:
    """The system says no only after the run: the result is shown, and no bug is claimed."""
    (here / "out" / "result.json").mkdir(parents=True)
    done = invoke("verify", "cli.factories:Tiny", "-c", "torch", "--report", "out")
    assert done.code == 3
    assert "PASS" in done.out
    assert "result.json" in done.err
    assert "internal error" not in done.err
    assert [path.name for path in (here / "out").iterdir()] == ["result.json"]


@pytest.fixture
def third_party(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed distribution that registers backends."""
    from driftwalk.registry import known_backends

    folder = here / "site" / "thirdparty-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0\n")
    names = {"shallow": "Shallow", "deep": "Deep", "failing": "Failing"}
    lines = [f"{name} = cli.factories:{target}\n" for name, target in names.items()]
    (folder / "entry_points.txt").write_text("[driftwalk.backends]\n" + "".join(lines))
    monkeypatch.syspath_prepend(str(here / "site"))
    known_backends.cache_clear()
    yield
    known_backends.cache_clear()


@pytest.mark.usefixtures("third_party")
def test_backends_with_different_numbers_of_layers() -> None:
    done = invoke("verify", "cli.factories:Tiny", "-c", "shallow", "-c", "deep")
    assert done.code == 1
    shallow, deep = done.out.split("candidate  deep")
    assert "layer.2" in next(line for line in shallow.splitlines() if "missing" in line)
    assert "layer.3" in next(line for line in deep.splitlines() if "extra" in line)
    assert "PASS" not in done.out


@pytest.mark.usefixtures("third_party")
def test_a_fault_in_a_third_partys_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ["verify", "cli.factories:Tiny", "-c", "failing"]
    done = invoke(*tiny)
    assert done.code not in (0, 1, 2)
    assert "ZeroDivisionError: a fault of the backend's own" in done.err
    assert "Traceback" not in done.err
    assert done.out == ""
    monkeypatch.setenv("DRIFTWALK_DEBUG", "1")
    assert "Traceback" in invoke(*tiny).err, "whoever wants it can see it"


def test_ctrl_c(here: Path) -> None:
    """Exit 130 and a word, while the model runs; nothing half-written, no traceback."""
    sleeper = ["verify", "cli.factories:Sleeper", "-c", "torch", "--report", "out"]
    with started([sys.executable, "-m", "driftwalk", *sleeper], env=environment()) as run:
        assert run.stderr is not None
        assert run.stderr.readline() == "forward has begun\n"
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=PATIENCE)
    assert run.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert out == ""
    assert list((here / "out").iterdir()) == []


def test_a_bf16_candidate_does_not_change_the_reference() -> None:
    """On a CPU without bf16 units torch switches oneDNN off for good, for fp32 too."""
    import torch

    before = torch.backends.mkldnn.enabled
    bf16 = ["-c", "torch:cpu:bf16", "--policy", "fixed:0"]
    assert invoke("verify", "cli.factories:Tiny", *bf16).code == 1, "not 3: an observer effect"
    assert torch.backends.mkldnn.enabled == before
