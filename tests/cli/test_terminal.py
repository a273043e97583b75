"""On a terminal there are a progress bar and colours; in a pipe there is neither."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.program import driftwalk, environment
from processes import PATIENCE

pty = pytest.importorskip("pty", reason="no pseudo-terminals on this system")

TINY = ["verify", "cli.factories:Tiny", "-c", "torch:cpu:fp64"]


def on_a_terminal(*arguments: str, out: Path | None) -> tuple[int, str]:
    """Run with stderr on a pseudo-terminal, and stdout there too or in a file."""
    parent, child = pty.openpty()
    file = out.open("wb") if out else None
    run = subprocess.Popen(
        [sys.executable, "-m", "driftwalk", *arguments],
        env=environment(TERM="xterm-256color"),
        stdin=subprocess.DEVNULL,
        stdout=file or child,
        stderr=child,
    )
    os.close(child)
    seen = b""
    try:
        while True:
            try:
                piece = os.read(parent, 4096)
            except OSError:  # Linux: the other end is closed
                break
            if not piece:
                break
            seen += piece
        code = run.wait(PATIENCE)
    finally:
        run.kill()
        os.close(parent)
        if file:
            file.close()
    return code, seen.decode("utf-8", "replace")


def test_a_bar_on_stderr_and_clean_data_in_a_file(here: Path) -> None:
    slow = ["verify", "cli.factories:Slow", "-c", "torch:cpu:fp64"]
    code, seen = on_a_terminal(*slow, "--json", out=here / "result.json")
    assert code == 0, seen
    assert "━" in seen
    assert "reference: torch" in seen
    assert "candidate: torch:cpu:fp64" in seen
    assert "\x1b[?25h" in seen, "the cursor is shown again"
    text = (here / "result.json").read_text("utf-8")
    assert text.startswith("{")
    assert "\x1b" not in text
    assert "━" not in text


def test_colours_on_a_terminal_and_a_message_after_the_bar(here: Path) -> None:
    code, seen = on_a_terminal(*TINY, "--report", "out", out=None)
    assert code == 0, seen
    table = seen.partition("PASS")[0].rpartition("model")[2]
    assert "\x1b[32m" in table, "green"
    assert seen.rstrip().endswith("report.html")


def test_neither_bar_nor_colours_in_a_pipe() -> None:
    done = driftwalk(*TINY, env={"TERM": "xterm-256color", "FORCE_COLOR": "1"})
    assert (done.code, done.err) == (0, "")
    assert "PASS" in done.out
    assert "\x1b" not in done.out
