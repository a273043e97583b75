"""The app: a table of its commands. Each is imported when it is called, and none for `--help`."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import Annotated, Any

import typer

from .options import Command, Group, option

COMMANDS = {
    "verify": "Run MODEL on a reference and on candidates, and walk their layers side by side.",
    "demo": "The whole thing on a model that is built in: PyTorch against ONNX Runtime.",
    "backends": "What is usable here, and why the rest is not.",
    "report": "Render stored results again, anywhere: it needs no backend, no torch and no model.",
    "generate": "Decode MODEL step by step on a reference and candidates: where and why they part.",
    "extract": "Write one layer of a run, its inputs and both outputs into a folder of its own.",
    "record": "Record all layer states of MODEL on one backend, in a folder or as a signature.",
    "compare": "Hold two recorded traces, or signatures, against each other; no model is needed.",
    "bench": "Time backends of MODEL against each other: plain runs, taking turns.",
    "bisect": "Find the switch of a candidate that causes its drift, or those that do so together.",
    "reduce": "Shrink what shows a drift of MODEL to a script that needs neither it nor driftwalk.",
    "repair": "Find the parts of a quantised MODEL to leave in float, so that it costs less.",
    "probes": "Make sets of probes for MODEL: one that covers most, or one that shows most.",
    "selftest": "Put known bugs into copies of MODEL, and report which of them the gate catches.",
    "hwcheck": "Check the hardware: the same states to the last bit, cold and hot, in every dtype.",
    "fleet": "Run checks on every node and device of a Ray cluster, or on this machine.",
    "weights": "Compare the weights of B with those of A: which differ, by how much, and where.",
    "contrast": "How far A and B are apart in MODEL, token by token and layer by layer.",
    "geometry": "Where labelled sentences lie at each layer of MODEL: a picture, and numbers.",
    "visibility": "What a state of MODEL sees, and what sees it, layer by layer, token by token.",
}
"""Names and the first sentence of each; a test holds them against the commands themselves."""

_FIRST = ("verify", "demo", "backends", "report")
"""What everybody needs."""

_ELSEWHERE = {
    **{"report": "rendering", "record": "traces", "compare": "traces"},
    **{"demo": "first_steps", "backends": "first_steps"},
    **dict.fromkeys(("contrast", "geometry", "visibility"), "studies"),
}
"""Commands whose module has another name."""


def _load(name: str) -> Any:
    """The command itself; `fleet` and `probes` are apps of their own."""
    module = import_module(f".{_ELSEWHERE.get(name, name)}", __package__)
    if hasattr(module, "app"):
        return typer.main.get_command(module.app)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    examples, words = (getattr(module, name, ()) for name in ("EXAMPLES", "WORDS"))
    parts = (*words, *(("Examples:", *examples) if examples else ()))
    epilog = "\n\n".join(parts) if parts else None
    alone.command(name, cls=Command, epilog=epilog)(getattr(module, name))
    return typer.main.get_command(alone)


def _panel(name: str) -> str:
    return "First of all" if name in _FIRST else "And then"


class _Late(UserDict[str, Any]):
    """Commands by name, each loaded when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        if name in self.data and self.data[name] is None:
            self.data[name] = _load(name)
        return self.data[name]


class _Commands(Group):
    """A group that shows its help without loading what it helps with."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Late(dict.fromkeys(COMMANDS))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        late = self.commands
        self.commands = {
            name: Command(name, help=text, rich_help_panel=_panel(name))
            for name, text in COMMANDS.items()
        }
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = late


app = typer.Typer(
    name="driftwalk",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run one model on two backends and find the first layer where they disagree.",
    epilog="Exit codes: 0 within tolerance, 1 drift, 2 usage error, 3 could not verify.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__
        from .console import show

        show(f"driftwalk {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, option("--version", "Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None: ...
