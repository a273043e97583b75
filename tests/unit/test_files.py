"""Files are written whole or not at all."""

from __future__ import annotations

import json
import os
import stat

import pytest

from driftwalk.errors import UsageError
from driftwalk.files import writable_folder, write_atomically


def test_text_and_bytes_are_written_and_folders_made(tmp_path):
    path = tmp_path / "a" / "b" / "out.txt"
    assert write_atomically(path, "é") == path
    assert path.read_bytes() == "é".encode()
    write_atomically(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert [p.name for p in path.parent.iterdir()] == ["out.txt"]


@pytest.mark.parametrize("failing", ["replace", "fsync", "chmod"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failing, error):
    path = tmp_path / "result.json"
    path.write_text("old")

    def fail(*_args):
        raise error

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(type(error)):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_the_file_is_as_readable_as_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        path = write_atomically(tmp_path / "out", "x")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert os.umask(0o027) == 0o027, "and the umask is put back"
    finally:
        os.umask(before)


def test_text_that_is_not_unicode_is_escaped_as_json_would(tmp_path):
    prompt = b"caf\xe9".decode("utf-8", "surrogateescape")
    path = write_atomically(tmp_path / "out.json", json.dumps(prompt, ensure_ascii=False))
    assert json.loads(path.read_text(encoding="utf-8")) == prompt


def test_a_writable_folder_is_made_and_left_empty(tmp_path):
    folder = writable_folder(tmp_path / "new" / "reports")
    assert folder.is_dir()
    assert list(folder.iterdir()) == []
    assert writable_folder(str(folder)) == folder, "and may be there already"


def test_a_folder_that_cannot_be_written_is_a_usage_error_at_once(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(UsageError, match=r"Cannot write reports to .*Name another folder"):
        writable_folder(file / "below")
    with pytest.raises(UsageError, match="Cannot write reports to"):
        writable_folder(file)

    def refuse(**_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    with pytest.raises(UsageError, match="Permission denied"):
        writable_folder(tmp_path)
