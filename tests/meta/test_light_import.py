"""Importing driftwalk, asking for help and rendering a result import no framework."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meta.sources import PACKAGES

MOST_OF_OURS = 6
"""Modules of ours that help may import: its time is that of typer and rich."""
HEAVY = ("torch", "transformers", "onnxruntime", "onnx", "onnxscript", "optimum")
TELL = f"""
import atexit, sys
def tell():
    heavy = [name for name in {HEAVY!r} if name in sys.modules]
    sys.stderr.write("heavy:" + ",".join(heavy))
atexit.register(tell)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(folder.parent) for folder in PACKAGES.values())
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "100"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def heavy_after(code: str) -> str:
    """Which frameworks a program has imported when it ends."""
    done = run("-c", TELL + code)
    before, _, heavy = done.stderr.rpartition("heavy:")
    assert "Traceback" not in before, before
    return heavy


def command_line(*arguments: str) -> str:
    return f"sys.argv = {['driftwalk', *arguments]!r}\nfrom driftwalk.cli import main\nmain()"


def test_the_check_itself_can_fail() -> None:
    assert heavy_after("import onnx") == "onnx"


@pytest.mark.parametrize(
    "code",
    [
        "import driftwalk",
        "import driftwalk; driftwalk.Tolerance, driftwalk.Probe, driftwalk.Report, driftwalk.load",
        "import driftwalk; driftwalk.verify, driftwalk.compare, driftwalk.Backend",
        "import driftwalk.judge.gate, driftwalk.judge.walk, driftwalk.registry",
        command_line("--help"),
        command_line("--version"),
        command_line("verify", "--help"),
        command_line("report", "--help"),
    ],
    ids=["import", "data", "verify", "judgement", "help", "version", "verify help", "report help"],
)
def test_light(code: str) -> None:
    assert heavy_after(code) == ""


def test_rendering_is_light(tmp_path: Path) -> None:
    """A result made on a GPU node is rendered on a laptop that has none of it."""
    from driftwalk.result import to_json
    from unit.reports.cases import drifting

    result, folder = tmp_path / "result.json", tmp_path / "out"
    result.write_text(to_json(drifting()), "utf-8")
    assert heavy_after(command_line("report", str(result), "-o", str(folder))) == ""
    assert (folder / "report.html").is_file()
    terminal = "from driftwalk_reports.terminal import render\nimport driftwalk\n"
    assert heavy_after(terminal + f"print(render(driftwalk.load({str(result)!r})))") == ""


def test_help_imports_none_of_the_other_rooms() -> None:
    done = run("-X", "importtime", "-m", "driftwalk", "--help")
    assert done.returncode == 0
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "driftwalk.cli.app" in names, "the report of imports was understood"
    assert not [n for n in names if n.partition(".")[0] in (*HEAVY, "driftwalk_backends")]
    own = [name for name in names if name.partition(".")[0].startswith("driftwalk")]
    assert len(own) <= MOST_OF_OURS, f"help is to be instant; it imports {own}"
