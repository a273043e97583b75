"""The commands `probes suggest` and `probes search`: sets of probes, and the worst input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import guarded, say, show, working
from .options import Command, Group, option

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Make sets of probes for MODEL: one that covers most, or one that shows most.",
    epilog="Exit codes: 0 done, 1 drift was found, 2 usage error, 3 could not verify.",
)


@app.callback()
def _root() -> None: ...


@app.command("suggest", cls=Command, epilog="Example: driftwalk probes suggest M -o set.jsonl")
@guarded
def suggest(
    model: options.ModelArgument,
    output: Annotated[
        Path | None, option("--output -o FILE", "Where to write the set; stdout, if not said.")
    ] = None,
    seed: options.SeedOption = 0,
    blocks: options.BlocksOption = None,
    trust_remote_code: options.TrustOption = False,
) -> None:
    """Make a small set of probes that covers most of MODEL: rows, positions, experts, padding.

    The set is a .jsonl file, which `verify --probes` reads; what it covers is said on stderr.
    """
    from ..errors import UsageError
    from ..files import write_atomically
    from ..tasks.probes.entries import LINES
    from ..tasks.probes.suggesting import suggest as run

    if output is not None and output.suffix != LINES:
        raise UsageError(f"{output.name!r}: the name of a set ends in {LINES}.")
    with working(output.parent if output is not None else None) as bar:
        found = run(model, seed, bar, blocks=blocks, trust_remote_code=trust_remote_code)
    text = "".join(found.lines)
    if output is None:
        show(text)
    else:
        write_atomically(output, text)
    for sentence in found.sentences():
        say(f"driftwalk: {sentence}")
    if output is not None:
        say(f"Set: {output}")
