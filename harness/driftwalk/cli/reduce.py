"""The command `reduce`: the smallest thing that still shows a drift, as a script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from . import options
from .bench import INTERRUPTED
from .console import guarded, say
from .options import option
from .rendering import finish_document, make_document

EXAMPLES = (
    "driftwalk reduce ./my-model --candidate onnxruntime -o repro/",
    "driftwalk reduce out/result.json -o repro/ --minutes 5",
)


@guarded
def reduce(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model, as for `verify`; or the result.json of a run that drifted.",
            show_default=False,
        ),
    ],
    candidate: Annotated[
        str | None,
        option("--candidate -c SPEC", "The backend that drifts; a stored result says which."),
    ] = None,
    output: Annotated[
        Path, option("-o --output DIR", "The folder to write: repro.py and what it needs.")
    ] = Path("driftwalk-repro"),
    point: Annotated[
        str | None, option("--point NAME", "Where it drifts; the root cause, if not said.")
    ] = None,
    minutes: Annotated[
        float | None, option("--minutes N", "End the search then, and keep what it has.")
    ] = None,
    runs: Annotated[
        int | None, option("--runs N", "End the search after so many tries.", min=0)
    ] = None,
    resume: Annotated[
        Path | None,
        option("--resume FILE", "A reduction.json, or its folder: its answers are not asked for."),
    ] = None,
    same_model: Annotated[
        str | None,
        option("--model MODEL", "The model, where a stored result's name does not lead to it."),
    ] = None,
    prompt: options.PromptOption = None,
    ids: options.IdsOption = None,
    inputs: options.InputOption = None,
    probe: options.ProbeOption = None,
    batch: options.BatchOption = None,
    length: options.LengthOption = None,
    seed: options.SeedOption = 0,
    blocks: options.BlocksOption = None,
    trust_remote_code: options.TrustOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Shrink what shows a drift of MODEL to a script that needs neither it nor driftwalk.

    Nodes are taken away, axes cut, values rounded and weights replaced by random ones for as long
    as the same drift shows, at the same place, in the same direction and of the same size. It ends
    in `repro.py`, for a graph also `repro.onnx`, and `issue.md` for an issue tracker. Exit code 0:
    they were written, or nothing drifts; 3: nothing smaller shows the drift.
    """
    from ..result import load_results
    from ..tasks.reduce.folder import holds_answers
    from ..tasks.reduce.run import reduce as run

    given = options.given_probe(prompt, ids, probe, inputs)
    stored = Path(model)
    source: object = model
    if stored.suffix == ".json" or (stored / "result.json").is_file():
        source = _only(load_results([stored]), model)
    try:
        made = make_document(
            run,
            output,
            source,
            candidate,
            output,
            given,
            point=point,
            minutes=minutes,
            runs=runs,
            resume=resume,
            batch=batch,
            length=length,
            seed=seed,
            blocks=blocks,
            trust_remote_code=trust_remote_code,
            **({"model_again": same_model} if same_model is not None else {}),
        )
    except KeyboardInterrupt:
        if not holds_answers(output):
            raise
        say(f"\ndriftwalk: interrupted; --resume {output} goes on from what was answered so far.")
        raise typer.Exit(INTERRUPTED) from None
    finish_document(made, output if made.found else None, as_json)


def _only(reports: Sequence[object], name: str) -> object:
    from ..errors import UsageError

    if len(reports) != 1:
        raise UsageError(f"{name!r} holds {len(reports)} results; name the result.json of one.")
    return reports[0]
