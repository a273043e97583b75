"""The command `repair`: what of a quantised model to leave in float."""

from __future__ import annotations

from typing import Annotated

from . import options
from .console import guarded
from .options import option
from .rendering import FolderOption, finish_document, make_document

EXAMPLES = (
    "driftwalk repair demo:decoder --candidate onnxruntime,quantize=dynamic-int8 --goal kl=0.0001",
    "driftwalk repair ./my-model -c onnxruntime,file=int8.onnx --goal snr=30 --by module -o out/",
)


@guarded
def repair(
    model: options.ModelArgument,
    candidate: Annotated[str, option("--candidate -c SPEC", "The quantised backend.")],
    goal: Annotated[
        str,
        option(
            "--goal GOAL",
            "What the format may cost: kl=X, the mean KL divergence at most; snr=DB, at least.",
        ),
    ] = "kl=0.01",
    by: Annotated[
        str, option("--by WHAT", "What is left in float at once: block, or module.")
    ] = "block",
    prompt: options.PromptOption = None,
    ids: options.IdsOption = None,
    inputs: options.InputOption = None,
    probe: options.ProbeOption = None,
    trust_remote_code: options.TrustOption = False,
    report: FolderOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Find the parts of a quantised MODEL to leave in float, so that it costs less.

    Every part is measured: the model as its format declares it, with that part back in float, one
    run each; then the best of them together, until the goal is reached. Exit code 0: it is, and the
    candidate made anew passes, where it could be made; 1: it is not; 3: nothing could be measured.
    """
    from ..tasks.repair.run import repair as run

    given = options.given_probe(prompt, ids, probe, inputs)
    made = make_document(
        run, report, model, candidate, goal, by, given, trust_remote_code=trust_remote_code
    )
    finish_document(made, report, as_json, made.exit_code)
