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
from typing import Any, ParamSpec, TextIO, TypeVar

import typer

from ..errors import DriftwalkError
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


def show_json(text: str) -> None:
    """JSON on stdout, to the last character."""
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
        _abandon(stream)
        if not isinstance(error, BrokenPipeError):
            raise


def _abandon(stream: TextIO) -> None:
    """What is left in the buffer must not fail once more at exit, which would be exit code 120."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


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
        except DriftwalkError as error:
            say(f"driftwalk: {error}")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            say("\ndriftwalk: interrupted; nothing was written.")
            raise typer.Exit(130) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if os.environ.get("DRIFTWALK_DEBUG"):
                traceback.print_exc()
            if isinstance(error, OSError):  # a full disk, a cache that is not ours: no bug
                where = error.filename2 or error.filename
                say(f"driftwalk: {error.strerror or error}" + (f": {where}" if where else ""))
                raise typer.Exit(DriftwalkError.exit_code) from None
            if isinstance(error, ModuleNotFoundError) and not _ours(error):
                say(
                    f"driftwalk: {error.name} is not installed here, and this command needs it. "
                    "`driftwalk backends` shows what is usable here; `driftwalk report` needs none."
                )
                raise typer.Exit(DriftwalkError.exit_code) from None
            say(
                f"driftwalk: internal error: {type(error).__name__}: {error}\n"
                "This is a bug in driftwalk. DRIFTWALK_DEBUG=1 shows the traceback."
            )
            raise typer.Exit(CRASHED) from None

    return run


def _ours(error: ModuleNotFoundError) -> bool:
    """Whether what is missing is a part of driftwalk, and so a bug."""
    return not error.name or error.name.startswith("driftwalk")


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
def progress() -> Iterator[Progress]:
    """A bar where somebody looks, silence where not."""
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


@contextmanager
def working() -> Iterator[Progress]:
    """Long work: a bar where somebody looks; what a model or an exporter prints is not our data."""
    with redirect_stdout(sys.stderr), progress() as bar:
        yield bar


def this_command() -> str:
    """What was typed, as it can be typed again."""
    return shlex.join(["driftwalk", *sys.argv[1:]])
