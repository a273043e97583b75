"""demo, backends, --help and --version: what a newcomer types first."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import driftwalk as library
from cli.program import REPORT_FILES, driftwalk, invoke


def commands() -> dict[str, Any]:
    """Every command the app has, as its parser knows it."""
    import typer

    from driftwalk.cli.app import app

    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_the_list_of_commands_says_what_each_says_itself() -> None:
    from driftwalk.cli.app import COMMANDS

    told = {name: command.help.split("\n\n")[0] for name, command in commands().items()}
    assert {name: " ".join(text.split()) for name, text in told.items()} == COMMANDS
    shown = " ".join(invoke("--help").out.replace("│", " ").split())
    assert all(text in shown for text in COMMANDS.values())


@pytest.mark.slow
def test_demo(here: Path) -> None:
    """The real program, with nothing but its name: PyTorch against ONNX Runtime."""
    done = driftwalk("demo")
    assert done.code == 0, done.err
    for point in ("embed", *(f"layer.{i}" for i in range(6)), "norm", "logits"):
        assert re.search(rf"^ {re.escape(point)} .* ok", done.out, re.MULTILINE), point
    assert "PASS" in done.out
    where = Path("driftwalk-report")
    assert f"Result: {where / 'result.json'}" in done.err
    assert sorted(path.name for path in (here / where).iterdir()) == list(REPORT_FILES)
    report = library.load(here / where / "result.json")
    assert report.ok
    assert (report.reference.name, report.candidate.name) == ("torch", "onnxruntime")


@pytest.mark.parametrize("layer", [0, 3, 5])
def test_demo_with_a_fault(layer: int) -> None:
    done = invoke("demo", "--fault", str(layer), "--json", "--report", "out")
    assert done.code == 1
    document = json.loads(done.out)
    assert document["verdict"] == "drift"
    assert document["first_divergence"] == f"layer.{layer}"
    assert library.load("out/result.json").first_divergence is not None


def test_demo_with_a_fault_says_where() -> None:
    done = invoke("demo", "--fault", "3")
    assert done.code == 1
    assert "first divergence at layer.3" in done.out
    assert "Result: driftwalk-report" in done.err


def test_backends() -> None:
    import torch

    done = invoke("backends")
    assert done.code == 0
    assert done.err == ""
    lines = {line.split()[1]: line for line in done.out.splitlines()}
    assert lines["torch:cpu"].startswith("✓")
    assert lines["torch:auto"].startswith("✓")
    assert lines["onnxruntime:cpu"].startswith("✓")
    if not torch.cuda.is_available():
        assert lines["torch:cuda"].startswith("✗")
        assert re.search("install a CUDA build|no CUDA device", lines["torch:cuda"])
        assert "the CPU alone: " in lines["torch:auto"]


def test_backends_as_json() -> None:
    done = invoke("backends", "--json")
    assert done.code == 0
    found = {row["spec"]: row for row in json.loads(done.out)}
    assert found["torch:cpu"]["usable"] is True
    assert all(row["note"] for row in found.values()), "usable or not, each says why"
    shown = invoke("backends").out
    assert [line.split()[1] for line in shown.splitlines()] == list(found)


def test_a_backend_that_cannot_be_asked_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from driftwalk import registry

    known = {"torch": registry.BUILT_IN["torch"], "broken": "no_such_module:Backend"}
    monkeypatch.setattr(registry, "known_backends", lambda: known)
    done = invoke("backends")
    assert done.code == 0
    assert "✗ broken" in done.out
    assert "no_such_module" in done.out


def test_version() -> None:
    done = driftwalk("--version")
    assert (done.code, done.out) == (0, f"driftwalk {library.__version__}\n")


def test_no_arguments_show_the_help() -> None:
    done = driftwalk()
    assert done.code == 2
    for name in commands():
        assert name in done.out


def test_help_of_the_program_names_commands_and_exit_codes() -> None:
    done = driftwalk("--help")
    assert done.code == 0
    assert "Exit codes: 0 within tolerance, 1 drift, 2 usage error, 3 could not verify" in done.out
    for name, command in commands().items():
        assert re.search(rf"\b{name}\b", done.out)
        assert command.help, f"{name} says what it does"


def leaves() -> dict[str, Any]:
    """The same without groups: `fleet hwcheck` and not `fleet`."""
    found = {}
    for name, command in commands().items():
        inner = getattr(command, "commands", None)
        found |= {f"{name} {n}": c for n, c in inner.items()} if inner else {name: command}
    return found


@pytest.mark.parametrize("name", sorted(leaves()))
def test_help_of_every_command_names_its_options(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Typer reads TERMINAL_WIDTH when it is imported, which an earlier test may have done.
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    done = invoke(*name.split(), "--help")
    assert done.code == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", done.out)
    options = [option for option in leaves()[name].params if option.opts[0].startswith("-")]
    assert options
    for option in options:
        for spelling in option.opts:
            assert re.search(rf"(?<![\w-]){spelling}(?![\w-])", shown), spelling
        assert option.help, f"{option.opts} has no help"
    assert "<bool>" not in shown


def test_the_help_of_verify_says_what_belongs_together_and_shows_examples() -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", invoke("verify", "--help").out)
    titles = re.findall(r"─ (.+?) ─", shown)
    assert titles[:3] == ["Arguments", "Options", "What is compared"]
    assert shown.count("driftwalk verify ./my-model") == 4
    assert "name[:device][:dtype][,option=value]" in shown
    assert ".onnx" in shown


def test_main_is_the_installed_command() -> None:
    """`python -m driftwalk` and the script of the wheel are one function."""
    import tomllib

    from cli.program import ROOT

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["scripts"] == {"driftwalk": "driftwalk.cli:main"}
    from driftwalk.cli import main

    assert callable(main)
    assert sys.version_info >= (3, 11)


def test_help_of_verify_explains_its_words() -> None:
    shown = " ".join(invoke("verify", "--help").out.split())
    assert "truth: this model in float64." in shown
    assert "yardstick: plain eager PyTorch at the dtype of a side." in shown
    assert "allowance: how far from the truth a side may be" in shown
