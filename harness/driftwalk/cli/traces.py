"""The commands `record` and `compare`: traces made or signed, and held against each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import guarded, say, this_command, working
from .options import (
    AllowMissingOption,
    BatchOption,
    BlocksOption,
    IdsOption,
    JsonOption,
    LengthOption,
    ModelArgument,
    ProbeOption,
    PromptOption,
    ReportOption,
    RuleOption,
    SeedOption,
    TrustOption,
    given_probe,
    parse_policy,
)
from .rendering import finish

if TYPE_CHECKING:
    from ..signatures import Signature
    from ..states import Trace


@guarded
def record(
    model: ModelArgument,
    backend: Annotated[
        str, typer.Option("--backend", "-b", metavar="SPEC", help="The backend to record.")
    ] = "torch",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="PATH",
            help="The trace's folder, or the signature's file. Driftwalk.trace, if none is named; "
            "driftwalk.signature.json.",
            show_default=False,
        ),
    ] = None,
    signature: Annotated[
        bool,
        typer.Option(
            "--signature", help="Store hashes, moments and projections: kilobytes, fit for git."
        ),
    ] = False,
    prompt: PromptOption = None,
    ids: IdsOption = None,
    probe: ProbeOption = None,
    depth: Annotated[
        str, typer.Option("--depth", metavar="D", help="block, sublayer or module.")
    ] = "block",
    blocks: BlocksOption = None,
    batch: BatchOption = None,
    length: LengthOption = None,
    seed: SeedOption = 0,
    trust_remote_code: TrustOption = False,
) -> None:
    """Record all layer states of MODEL on one backend, in a folder or as a signature."""
    from ..verification import record as make

    given = given_probe(prompt, ids, probe)
    with working() as bar:
        trace = make(
            model,
            backend,
            given,
            depth,
            blocks=blocks,
            trust_remote_code=trust_remote_code,
            batch=batch,
            length=length,
            seed=seed,
            progress=bar,
        )
        if signature:
            from ..signatures import Signature

            file = Signature.of(trace).save(output or Path("driftwalk.signature.json"))
        else:
            folder = trace.save(output or Path("driftwalk.trace"))
    if signature:
        say(f"Signature: {file} ({len(trace)} states, {file.stat().st_size / 1e3:.1f} kB)")
        return
    size = sum(state.array.nbytes for state in trace)
    say(f"Trace: {folder} ({len(trace)} states, {size / 1e6:.1f} MB)")


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
        str,
        typer.Option(
            "--policy", metavar="P", help="dtype, fixed:ATOL[,RTOL]; for signatures also l2:TOL."
        ),
    ] = "dtype",
    points: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="FILE",
            help="Which points the candidate's states are: a TOML file, or auto: found by value.",
        ),
    ] = None,
    rule: RuleOption = None,
    allow_missing: AllowMissingOption = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
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
    if policy.startswith(L2) and not rule:
        found = hold(first, second, policy, tuple(allow_missing or ()))
    else:
        judged = parse_policy(policy, rule or [])
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
