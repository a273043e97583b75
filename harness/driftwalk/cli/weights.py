"""The command `weights`: which parameters of two models differ, by how much, and where."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options
from .console import guarded
from .options import option
from .rendering import FolderOption, finish_document, make_document


@guarded
def weights(
    first: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A folder or a file of safetensors, an .onnx file, or a MODEL as elsewhere.",
            show_default=False,
        ),
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="Another.", show_default=False)],
    show_all: Annotated[bool, option("--all", "List weights that are the same, too.")] = False,
    trust_remote_code: options.TrustOption = False,
    report: FolderOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Compare the weights of B with those of A: which differ, by how much, and where.

    Exit code 0: all are the same numbers, in whatever dtype; 1: some differ, or only one side has
    them; 3: none could be compared.
    """
    from ..tasks.weights.run import weights as run

    made = make_document(run, report, first, second, trust_remote_code=trust_remote_code)
    finish_document(made, report, as_json, made.exit_code, show_all=show_all)
