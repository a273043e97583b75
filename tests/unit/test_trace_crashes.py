"""Whatever happens to a writer, what lies there is the old trace or the new one, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from driftwalk import DriftwalkError, Signature, Trace
from unit.test_trace_file import same, trace

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")

Ask = Callable[..., str]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """A writer that dies as it is told; the answer is what became of it."""
    program = str(Path(__file__).with_name("crashes.py"))
    environment = {**os.environ, "DRIFTWALK_TEST_PATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None

        def told(*words: object) -> str:
            writer.stdin.write("\t".join(map(str, words)) + "\n")
            writer.stdin.flush()
            return writer.stdout.readline().rstrip("\n")

        yield told
        writer.stdin.close()


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


def left_whole(folder: Path, *allowed: Trace) -> int:
    """Which of the traces that may be there is there."""
    found = Trace.load(folder)
    (number,) = [n for n, one in enumerate(allowed) if same(found, one)]
    return number


def test_killed_before_any_call_the_old_trace_or_the_new_one_is_there(ask, tmp_path):
    old, new = trace(0, 64), trace(1, 64)
    folder = old.save(tmp_path / "a")
    seen, number = set(), 1
    while ask(folder, 1, 64, "calls", number) == "killed":
        seen.add(left_whole(folder, old, new))
        number += 1
    assert number > 30, "there were that many places to die at"
    assert seen == {0, 1}, "some kills came before the new trace was whole, some after"
    assert left_whole(folder, new) == 0
    assert len(names(folder)) == 2, "what the dead left was cleared away"


def test_killed_at_the_first_attempt_the_next_one_works(ask, tmp_path):
    """Nothing that a crash leaves makes a folder look like somebody else's."""
    for number in range(1, 600, 2):
        folder = tmp_path / str(number)
        if ask(folder, 1, 64, "calls", number) != "killed":
            break
        if folder.exists() and (folder / "manifest.json").exists():
            assert left_whole(folder, trace(1, 64)) == 0
        elif folder.exists():
            with pytest.raises(DriftwalkError, match="is no trace"):
                Trace.load(folder)
        trace(2, 64).save(folder)
        assert left_whole(folder, trace(2, 64)) == 0
        assert len(names(folder)) == 2
    assert number > 30


def test_killed_at_any_time(ask, tmp_path):
    """Large enough that a write takes a while; the time of death is nobody's choice."""
    folder = trace(0, 20_000).save(tmp_path / "a")
    for number in range(12):
        assert ask(folder, 10 * number, 20_000, "time", 0.003 + 0.007 * number) == "killed"
        assert len(Trace.load(folder)) == 3  # every tensor has the bytes of its hash
    trace(1).save(folder)
    assert names(folder)[0] == "manifest.json"
    assert len(names(folder)) == 2
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("room", [0, 100, 5_000, 200_000])
def test_no_room_for_a_file(ask, tmp_path, room):
    """The old trace stays, the error names the folder, nothing half-written stays."""
    old = trace(0, 4)
    folder = old.save(tmp_path / "a")
    said = ask(folder, 1, 20_000, "limit", room)
    assert said.startswith("UsageError: Cannot write a trace to")
    assert "File too large" in said
    assert left_whole(folder, old) == 0
    assert len(names(folder)) == 2


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 300 kB, where one may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        words = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
        done = subprocess.run(words, capture_output=True, check=False)
    except OSError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip("a file system cannot be mounted here: that takes root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(small_disk):
    old = trace(0, 2_000)  # 200 kB: one fits, a second beside it does not
    folder = old.save(small_disk / "a")
    with pytest.raises(DriftwalkError, match=r"Cannot write a trace to .*: No space left"):
        trace(1, 2_000).save(folder)
    assert left_whole(folder, old) == 0
    assert len(names(folder)) == 2
    signature = Signature.of(trace(0, 4))
    (small_disk / "fill").write_bytes(b"1" * 80_000)
    signed = signature.save(small_disk / "a.signature.json")
    (small_disk / "fill").write_bytes(b"1" * (90_000 - signed.stat().st_size // 2))
    more = Signature.of(trace(1, 4))

    def until_it_is_full() -> None:
        for number in range(40):
            more.save(small_disk / f"{number}.signature.json")

    with pytest.raises(DriftwalkError, match=r"Cannot write a signature to .*: No space left"):
        until_it_is_full()
    with pytest.raises(DriftwalkError, match="No space left"):
        more.save(signed)
    assert Signature.load(signed) == signature


def test_two_writers_take_turns(ask, tmp_path):
    """The lock is the system's: it ends with the process that holds it."""
    import fcntl

    folder = trace(0, 64).save(tmp_path / "a")
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert ask(folder, 1, 64, "time", 1.0) == "killed", "it waits, and dies waiting"
        assert left_whole(folder, trace(0, 64)) == 0
    finally:
        os.close(handle)
    assert ask(folder, 1, 64, "calls", 10**9) == "saved"
    assert left_whole(folder, trace(1, 64)) == 0
