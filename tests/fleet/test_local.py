"""This machine as a cluster: processes that end, hang, crash and talk too much."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from driftwalk.errors import UsageError
from driftwalk.tasks.fleet.cluster import Event
from driftwalk.tasks.fleet.job import GOLDEN, Golden, Job, pack, unpacked
from driftwalk.tasks.fleet.local import LocalCluster
from processes import PATIENCE, alive, eventually

PYTHON = (sys.executable, "-S", "-c")


def do(code: str) -> str:
    """A program in place of driftwalk: what it is told comes after it."""
    return f"import os, subprocess, sys, time\n{code}"


def ended(cluster: LocalCluster, count: int, seconds: float = PATIENCE) -> Sequence[Event]:
    until, found = time.monotonic() + seconds, []
    while len(found) < count and time.monotonic() < until:
        found += cluster.wait(0.2)
    return found


def test_a_result_an_exit_code_and_last_words() -> None:
    code = do("print('x' * 300_000); sys.stderr.write('why\\n'); sys.exit(3)")
    cluster = LocalCluster(["cpu"], program=(*PYTHON, code))
    (place,) = cluster.places()
    cluster.start(place, Job("verify", ("m",), "m"), PATIENCE)
    (event,) = ended(cluster, 1)
    assert (event.ending, event.code, event.err) == ("ended", 3, "why")
    assert len(event.out) == 300_000, "more than a pipe holds"


def test_arguments_reach_the_job(tmp_path: Path) -> None:
    golden = tmp_path / "golden.trace"
    cluster = LocalCluster(["cpu"], golden, program=(*PYTHON, do("print(sys.argv[1:])")))
    (place,) = cluster.places()
    cluster.start(place, Job("hwcheck", ("--device", "{device}", GOLDEN, "{x}"), ""), PATIENCE)
    (event,) = ended(cluster, 1)
    assert event.out == str(["hwcheck", "--device", "cpu", str(golden), "{x}"])


def test_a_hanging_job_is_ended_with_its_children(tmp_path: Path) -> None:
    tell = tmp_path / "child"
    code = do(
        f"child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tell)!r}, 'w').write(f'{{child.pid}}\\n')\n"
        "time.sleep(600)"
    )
    cluster = LocalCluster(["cpu"], program=(*PYTHON, code))
    (place,) = cluster.places()
    cluster.start(place, Job("verify", (), ""), 600)
    assert eventually(lambda: tell.is_file() and tell.read_text().endswith("\n"))
    cluster._running[place][1]._timeout = 0.0
    (event,) = ended(cluster, 1)
    assert event.ending == "timeout"
    assert eventually(lambda: not alive(int(tell.read_text())))


def test_a_crash_says_which_signal() -> None:
    cluster = LocalCluster(["cpu"], program=(*PYTHON, do("os.kill(os.getpid(), 11)")))
    (place,) = cluster.places()
    cluster.start(place, Job("verify", (), ""), PATIENCE)
    (event,) = ended(cluster, 1)
    assert (event.ending, event.code) == ("ended", -11)


def test_places_side_by_side_and_closing_ends_them() -> None:
    cluster = LocalCluster(["cpu", "cuda:0"], slots=2, program=(*PYTHON, do("time.sleep(600)")))
    assert [place.name.partition(" ")[2] for place in cluster.places()] == [
        "cpu",
        "cpu #1",
        "cuda:0",
    ]
    for place in cluster.places():
        cluster.start(place, Job("verify", (), ""), PATIENCE)
    jobs = [process._process.pid for _, process in cluster._running.values()]
    assert all(map(alive, jobs))
    cluster.close()
    assert not any(map(alive, jobs))
    assert cluster.wait(0) == []


def test_a_golden_travels_whole(tmp_path: Path) -> None:
    folder = tmp_path / "golden.trace"
    (folder / "deep").mkdir(parents=True)
    (folder / "manifest.json").write_bytes(b"{}")
    (folder / "deep" / "states").write_bytes(b"\0\1")
    packed = pack(folder)
    there = unpacked(packed, tmp_path / "there")
    assert pack(there).sha256 == packed.sha256
    (there / "deep" / "states").write_bytes(b"\0\2")
    assert pack(there).sha256 != packed.sha256
    single = pack(folder / "manifest.json")
    assert unpacked(single, tmp_path / "one").read_bytes() == b"{}"


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../b", "..\\out", "C:\\x", ""])
def test_a_golden_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="leads out of its folder"):
        unpacked(Golden({name: b"x"}), tmp_path / "in")
    assert list(tmp_path.rglob("*x*")) == []


def test_no_golden_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No golden at"):
        pack(tmp_path / "none")
