"""The command `generate`: where decoding on a cache parts, in which step, and by whose doing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from . import options
from .console import guarded
from .options import option
from .rendering import finish, make_document

EXAMPLES = (
    "driftwalk generate ./my-model --candidate emulated:bf16 --prompt 'Hello there' --report out/",
    "driftwalk generate ./my-model -c torch,attn=eager -c emulated:fp16 --cache static",
    "driftwalk generate demo:decoder -c emulated:fp16 --ids '5 17 3' --steps 64",
    "driftwalk generate demo:decoder -c torch,attn=eager --ids '5 17 3' --steps 8 --beams 4",
    "driftwalk generate ./my-model --candidate 'command:./engine --weights w.bin'",
)


@guarded
def generate(
    model: options.ModelArgument,
    reference: Annotated[
        str | None, option("--reference -r SPEC", "The backend that is right, and chooses.")
    ] = None,
    candidate: Annotated[
        list[str] | None,
        option(
            "--candidate -c SPEC",
            "A backend to decode with, name[:device][:dtype][,option=value]; may be given several "
            "times. `driftwalk backends` lists what there is.",
        ),
    ] = None,
    prompt: options.PromptOption = None,
    ids: options.IdsOption = None,
    inputs: options.InputOption = None,
    probe: options.ProbeOption = None,
    steps: Annotated[
        int | None,
        option(
            "--steps N",
            "Tokens to generate after the prompt: 32, or as many as a recording has.",
            min=1,
        ),
    ] = None,
    cache: Annotated[
        str,
        option(
            "--cache KIND",
            "What is kept between steps: dynamic, static, sliding, quantized, or none.",
        ),
    ] = "dynamic",
    beams: Annotated[
        int, option("--beams", "Rows of a beam search for each prompt; 1: no search.", min=1)
    ] = 1,
    chunk: Annotated[
        int, option("--chunk", "Tokens of the prompt to feed at once; 0: all.", min=0)
    ] = 0,
    draft: Annotated[
        int,
        option("--draft", "Tokens that an assistant drafts for each run, some wrong.", min=0),
    ] = 0,
    policy: options.PolicyOption = "calibrated",
    rule: options.RuleOption = None,
    allow_missing: options.AllowMissingOption = None,
    blame: Annotated[
        bool | None,
        option("--blame/--no-blame", "Find the layer that is the cause; on drift, if not said."),
    ] = None,
    invariance: Annotated[
        bool,
        option(
            "--invariance",
            "Also compare runs that should agree: pieces, batches, padding, all tokens fed again.",
        ),
    ] = False,
    patch: Annotated[
        bool,
        option(
            "--patch",
            "Find the layer whose drift parts the two sides: a decoding for each, up to there.",
        ),
    ] = False,
    witness: Annotated[
        str,
        option("--witness PLACE", "Where truth and yardsticks run: cpu, cuda or auto (by a side)."),
    ] = "auto",
    blocks: options.BlocksOption = None,
    batch: options.BatchOption = None,
    length: options.LengthOption = None,
    seed: options.SeedOption = 0,
    trust_remote_code: options.TrustOption = False,
    report: Annotated[
        Path | None, option("--report DIR", "Write generation.json, HTML, Markdown and JUnit here.")
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Decode MODEL step by step on a reference and candidates: where and why they part.

    Both sides are fed the tokens that the reference chooses. Exit code 0: every step agrees within
    tolerance; 1: drift; 3: could not be verified.
    """
    from ..errors import UsageError
    from ..judge.gate import exit_code
    from ..tasks.generation.run import generate_all

    if not candidate:
        raise UsageError("Name a backend to decode with: --candidate emulated:bf16.")
    made = make_document(
        generate_all,
        report,
        model,
        candidate,
        reference,
        options.given_probe(prompt, ids, probe, inputs),
        steps,
        options.parse_policy(policy, rule or []),
        cache,
        "auto" if blame is None else blame,
        beams=beams,
        chunk=chunk,
        draft=draft,
        invariance=invariance,
        allow_missing=tuple(allow_missing or ()),
        patch=patch,
        witness=witness,
        blocks=blocks,
        batch=batch,
        length=length,
        seed=seed,
        trust_remote_code=trust_remote_code,
    )
    finish(made, report, as_json, exit_code(made))
