"""`driftwalk fleet` as it is typed: on this machine, with faults, mistakes and interruptions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from meta.sources import PACKAGES
from processes import PATIENCE, alive, children, eventually, started

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(str(folder.parent) for folder in PACKAGES.values()),
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "100",
}
SMALL = ("--device", "cpu", "--check", "repeat", "--dtype", "fp32")


def fleet(*words: str, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "driftwalk", "fleet", *words],
        env={**ENVIRONMENT, **more},
        cwd=cwd,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, str]:
    """One real check of this machine, with a fault put in."""
    folder = tmp_path_factory.mktemp("fleet") / "results"
    fault = {"DRIFTWALK_HWCHECK_INJECT": "state=layer.2,element=5,bit=3,repeat=1"}
    done = fleet("hwcheck", *SMALL, "-o", str(folder), "--json", **fault)
    assert done.returncode == 1, done.stderr
    return folder, json.loads(done.stdout), done.stderr


def test_this_machine_is_checked_and_a_fault_is_found(results: tuple[Path, Any, str]) -> None:
    folder, report, _ = results
    (record,) = report["records"]
    assert report["wrong"] == [record["job"]["label"]]
    assert "layer.2" in record["finding"]["said"]
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    own = f"jobs/{record['id']}"
    assert names == {"fleet.json", "fleet.html", "fleet.md", f"{own}.json", f"{own}.html"}
    assert f'href="{own}.html"' in (folder / "fleet.html").read_text("utf-8")


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_it_says_how_to_install_it(results: tuple[Path, Any, str]) -> None:
    _, report, err = results
    assert "pip install 'driftwalk[ray]'" in err
    assert "this machine alone" in err
    assert report["cluster"] == "this machine, in processes"
    named = fleet("hwcheck", "--address", "auto")
    assert named.returncode == 3, "a cluster that was asked for is not replaced in silence"
    assert "pip install 'driftwalk[ray]'" in named.stderr


def test_going_on_runs_nothing_twice(results: tuple[Path, Any, str]) -> None:
    folder, report, _ = results
    refused = fleet("hwcheck", *SMALL, "--address", "local", "-o", str(folder))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--resume" in refused.stderr
    again = fleet("hwcheck", *SMALL, "--address", "local", "-o", str(folder), "--resume", "--json")
    assert again.returncode == 1, again.stderr
    (record,) = json.loads(again.stdout)["records"]
    assert record["resumed"]
    assert record["finding"] == report["records"][0]["finding"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hwcheck", "--level", "slow"], "quick, standard, soak"),
        (["hwcheck", "--device", "tpu", "--address", "local"], "all, cpu, cuda"),
        (["hwcheck", "--golden", "none.trace"], "No golden at"),
        (["hwcheck", "--resume"], "-o RESULTS"),
        (["hwcheck", "--level", "soak", "--minutes", "60"], "--timeout"),
        (["verify"], "driftwalk.toml"),
        (["verify", "m", "--only", "x"], "leave out MODEL"),
        (["verify", "--candidate", "torch"], "the configuration says"),
    ],
)
def test_mistakes(tmp_path: Path, words: list[str], said: str) -> None:
    done = fleet(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing was made for a mistake"


def test_interrupted_keeps_its_results(tmp_path: Path) -> None:
    """Ctrl-C: the job is ended, a report is written, and the exit code says so."""
    words = ["hwcheck", "--device", "cpu", "--address", "local", "-o", str(tmp_path)]
    with started([sys.executable, "-m", "driftwalk", "fleet", *words], env=ENVIRONMENT) as process:
        assert eventually(lambda: len(children(process.pid)) == 2), "the job, and the watch over it"
        jobs = children(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert eventually(lambda: not any(map(alive, jobs)))
    assert process.returncode == 130, err
    assert "interrupted" in out
    report = json.loads((tmp_path / "fleet.json").read_text("utf-8"))
    assert (report["complete"], report["verdict"]) == (False, "unsure")
    assert [record["status"] for record in report["records"]] == ["not run"]
