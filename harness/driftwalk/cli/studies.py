"""The commands `contrast`, `geometry` and `visibility`, and what `verify` has of the same kind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import guarded
from .options import (
    BlocksOption,
    IdsOption,
    JsonOption,
    ModelArgument,
    ProbeOption,
    SeedOption,
    TrustOption,
    given_probe,
    parse_ids,
)
from .rendering import FolderOption, finish_document, make_document

ContrastOption = Annotated[
    str | None,
    typer.Option(
        "--contrast",
        metavar="A|B",
        help="Tell drift as a share of the distance between two inputs, too; "
        "'default' is a built-in pair.",
    ),
]
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
    from ..tasks.studies.contrast import contrast as run

    if (first is None) != (second is None):
        raise UsageError("A contrast needs two inputs, A and B; or none, for the default pair.")
    given = [parse_ids(text) if ids and text is not None else text for text in (first, second)]
    options = {"candidate": candidate, "blocks": blocks, "trust_remote_code": trust_remote_code}
    _finish_study(run, report, as_json, model, *given, backend=backend, **options)


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
    from ..tasks.studies.geometry import geometry as run

    _finish_study(
        run,
        report,
        as_json,
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
    )


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
    from ..tasks.studies.visibility import visibility as run

    _finish_study(
        run,
        report,
        as_json,
        model,
        given_probe([text] if text is not None else None, ids, probe),
        layer=layer,
        position=position,
        backend=backend,
        directions=directions,
        stack=stack,
        causal=causal,
        seed=seed,
        blocks=blocks,
        trust_remote_code=trust_remote_code,
    )


def _finish_study(
    run: Any, report: Path | None, as_json: bool, *given: Any, **options: Any
) -> None:
    study = make_document(run, report, *given, **options)
    finish_document(study, report, as_json, failed=study.failed)
