"""The command `visibility`, and what `verify` can be asked for of the same kind."""

from __future__ import annotations

from typing import Annotated

import typer

from .console import guarded, this_command, working
from .options import (
    BlocksOption,
    IdsOption,
    JsonOption,
    ModelArgument,
    ProbeOption,
    SeedOption,
    TrustOption,
    given_probe,
)
from .rendering import FolderOption, finish_document

PropagationOption = Annotated[
    bool,
    typer.Option("--propagation", help="Hold the drift against what the truth's slope predicts."),
]
PatchOption = Annotated[
    bool,
    typer.Option(
        "--patch", help="Count the flips that each restored layer takes away: one run for each."
    ),
]


@guarded
def visibility(
    model: ModelArgument,
    text: Annotated[
        str | None, typer.Option("--text", "--prompt", "-p", metavar="T", help="One input text.")
    ] = None,
    ids: IdsOption = None,
    probe: ProbeOption = None,
    layer: Annotated[
        str | None,
        typer.Option("--layer", metavar="N", help="5 for layer.5; or embed, norm. The middle one."),
    ] = None,
    position: Annotated[
        int | None, typer.Option("--position", metavar="P", help="The token, counted from 0.")
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            "--backend", "-b", metavar="SPEC", help="A torch backend; 'truth' is in float64."
        ),
    ] = "torch",
    directions: Annotated[
        int | None,
        typer.Option(
            "--directions",
            metavar="N",
            help="Random directions per norm; 0: all, exact. At least 2, more for a small model.",
        ),
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option("--stack", metavar="NAME", help="Of an encoder-decoder: encoder or decoder."),
    ] = None,
    causal: Annotated[
        bool | None,
        typer.Option(
            "--causal/--no-causal",
            help="Whether looking ahead is a fault; as the model itself says, if not said.",
            show_default=False,
        ),
    ] = None,
    blocks: BlocksOption = None,
    seed: SeedOption = 0,
    trust_remote_code: TrustOption = False,
    report: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a state of MODEL sees, and what sees it, layer by layer, token by token.

    Exit code 1: a causal model's states depend on tokens that come later.
    """
    from ..files import writable_folder
    from ..tasks.studies.visibility import visibility as run

    if report is not None:
        writable_folder(report)
    given = given_probe([text] if text is not None else None, ids, probe)
    with working() as bar:
        found = run(
            model,
            given,
            layer=layer,
            position=position,
            backend=backend,
            directions=directions,
            stack=stack,
            causal=causal,
            seed=seed,
            blocks=blocks,
            trust_remote_code=trust_remote_code,
            command=this_command(),
            progress=bar,
        )
    finish_document(found, report, as_json, failed=found.failed)
