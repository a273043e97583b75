"""The tests' own watchman: a page that does what none should is noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from browser import chromium
from browser.reader import Reader

BAD = """<!doctype html><title>x</title>
<img src="http://127.0.0.1:9/pixel"><img src="there.png">
<script>console.warn("hm")</script><script>null.x</script><script>alert(1)</script>"""


def test_whatever_a_page_should_not_do_is_noticed(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(BAD, "utf-8")
    reader.open(path)
    reader.close_pages()
    told, reader.complaints[:] = "\n".join(reader.complaints), []
    for noticed in ("http://127.0.0.1:9/pixel", "there.png", "console: hm", "error: ", "dialog: 1"):
        assert noticed in told


def test_no_browser_is_a_failure_only_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRIFTWALK_CHROMIUM", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no browser on the path"):
        chromium.find()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no browser on the path"):
        chromium.find()


def test_a_browser_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "browser"
    program.write_text("#!/bin/sh\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("DRIFTWALK_CHROMIUM", str(program))
    assert chromium.find() == str(program)
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("DRIFTWALK_CHROMIUM", str(tmp_path / "other"))
    with pytest.raises(pytest.fail.Exception, match="no program"):
        chromium.find()
