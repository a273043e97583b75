"""Processes that we start end with us: in order, interrupted or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from driftwalk import children
from driftwalk.children import Child
from processes import PATIENCE, alive, eventually, started

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="groups of processes")

FAMILY = """
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print(grandchild.pid, flush=True)
time.sleep(600)
"""
PARENT = f"""
import subprocess, sys, time
from driftwalk.children import Child
ended = Child([sys.executable, "-S", "-c", ""])
ended.wait()
child = Child([sys.executable, "-S", "-c", {FAMILY!r}], stdout=subprocess.PIPE, text=True)
print(child.pid, child.stdout.readline(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_and_theirs_end_with_a_parent_that_is_killed(how: signal.Signals) -> None:
    with started([sys.executable, "-c", PARENT]) as parent:
        assert parent.stdout is not None
        child, grandchild = map(int, parent.stdout.readline().split())
        assert alive(child)
        assert alive(grandchild)
        parent.send_signal(how)
        parent.wait(PATIENCE)
        assert eventually(lambda: not alive(child) and not alive(grandchild))


def test_who_ends_in_order_leaves_no_watch_behind() -> None:
    code = PARENT.replace("time.sleep(600)\n", "child.end(); child.wait(); child.stdout.close()\n")
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code],
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    child, grandchild = map(int, done.stdout.split())
    assert eventually(lambda: not alive(child) and not alive(grandchild))


def test_who_has_ended_is_watched_no_more() -> None:
    """The number of a process that has ended is given to another one some day."""
    with Child([sys.executable, "-S", "-c", FAMILY], stdout=subprocess.PIPE, text=True) as child:
        assert child.pid in children._watch._watched
        assert child.poll() is None
        assert child.pid in children._watch._watched
        child.end()
        child.wait(PATIENCE)
    assert child.returncode == -signal.SIGKILL
    assert child.pid not in children._watch._watched
    child.end()


def test_without_its_watch_a_child_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_watch", children._Watch())
    first = Child([sys.executable, "-S", "-c", ""])
    watch = children._watch._process
    assert watch is not None
    os.kill(watch.pid, signal.SIGKILL)
    watch.wait(PATIENCE)
    assert first.wait(PATIENCE) == 0
    assert Child([sys.executable, "-S", "-c", ""]).wait(PATIENCE) == 0


def test_a_fork_has_a_watch_of_its_own(tmp_path: Path) -> None:
    """The parent's watch waits for the parent, and would not notice that the fork has ended."""
    code = f"""
import os, signal
{PARENT.replace("time.sleep(600)", "os.kill(os.getpid(), signal.SIGKILL)")}
"""
    forking = f"""
import os, sys
from driftwalk.children import Child
Child([sys.executable, "-S", "-c", ""]).wait()
if os.fork() == 0:
    exec({code!r})
os.wait()
sys.stdin.readline()
"""
    with started([sys.executable, "-c", forking], stdin=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child, grandchild = map(int, parent.stdout.readline().split())
        assert eventually(lambda: not alive(child) and not alive(grandchild))
        assert parent.poll() is None, "its own parent is still there"
