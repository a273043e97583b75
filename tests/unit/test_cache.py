"""The folder cache: whatever happens to its disk or its entries costs time, and nothing else."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.cache_stress import stress
from driftwalk import cache
from driftwalk.cache import FolderCache
from driftwalk.errors import BackendError
from driftwalk.files import private_folder, release


class Maker:
    """Writes one file, and counts how often it was asked to."""

    def __init__(self, data: bytes = b"precious") -> None:
        self.data = data
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "data.bin").write_bytes(self.data)


def entries(root: Path) -> list[Path]:
    return [entry for entry in (root / "things").iterdir() if not entry.name.startswith(".")]


def test_what_was_made_once_is_found_again(tmp_path: Path) -> None:
    make, store = Maker(), FolderCache("things", tmp_path)
    for _ in range(3):
        assert (store.get("key", make) / "data.bin").read_bytes() == b"precious"
    store.get("key-2", make)
    assert make.calls == 2, "once for each key"


@pytest.mark.parametrize("size", [10, 3000], ids=["copied", "linked"])
def test_a_folder_in_use_outlives_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(cache, "COPIED", 1000)
    make, store = Maker(b"x" * size), FolderCache("things", tmp_path)
    made, found = store.get("key", make), store.get("key", make)
    assert made != found
    shutil.rmtree(tmp_path / "things" / entries(tmp_path)[0].name)
    for folder in (made, found):
        assert (folder / "data.bin").read_bytes() == make.data
        release(folder)
        assert not folder.exists()


def flipped(entry: Path) -> None:
    (entry / "data.bin").write_bytes(b"Precious")


def without_its_file(entry: Path) -> None:
    (entry / "data.bin").unlink()


def without_a_manifest(entry: Path) -> None:
    (entry / "cache.json").unlink()


def with_a_list_for_a_manifest(entry: Path) -> None:
    (entry / "cache.json").write_text("[1, 2]")


def with_an_empty_manifest(entry: Path) -> None:
    (entry / "cache.json").write_text("{}")


def that_points_elsewhere(entry: Path) -> None:
    text = (entry / "cache.json").read_text()
    (entry.parent / "data.bin").write_bytes(b"precious")
    (entry / "cache.json").write_text(text.replace("data.bin", "../data.bin"))


def that_is_a_file(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("a file in the place of a folder")


@pytest.mark.parametrize(
    "damage",
    [
        *(flipped, without_its_file, without_a_manifest, with_a_list_for_a_manifest),
        *(with_an_empty_manifest, that_points_elsewhere, that_is_a_file),
    ],
)
def test_a_damaged_entry_is_made_anew(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    make, store = Maker(), FolderCache("things", tmp_path)
    store.get("key", make)
    damage(entries(tmp_path)[0])
    assert (store.get("key", make) / "data.bin").read_bytes() == b"precious"
    assert make.calls == 2
    store.get("key", make)
    assert make.calls == 2, "the new entry is good"


@pytest.mark.parametrize(
    "damage",
    [
        *(flipped, without_its_file, without_a_manifest, with_a_list_for_a_manifest),
        *(with_an_empty_manifest, that_points_elsewhere, that_is_a_file),
    ],
)
def test_contents_are_read_as_they_were_stored_or_not_at_all(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    store = FolderCache("things", tmp_path)
    store.store("key", Maker())
    assert store.read("key", lambda _: True) == {"data.bin": b"precious"}
    assert store.read("another", lambda _: True) is None
    damage(entries(tmp_path)[0])
    assert store.read("key", lambda _: True) is None
    store.store("key", Maker())
    assert store.read("key", lambda files: files["data.bin"] == b"other") is None
    assert store.read("key", lambda _: True) is None, "one that was not believed is gone"


def test_one_that_is_not_believed_is_made_anew_and_stored_over(tmp_path: Path) -> None:
    store = FolderCache("things", tmp_path)
    store.get("key", Maker(b"old"))

    def believed(folder: Path) -> bool:
        return (folder / "data.bin").read_bytes() == b"new"

    assert (store.get("key", Maker(b"new"), believed) / "data.bin").read_bytes() == b"new"
    again = Maker(b"newer")
    assert (store.get("key", again, believed) / "data.bin").read_bytes() == b"new"
    assert again.calls == 0
    assert len(entries(tmp_path)) == 1


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    make, store = Maker(b"x" * 1000), FolderCache("things", tmp_path, budget=2500)
    for number, key in enumerate(("a", "b")):
        store.get(key, make)
        (entry,) = (e for e in entries(tmp_path) if e.name.startswith(key))
        os.utime(entry, (1000 + number, 1000 + number))
    store.get("a", make)  # used just now
    store.get("c", make)
    assert sorted(entry.name[0] for entry in entries(tmp_path)) == ["a", "c"]


class FullError(Exception):
    """What a library makes of an error of the system: its words, and no number."""


def unwritable(tmp_path: Path) -> list[Path]:
    """Roots in which nothing can be made, for whatever reason, even by an administrator."""
    file = tmp_path / "file"
    file.write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    return [
        file,
        file / "below",
        Path("/proc/driftwalk"),
        tmp_path / "loop",
        tmp_path / ("x" * 300),
    ]


def test_an_unwritable_cache_costs_time_only(tmp_path: Path) -> None:
    for root in unwritable(tmp_path):
        make, store = Maker(), FolderCache("things", root)
        for calls in (1, 2):
            folder = store.get("key", make)
            assert (folder / "data.bin").read_bytes() == b"precious"
            assert make.calls == calls
            release(folder)
            assert not folder.exists()
        assert store.read("key", lambda _: True) is None
        assert store.store("key", make), "why not"


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["mkdtemp", "rename", "copyfile", "checksum", "rmtree", "utime"])
@pytest.mark.parametrize("stored", [False, True])
def test_any_step_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, stored: bool
) -> None:
    make, store = Maker(), FolderCache("things", tmp_path)
    if stored:
        store.get("key", make)
    import tempfile

    real = tempfile.mkdtemp
    broken: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
        "mkdtemp": lambda patch: patch.setattr(
            tempfile, "mkdtemp", lambda dir=None, **k: no_space() if dir else real(**k)
        ),
        "rename": lambda patch: patch.setattr(os, "rename", no_space),
        "copyfile": lambda patch: patch.setattr(shutil, "copyfile", no_space),
        "checksum": lambda patch: patch.setattr(cache, "checksum", no_space),
        "rmtree": lambda patch: patch.setattr(shutil, "rmtree", lambda *a, **k: None),
        "utime": lambda patch: patch.setattr(os, "utime", no_space),
    }
    with monkeypatch.context() as patch:
        broken[step](patch)
        for _ in range(2):
            assert (store.get("key", make) / "data.bin").read_bytes() == b"precious"
    assert (store.get("key", make) / "data.bin").read_bytes() == b"precious"


def test_a_maker_that_finds_the_disk_full_is_asked_again_elsewhere(tmp_path: Path) -> None:
    root, calls = tmp_path / "cache", []

    def make(folder: Path) -> None:
        calls.append(folder)
        if root in folder.parents:
            try:
                no_space()
            except OSError as error:
                raise BackendError(f"The export failed: {error}") from error
        (folder / "data.bin").write_bytes(b"precious")

    folder = FolderCache("things", root).get("key", make)
    assert (folder / "data.bin").read_bytes() == b"precious"
    assert len(calls) == 2
    assert not calls[0].exists()
    release(folder)


def test_words_of_a_full_disk_are_known_without_a_number(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        if tmp_path in folder.parents:
            raise FullError(
                "Error while serializing: I/O error: No space left on device (os error 28)"
            )
        Maker()(folder)

    folder = FolderCache("things", tmp_path).get("key", make)
    assert (folder / "data.bin").read_bytes() == b"precious"
    release(folder)


def test_an_error_of_the_maker_is_its_own(tmp_path: Path) -> None:
    calls = []

    def make(folder: Path) -> None:
        calls.append(folder)
        raise BackendError("no such layer")

    for ask in (FolderCache("things", tmp_path).get, FolderCache("things", tmp_path).store):
        with pytest.raises(BackendError, match="no such layer"):
            ask("key", make)
    assert len(calls) == 2
    assert list((tmp_path / "things").iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    done = mount and subprocess.run([mount, *options], check=False, capture_output=True)
    if not done or done.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, capture_output=True)


def test_a_full_disk_costs_time_only(small_disk: Path) -> None:
    large, store = Maker(b"x" * 200_000), FolderCache("things", small_disk)
    for _ in range(2):
        folder = store.get("large", large)
        assert (folder / "data.bin").read_bytes() == large.data
        release(folder)
    assert "No space" in store.store("large", large)
    assert (store.get("small", Maker()) / "data.bin").read_bytes() == b"precious"
    with pytest.raises(OSError, match="No space"):
        (small_disk / "filler").write_bytes(b"0" * 200_000)
    again = Maker(b"made anew")
    assert (store.get("small", again) / "data.bin").read_bytes() == b"precious", "still there"
    assert (store.get("other", again) / "data.bin").read_bytes() == b"made anew"


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


LIMITED = """
import resource, sys, tempfile
from pathlib import Path
from driftwalk.cache import FolderCache
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
def write(folder):
    (folder / "data.bin").write_bytes(b"x" * 2000)
print(FolderCache("things", Path(sys.argv[1])).store("key", write))
"""


def test_a_limit_on_files_costs_time_only(tmp_path: Path) -> None:
    done = run(LIMITED, tmp_path)
    assert (done.stdout.strip(), done.stderr) == (os.strerror(errno.EFBIG), "")
    assert list((tmp_path / "things").iterdir()) == []


LEFT = """
import sys
from pathlib import Path
from driftwalk.files import private_folder
print(private_folder(Path(sys.argv[1])))
"""


def test_private_folders_go_with_their_process(tmp_path: Path) -> None:
    done = run(LEFT, tmp_path)
    assert Path(done.stdout.strip()).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_child_leaves_its_parents_folders_alone(tmp_path: Path) -> None:
    folder = private_folder(tmp_path)
    child = os.fork()
    if child == 0:
        release(folder)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert folder.exists()
    release(folder)


@pytest.mark.parametrize("linked", [False, True], ids=["copied", "linked"])
def test_three_processes_at_one_cache(linked: bool) -> None:
    found = stress(300, 3, linked)
    assert found["operations"] == 300
    assert (found["errors"], found["wrong answers"], found["left behind"]) == (0, 0, 0), found
