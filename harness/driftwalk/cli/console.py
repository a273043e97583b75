"""What the command line says and how it ends: data to stdout, the rest to stderr, exit codes."""

from __future__ import annotations

import functools
import logging
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, ParamSpec, TextIO, TypeVar

import typer

from ..errors import DriftwalkError
from ..files import writable_folder
from ..progress import Progress

P = ParamSpec("P")
R = TypeVar("R")

CRASHED = 70
"""sysexits.h: an internal error, ours and not the user's."""


def say(text: str) -> None:
    """A message for a person, on stderr."""
    _write(sys.stderr, _harmless(text))


def show(text: str) -> None:
    """The data that was asked for, on stdout."""
    _write(sys.stdout, _harmless(text))


def show_json(data: object) -> None:
    """JSON on stdout, to the last character."""
    from ..json_tables import to_text

    text = to_text(data, ascii_only=True).removesuffix("\n")
    # Only a string can hold this; written as an escape it is the same string, and no command.
    _write(sys.stdout, text.replace("##[", "#\\u0023["))


def tell_github(commands: str) -> None:
    """Workflow commands, on stderr: the runner reads it too, and stdout stays data."""
    if commands:
        _write(sys.stderr, commands)


def on_github() -> bool:
    """Whether a GitHub runner reads what is printed, and obeys the commands in it."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _harmless(text: str) -> str:
    """Text with names from outside must not give commands to a runner that reads along."""
    if not on_github():
        return text
    from driftwalk_reports.github import harmless

    return harmless(text)


def _write(stream: TextIO, text: str) -> None:
    """A reader that has gone (head, grep -q) changes no exit code: drift stays drift."""
    try:
        stream.write(text.rstrip("\n") + "\n")
        stream.flush()  # here, not at exit, where it would be too late to say anything
    except OSError as error:
        # What is left in the buffer must not fail once more at exit: that would be exit code 120.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Turn every way a command can fail into a message and an exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            # The hub client reports every retry; the error at the end says it all.
            logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return command(*args, **kwargs)
        except (typer.Exit, typer.Abort):
            raise
        except (Exception, KeyboardInterrupt) as error:
            message, code = _explained(error)
            say(message)
            raise typer.Exit(code) from None

    return run


def _explained(error: BaseException) -> tuple[str, int]:
    """What to say of an error that ends a command, and the exit code."""
    if isinstance(error, DriftwalkError):
        return f"driftwalk: {error}", error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "\ndriftwalk: interrupted; nothing was written.", 130
    if os.environ.get("DRIFTWALK_DEBUG"):
        traceback.print_exc()
    if isinstance(error, OSError):  # a full disk, a cache that is not ours: no bug
        where = error.filename2 or error.filename
        text = f"driftwalk: {error.strerror or error}" + (f": {where}" if where else "")
        return text, DriftwalkError.exit_code
    # A part of driftwalk that is missing is a bug.
    missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if missing and not missing.startswith("driftwalk"):
        return (
            f"driftwalk: {missing} is not installed here, and this command needs it. "
            "`driftwalk backends` shows what is usable here; `driftwalk report` needs none."
        ), DriftwalkError.exit_code
    return (
        f"driftwalk: internal error: {type(error).__name__}: {error}\n"
        "This is a bug in driftwalk. DRIFTWALK_DEBUG=1 shows the traceback."
    ), CRASHED


class BarProgress(Progress):
    """A progress bar on stderr, gone when the work is done."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._expected = 0
        self._task = bar.add_task("starting", total=None)

    def expect(self, stages: int) -> None:
        self._expected += stages
        self._bar.update(self._task, total=self._expected)

    @contextmanager
    def stage(self, text: str, extra: bool = False) -> Iterator[None]:
        if extra:
            self.expect(1)
        self._bar.update(self._task, description=text)
        yield
        self._bar.advance(self._task)


@contextmanager
def working(folder: Path | None = None) -> Iterator[Progress]:
    """Long work: a bar where somebody looks; what a model or an exporter prints is not our data.

    That the folder for its reports, if there is one, can be written to is proved before.
    """
    if folder is not None:
        writable_folder(folder)
    with redirect_stdout(sys.stderr):
        if not sys.stderr.isatty():
            yield Progress()
            return
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichBar

        columns = (
            SpinnerColumn(),
            BarColumn(24),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )
        with RichBar(*columns, console=Console(stderr=True), transient=True) as bar:
            yield BarProgress(bar)


def this_command() -> str:
    """What was typed, as it can be typed again."""
    return " ".join(["driftwalk", *map(_quoted, sys.argv[1:])])


def _quoted(word: str) -> str:
    """A word for a shell; with escapes, as bash and zsh read them, where it is not printable."""
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_escape, word))}'"


def _escape(letter: str) -> str:
    if letter.isprintable():
        return f"\\{letter}" if letter in "\\'" else letter
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))
