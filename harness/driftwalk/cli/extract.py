"""The command `extract`: a layer of a run as a folder that reproduces its number."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import guarded, say, show, working
from .options import option


@guarded
def extract(
    result: Annotated[
        Path,
        typer.Argument(
            metavar="RESULT",
            help="A result.json that `verify --report` wrote, or its folder.",
            show_default=False,
        ),
    ],
    point: Annotated[
        str | None,
        typer.Argument(
            metavar="POINT",
            help="Which layer: layer.5, norm, logits ... The root cause, if not said.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Path, option("-o --output DIR", "The folder to write.")] = Path(
        "driftwalk-bundle"
    ),
    model: Annotated[
        str | None,
        option("--model MODEL", "The model, where the report's name for it does not lead to it."),
    ] = None,
    candidate: Annotated[
        str | None,
        option(
            "--candidate -c SPEC", "The candidate, where the report's spec does not lead to it."
        ),
    ] = None,
    prompt: options.PromptOption = None,
    ids: options.IdsOption = None,
    inputs: options.InputOption = None,
    probe: options.ProbeOption = None,
    batch: options.BatchOption = None,
    length: options.LengthOption = None,
    seed: Annotated[int | None, option("--seed", "Seed of the default probe.", min=0)] = None,
    blocks: options.BlocksOption = None,
    trust_remote_code: options.TrustOption = False,
    force: Annotated[bool, option("--force", "Replace a bundle that is there already.")] = False,
) -> None:
    """Write one layer of a run, its inputs and both outputs into a folder of its own.

    `python DIR/replay.py` prints the error the layer introduced, as in the report. It needs torch
    and numpy, and onnxruntime where the candidate is an ONNX graph. The probe is made again from
    the report; what it does not hold (ids, arrays) is given as it was given to verify.
    """
    from ..errors import UsageError
    from ..result import load_results
    from ..tasks.bundles.extraction import extract as run

    reports = load_results([result])
    if len(reports) != 1:
        raise UsageError(
            f"{str(result)!r} holds {len(reports)} results; name the result.json of one candidate."
        )
    given = options.given_probe(prompt, ids, probe, inputs)
    with working() as bar:
        made = run(
            reports[0],
            point,
            output,
            model=model,
            candidate=candidate or _demo_candidate(reports[0].command),
            probe=given,
            batch=batch,
            length=length,
            seed=seed,
            blocks=blocks,
            trust_remote_code=trust_remote_code,
            force=force,
            progress=bar,
        )
    show(made.replay)
    say(f"Bundle: {made.folder}\nRun it anywhere: python {shlex.quote(str(made.folder))}/replay.py")


def _demo_candidate(command: str) -> object:
    """`demo --fault N` makes its candidate itself: a model that no spec names."""
    fault = re.match(r"driftwalk demo\b.*--fault[ =](\d)\b", command)
    if fault is None:
        return None
    from driftwalk_backends.demo import LAYERS, faulty_decoder
    from driftwalk_backends.torch_eager import TorchEager

    return TorchEager.around(faulty_decoder(min(int(fault[1]), LAYERS - 1)))
