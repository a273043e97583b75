"""The commands `probes suggest` and `probes search`: sets of probes, and the worst input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import options
from .console import guarded, say, show, working
from .options import Command, Group, option
from .rendering import finish, make_document

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Make sets of probes for MODEL: one that covers most, or one that shows most.",
    epilog="Exit codes: 0 done, 1 drift was found, 2 usage error, 3 could not verify.",
)


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


@app.command(
    "search",
    cls=Command,
    epilog="Example: driftwalk probes search M --candidate onnxruntime --minutes 10 -o out/",
)
@guarded
def search(
    model: options.ModelArgument,
    candidate: Annotated[str, option("--candidate -c SPEC", "The backend to look for drift of.")],
    reference: Annotated[
        str | None, option("--reference -r SPEC", "The backend that is right: torch.")
    ] = None,
    probes: Annotated[
        str, option("--probes SET", "The set to begin with, as `verify --probes` takes it.")
    ] = "builtin:edge",
    minutes: Annotated[
        float | None,
        option("--minutes", "How long to search and to shrink; 10, if not said.", min=0.0),
    ] = None,
    runs: Annotated[
        int | None,
        option("--runs", "How many runs; the same seed, the same end.", min=0),
    ] = None,
    corpus: Annotated[
        Path, option("--corpus DIR", "Where probes are kept; one that is there is gone on with.")
    ] = Path("driftwalk-corpus"),
    policy: options.PolicyOption = "calibrated",
    seed: options.SeedOption = 0,
    blocks: options.BlocksOption = None,
    trust_remote_code: options.TrustOption = False,
    report: options.ReportOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Look for the input of MODEL that uses most of its allowance: change probes, keep the worse.

    Tokens, lengths, masks and values are changed. Ctrl-C ends the search and keeps its corpus. The
    worst probe and its smallest form are written beside it, and the report is that of the worst.
    """
    from ..api import verify_all
    from ..tasks.probes.search import SMALLEST, WORST
    from ..tasks.probes.search import search as run

    limit = 10.0 if minutes is None and runs is None else minutes
    given: dict[str, Any] = {
        "blocks": blocks,
        "trust_remote_code": trust_remote_code,
        "policy": policy,
    }
    given |= {"runs": runs, "minutes": limit, "seed": seed}
    found = make_document(
        run, report, verify_all, model, candidate, corpus, reference, probes, **given
    )
    say(f"Worst: {corpus / WORST}\nSmallest form: {corpus / SMALLEST}")
    finish([found.report], report, as_json)
