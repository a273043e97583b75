"""pytest-benchmark reads what `bench` writes, and times backends under its own fixture."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from bench.test_bench import report
from cli.program import environment
from driftwalk_reports.bench import render_pytest

INSTALLED = any(entry.value == "driftwalk.plugin" for entry in entry_points(group="pytest11"))
PLUGINS = ("-p", "no:xdist", *(() if INSTALLED else ("-p", "driftwalk.plugin")))
"""Where xdist is at work, pytest-benchmark is not."""


def test_compare_reads_the_export(tmp_path: Path) -> None:
    """A full export, two runs of it, through `pytest-benchmark compare`."""
    for number, factor in ((1, 1.0), (2, 1.5)):
        rows = [[factor * (1 + i % 3) / 1000 for i in range(12)], [0.004] * 12]
        path = tmp_path / f"000{number}_run.json"
        path.write_text(render_pytest(report(*rows)))
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from pytest_benchmark.cli import main; main()", "compare"),
            *("--columns=min,max,mean,stddev,median,iqr,outliers,ops,rounds", "--sort=name"),
            *(str(tmp_path / name) for name in ("0001_run.json", "0002_run.json")),
        ],
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=tmp_path,
        env=environment(),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "model[1x8-b0]" in done.stdout
    assert "model[1x8-b1]" in done.stdout
    assert "0002_ru" in done.stdout


def test_the_figures_are_those_of_the_samples() -> None:
    rows = [1.0, 2.0, 3.0, 4.0, 100.0]
    (found,) = json.loads(render_pytest(report(rows)))["benchmarks"]
    stats = found["stats"]
    assert stats["data"] == rows
    assert (stats["min"], stats["max"], stats["median"], stats["rounds"]) == (1.0, 100.0, 3.0, 5)
    assert (stats["iqr_outliers"], stats["hd15iqr"]) == (1, 4.0)
    assert stats["mean"] == 22.0


def test_the_fixture_times_a_backend(tmp_path: Path) -> None:
    (tmp_path / "test_speed.py").write_text(
        "def test_speed(drift_benchmark):\n"
        "    lap = drift_benchmark('torch,threads=1', 'cli.factories:Tiny')\n"
        "    assert lap.seconds > 0\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", *PLUGINS, "test_speed.py"),
            *("--benchmark-json=out.json", "--benchmark-max-time=0.1", "--benchmark-min-rounds=3"),
        ],
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=tmp_path,
        env={k: v for k, v in environment().items() if not k.startswith("PYTEST_")},
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    assert found["extra_info"]["backend"] == "torch,threads=1"
    assert found["stats"]["rounds"] >= 3


def test_the_plugin_imports_no_framework() -> None:
    code = (
        "import sys, driftwalk.plugin\n"
        "bad = {'torch', 'transformers', 'onnxruntime', 'numpy'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
