"""The command `bisect`: which switch of a candidate causes its drift."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..tasks.constants import REPEATS_CONFIDENCE
from . import options
from .console import guarded
from .options import option
from .rendering import FolderOption, finish_document, make_document

if TYPE_CHECKING:
    from ..progress import Progress
    from ..tasks.bisect.result import Bisection

_NOT_OF_VERIFY = (
    *("--good-env", "--bad-env", "--minutes", "--runs", "--repeats", "--confidence"),
    *("--resume", "--switch", "--point", "--report", "-o"),
)
EXAMPLES = (
    "driftwalk bisect ./my-model --candidate onnxruntime -o out/",
    "driftwalk bisect model.onnx --candidate onnxruntime --probe inputs.npz",
    "driftwalk bisect ./my-model -c torch,compile=inductor --minutes 10 --resume out/",
)


@guarded
def bisect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="What verify takes; or the result.json of a run that drifted, or its folder.",
            show_default=False,
        ),
    ],
    candidate: Annotated[
        str | None,
        option("--candidate -c SPEC", "The backend that drifts. onnxruntime, if not said."),
    ] = None,
    reference: Annotated[
        str | None, option("--reference -r SPEC", "The backend that is right, as in verify.")
    ] = None,
    point: Annotated[
        str, option("--point POINT", "Where to judge it; the root cause of the drift, if not said.")
    ] = "",
    only: Annotated[
        list[str] | None,
        option("--switch GLOB", "Search among these alone; may be given several times."),
    ] = None,
    repeats: Annotated[
        str,
        option(
            "--repeats N",
            "Runs for each question; auto: one, or as many as runs that disagree need.",
        ),
    ] = "auto",
    confidence: Annotated[
        float,
        option("--confidence X", "That the right switch is named where runs disagree: 0.95."),
    ] = REPEATS_CONFIDENCE,
    runs: Annotated[int | None, option("--runs", "Runs of the candidate at most.", min=1)] = None,
    minutes: Annotated[
        float | None, option("--minutes M", "Time at most; what was found until then is kept.")
    ] = None,
    resume: Annotated[
        Path | None,
        option("--resume FILE", "A bisect.json, or its folder: its runs are not run again."),
    ] = None,
    good_env: Annotated[
        Path | None,
        option("--good-env PYTHON", "The interpreter of an environment without the drift ..."),
    ] = None,
    bad_env: Annotated[
        Path | None,
        option("--bad-env PYTHON", "... and of one with it: versions that differ are listed."),
    ] = None,
    prompt: options.PromptOption = None,
    ids: options.IdsOption = None,
    inputs: options.InputOption = None,
    probe: options.ProbeOption = None,
    policy: options.PolicyOption = "calibrated",
    rule: options.RuleOption = None,
    allow_missing: options.AllowMissingOption = None,
    blocks: options.BlocksOption = None,
    batch: options.BatchOption = None,
    length: options.LengthOption = None,
    shape: options.ShapeOption = None,
    seed: options.SeedOption = 0,
    trust_remote_code: options.TrustOption = False,
    report: FolderOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Find the switch of a candidate that causes its drift, or those that do so together.

    The candidate is verified, then run again with other switches off each time: graph transformers
    of ONNX Runtime, passes and lowerings of torch.compile, options of its spec. Each run is judged
    at the root cause of the drift. Exit code 0: there is no drift, and nothing to bisect; 1: there
    is, whatever was found; 3: nothing could be verified.
    """
    from ..tasks.bisect.run import bisect as run

    if good_env is not None or bad_env is not None:
        made = make_document(_in_environments, report, good_env, bad_env, minutes=minutes)
        finish_document(made, report, as_json, made.exit_code)

    def keep(made: Bisection) -> None:
        if report is not None:
            made.save(report, ["json"])

    made = make_document(
        run,
        report,
        _stored(model),
        candidate,
        reference,
        options.given_probe(prompt, ids, probe, inputs),
        options.parse_policy(policy, rule or ()),
        point=point,
        only=only or (),
        repeats=repeats,
        confidence=confidence,
        runs=runs,
        minutes=minutes,
        resume=resume,
        keep=keep,
        allow_missing=allow_missing or (),
        blocks=blocks,
        batch=batch,
        length=length,
        input_shapes=options.parse_input_shapes(shape),
        seed=seed,
        trust_remote_code=trust_remote_code,
    )
    finish_document(made, report, as_json, made.exit_code)


def _stored(model: str) -> object:
    """The report that a file or folder holds, where that is one; else what was typed."""
    from ..errors import UsageError
    from ..result import load_results

    path = Path(model)
    if path.suffix != ".json" and not (path / "result.json").is_file():
        return model
    reports = load_results([path])
    if len(reports) != 1:
        raise UsageError(
            f"{model!r} holds {len(reports)} results; name the result.json of one candidate."
        )
    return reports[0]


def _in_environments(
    good: Path | None, bad: Path | None, minutes: float | None, command: str, progress: Progress
) -> Bisection:
    """What was typed as a `verify` in both, without what only `bisect` takes."""
    from ..errors import UsageError
    from ..tasks.bisect.environments import bisect_environments

    if good is None or bad is None:
        raise UsageError("Give both: --good-env and --bad-env, an interpreter each.")
    words, kept, place = sys.argv[2:], [], 0
    while place < len(words):
        name, equals, _ = words[place].partition("=")
        if name == "--json":
            place += 1
        elif name in _NOT_OF_VERIFY:
            place += 1 if equals else 2
        else:
            kept.append(words[place])
            place += 1
    return bisect_environments(good, bad, kept, minutes=minutes, command=command, progress=progress)
