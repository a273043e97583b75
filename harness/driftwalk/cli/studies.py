"""The commands `contrast`, `geometry` and `visibility`, and what `verify` has of the same kind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import options
from .console import guarded
from .options import option
from .rendering import FolderOption, finish_document, make_document

ContrastOption = Annotated[
    str | None,
    option(
        "--contrast A|B",
        "Tell drift as a share of the distance between two inputs, too; "
        "'default' is a built-in pair.",
    ),
]
PropagationOption = Annotated[
    bool, option("--propagation", "Hold the drift against what the truth's slope predicts.")
]
PatchOption = Annotated[
    bool,
    option("--patch", "Count the flips that each restored layer takes away: one run for each."),
]


@guarded
def contrast(
    model: options.ModelArgument,
    first: Annotated[
        str | None, typer.Argument(metavar="[A]", help="A text, or token ids with --ids.")
    ] = None,
    second: Annotated[str | None, typer.Argument(metavar="[B]", help="The other.")] = None,
    backend: Annotated[str, option("--backend -b SPEC", "What runs both inputs.")] = "torch",
    candidate: Annotated[
        str | None,
        option(
            "--candidate -c SPEC",
            "Also tell this one's drift, as a share of the distance between A and B.",
        ),
    ] = None,
    ids: Annotated[bool, option("--ids", "A and B are token ids: '5 17 3' '5 18 3'.")] = False,
    blocks: options.BlocksOption = None,
    trust_remote_code: options.TrustOption = False,
    report: FolderOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """How far A and B are apart in MODEL, token by token and layer by layer.

    Without A and B: two sentences that are built in, or token ids where there is no tokenizer.
    Exit code 1: a causal model's states depend on tokens that come later.
    """
    from ..errors import UsageError
    from ..tasks.studies.contrast import contrast as run

    if (first is None) != (second is None):
        raise UsageError("A contrast needs two inputs, A and B; or none, for the default pair.")
    _finish_study(
        run,
        report,
        as_json,
        model,
        *(
            options.parse_ids(text) if ids and text is not None else text
            for text in (first, second)
        ),
        backend=backend,
        candidate=candidate,
        blocks=blocks,
        trust_remote_code=trust_remote_code,
    )


@guarded
def geometry(
    model: options.ModelArgument,
    dataset: Annotated[
        str,
        option(
            "--dataset -d SET",
            "cities, cities-incomplete, cities-complete, or a .csv or .jsonl file with "
            "the columns text and label.",
        ),
    ] = "cities",
    backend: Annotated[str, option("--backend -b SPEC", "What runs the sentences.")] = "torch",
    candidate: Annotated[
        str | None, option("--candidate -c SPEC", "A backend to lay over it.")
    ] = None,
    pooling: Annotated[
        str | None,
        option(
            "--pooling P",
            "last, cls, mean or max; last for a causal model, else mean, if not said.",
        ),
    ] = None,
    projection: Annotated[
        str, option("--projection P", "pca; or umap, with driftwalk[umap].")
    ] = "pca",
    neighbours: Annotated[
        int, option("--neighbours -k", "Neighbours that should stay.", min=1)
    ] = 10,
    batch: Annotated[int, option("--batch", "Sentences run at a time.", min=1)] = 16,
    seed: Annotated[int, option("--seed", "Seed of UMAP.", min=0)] = 0,
    blocks: options.BlocksOption = None,
    trust_remote_code: options.TrustOption = False,
    report: FolderOption = None,
    as_json: options.JsonOption = False,
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
    model: options.ModelArgument,
    text: Annotated[str | None, option("--text --prompt -p T", "One input text.")] = None,
    ids: options.IdsOption = None,
    probe: options.ProbeOption = None,
    layer: Annotated[
        str | None, option("--layer N", "5 for layer.5; or embed, norm. The middle one.")
    ] = None,
    position: Annotated[int | None, option("--position P", "The token, counted from 0.")] = None,
    backend: Annotated[
        str, option("--backend -b SPEC", "A torch backend; 'truth' is in float64.")
    ] = "torch",
    directions: Annotated[
        int | None,
        option(
            "--directions N",
            "Random directions per norm; 0: all, exact. At least 2, more for a small model.",
        ),
    ] = None,
    stack: Annotated[
        str | None, option("--stack NAME", "Of an encoder-decoder: encoder or decoder.")
    ] = None,
    causal: Annotated[
        bool | None,
        option(
            "--causal/--no-causal",
            "Whether looking ahead is a fault; as the model itself says, if not said.",
            show_default=False,
        ),
    ] = None,
    blocks: options.BlocksOption = None,
    seed: options.SeedOption = 0,
    trust_remote_code: options.TrustOption = False,
    report: FolderOption = None,
    as_json: options.JsonOption = False,
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
        options.given_probe([text] if text is not None else None, ids, probe),
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


def _finish_study(run: Any, report: Path | None, as_json: bool, *given: Any, **more: Any) -> None:
    study = make_document(run, report, *given, **more)
    finish_document(study, report, as_json, failed=study.failed)
