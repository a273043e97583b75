"""The command `geometry`: where sentences lie at each layer, and whether a backend keeps them."""

from __future__ import annotations

from typing import Annotated

import typer

from .console import guarded, this_command, working
from .options import BlocksOption, JsonOption, ModelArgument, TrustOption
from .rendering import FolderOption, finish_document


@guarded
def geometry(
    model: ModelArgument,
    dataset: Annotated[
        str,
        typer.Option(
            "--dataset",
            "-d",
            metavar="SET",
            help="cities, cities-incomplete, cities-complete, or a .csv or .jsonl file with "
            "the columns text and label.",
        ),
    ] = "cities",
    backend: Annotated[
        str, typer.Option("--backend", "-b", metavar="SPEC", help="What runs the sentences.")
    ] = "torch",
    candidate: Annotated[
        str | None,
        typer.Option("--candidate", "-c", metavar="SPEC", help="A backend to lay over it."),
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            "--pooling",
            metavar="P",
            help="last, cls, mean or max; last for a causal model, else mean, if not said.",
        ),
    ] = None,
    projection: Annotated[
        str, typer.Option("--projection", metavar="P", help="pca; or umap, with driftwalk[umap].")
    ] = "pca",
    neighbours: Annotated[
        int, typer.Option("--neighbours", "-k", min=1, help="Neighbours that should stay.")
    ] = 10,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sentences run at a time.")] = 16,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of UMAP.")] = 0,
    blocks: BlocksOption = None,
    trust_remote_code: TrustOption = False,
    report: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Where labelled sentences lie at each layer of MODEL: a picture, and numbers.

    With --candidate: who stays whose neighbour, CKA, Procrustes distance, separation of the labels.
    Exit code 1: the candidate gives NaN or Inf.
    """
    from ..files import writable_folder
    from ..tasks.studies.geometry import geometry as run

    if report is not None:
        writable_folder(report)
    with working() as bar:
        found = run(
            model,
            dataset,
            backend=backend,
            candidate=candidate,
            pooling=pooling,
            projection=projection,
            k=neighbours,
            batch=batch,
            seed=seed,
            blocks=blocks,
            trust_remote_code=trust_remote_code,
            command=this_command(),
            progress=bar,
        )
    finish_document(found, report, as_json, failed=found.failed)
