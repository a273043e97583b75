"""The commands `record` and `compare`: traces made or signed, and held against each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .console import guarded, say, this_command, working
from .options import option
from .rendering import finish

if TYPE_CHECKING:
    from ..signatures import Signature
    from ..states import Trace


@guarded
def record(
    model: options.ModelArgument,
    backend: Annotated[str, option("--backend -b SPEC", "The backend to record.")] = "torch",
    output: Annotated[
        Path | None,
        option(
            "-o --output PATH",
            "The trace's folder, or the signature's file. Driftwalk.trace, if none is named; "
            "driftwalk.signature.json.",
        ),
    ] = None,
    signature: Annotated[
        bool,
        option("--signature", "Store hashes, moments and projections: kilobytes, fit for git."),
    ] = False,
    prompt: options.PromptOption = None,
    ids: options.IdsOption = None,
    inputs: options.InputOption = None,
    probe: options.ProbeOption = None,
    steps: Annotated[
        int | None,
        option(
            "--steps N", "Decode: feed the prompt, then so many tokens, each the likeliest.", min=0
        ),
    ] = None,
    cache: Annotated[
        str,
        option("--cache KIND", "What is kept between steps: dynamic, static, or none."),
    ] = "dynamic",
    like: Annotated[
        Path | None,
        option(
            "--like TRACE", "Feed the tokens and steps of that trace; with --steps 0, all at once."
        ),
    ] = None,
    depth: Annotated[str, option("--depth D", "block, sublayer or module.")] = "block",
    blocks: options.BlocksOption = None,
    batch: options.BatchOption = None,
    length: options.LengthOption = None,
    seed: options.SeedOption = 0,
    trust_remote_code: options.TrustOption = False,
) -> None:
    """Record all layer states of MODEL on one backend, in a folder or as a signature."""
    from ..api import record as make
    from ..signatures import Signature
    from ..states import Trace

    with working() as bar:
        trace = make(
            model,
            backend,
            options.given_probe(prompt, ids, probe, inputs),
            depth,
            steps=steps,
            cache=cache,
            like=None if like is None else Trace.load(like),
            blocks=blocks,
            trust_remote_code=trust_remote_code,
            batch=batch,
            length=length,
            seed=seed,
            progress=bar,
        )
        if signature:
            path = Signature.of(trace).save(output or Path("driftwalk.signature.json"))
            size = f"{path.stat().st_size / 1e3:.1f} kB"
        else:
            path = trace.save(output or Path("driftwalk.trace"))
            size = f"{sum(state.array.nbytes for state in trace) / 1e6:.1f} MB"
    say(f"{'Signature' if signature else 'Trace'}: {path} ({len(trace)} states, {size})")


@guarded
def compare(
    reference: Annotated[
        Path,
        typer.Argument(
            metavar="REFERENCE", help="A trace's folder, or a signature's file.", show_default=False
        ),
    ],
    candidate: Annotated[
        Path, typer.Argument(metavar="CANDIDATE", help="Another's.", show_default=False)
    ],
    policy: Annotated[
        str, option("--policy P", "dtype, fixed:ATOL[,RTOL]; for signatures also l2:TOL.")
    ] = "dtype",
    points: Annotated[
        Path | None,
        option(
            "--map FILE",
            "Which points the candidate's states are: a TOML file, or auto: found by value.",
        ),
    ] = None,
    rule: options.RuleOption = None,
    allow_missing: options.AllowMissingOption = None,
    report: options.ReportOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Hold two recorded traces, or signatures, against each other; no model is needed.

    A signature gives bounds, and a verdict where those suffice.
    """
    from dataclasses import replace

    from ..comparison import compare as hold
    from ..files import writable_folder
    from ..signatures.compare import L2
    from ..signatures.data import load_either

    if report is not None:
        writable_folder(report)
    first, second = load_either(reference), load_either(candidate)
    if points is not None:
        second = _mapped(second, points, first)
    by_l2 = policy.startswith(L2) and not rule
    judged = policy if by_l2 else options.parse_policy(policy, rule or [])
    found = hold(first, second, judged, tuple(allow_missing or ()))
    finish([replace(found, command=this_command())], report, as_json)


def _mapped(side: Trace | Signature, file: Path, reference: Trace | Signature) -> Trace:
    """The candidate under the names of points."""
    from ..errors import UsageError
    from ..states import Trace
    from ..traces.point_map import load_map

    if not isinstance(side, Trace):
        raise UsageError("--map names the states of a trace; the candidate is a signature.")
    if str(file) == "auto":
        from driftwalk_backends.matching import by_value

        if not isinstance(reference, Trace):
            raise UsageError("--map auto needs the reference's states; it is a signature.")
        return by_value(reference, side)
    return load_map(file).renamed(side)
