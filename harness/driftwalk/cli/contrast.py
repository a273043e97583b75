"""The command `contrast`: how far two inputs are apart inside a model, as a unit for drift."""

from __future__ import annotations

from typing import Annotated

import typer

from .console import guarded, this_command, working
from .options import BlocksOption, JsonOption, ModelArgument, TrustOption
from .rendering import FolderOption, finish_document

ContrastOption = Annotated[
    str | None,
    typer.Option(
        "--contrast",
        metavar="A|B",
        help="Tell drift as a share of the distance between two inputs, too; "
        "'default' is a built-in pair.",
    ),
]


@guarded
def contrast(
    model: ModelArgument,
    first: Annotated[
        str | None, typer.Argument(metavar="[A]", help="A text, or token ids with --ids.")
    ] = None,
    second: Annotated[str | None, typer.Argument(metavar="[B]", help="The other.")] = None,
    backend: Annotated[
        str, typer.Option("--backend", "-b", metavar="SPEC", help="What runs both inputs.")
    ] = "torch",
    candidate: Annotated[
        str | None,
        typer.Option(
            "--candidate",
            "-c",
            metavar="SPEC",
            help="Also tell this one's drift, as a share of the distance between A and B.",
        ),
    ] = None,
    ids: Annotated[
        bool, typer.Option("--ids", help="A and B are token ids: '5 17 3' '5 18 3'.")
    ] = False,
    blocks: BlocksOption = None,
    trust_remote_code: TrustOption = False,
    report: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """How far A and B are apart in MODEL, token by token and layer by layer.

    Without A and B: two sentences that are built in, or token ids where there is no tokenizer.
    Exit code 1: a causal model's states depend on tokens that come later.
    """
    from ..errors import UsageError
    from ..files import writable_folder
    from ..tasks.studies.contrast import contrast as run

    if (first is None) != (second is None):
        raise UsageError("A contrast needs two inputs, A and B; or none, for the default pair.")
    if report is not None:
        writable_folder(report)
    given = (_ids(first), _ids(second)) if ids else (first, second)
    with working() as bar:
        found = run(
            model,
            *given,
            backend=backend,
            candidate=candidate,
            blocks=blocks,
            trust_remote_code=trust_remote_code,
            command=this_command(),
            progress=bar,
        )
    finish_document(found, report, as_json, failed=found.failed)


def _ids(text: str | None) -> object:
    from .options import given_probe

    return None if text is None else given_probe(None, text, None)
