"""The commands `record` and `compare`: traces made, and held against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    PolicyOption,
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


@guarded
def record(
    model: ModelArgument,
    backend: Annotated[
        str, typer.Option("--backend", "-b", metavar="SPEC", help="The backend to record.")
    ] = "torch",
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="The trace's folder.")
    ] = Path("driftwalk.trace"),
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
    """Record all layer states of MODEL on one backend, for `compare` or `--reference trace:DIR`."""
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
        trace.save(output)
    size = sum(state.array.nbytes for state in trace)
    say(f"Trace: {output} ({len(trace)} states, {size / 1e6:.1f} MB)")


@guarded
def compare(
    reference: Annotated[
        Path, typer.Argument(metavar="REFERENCE", help="A trace's folder.", show_default=False)
    ],
    candidate: Annotated[
        Path, typer.Argument(metavar="CANDIDATE", help="Another's.", show_default=False)
    ],
    policy: PolicyOption = "dtype",
    rule: RuleOption = None,
    allow_missing: AllowMissingOption = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold two recorded traces against each other; no model and no framework is needed."""
    from dataclasses import replace

    from ..comparison import compare as hold
    from ..files import writable_folder
    from ..trace_file import load_trace

    if report is not None:
        writable_folder(report)
    first, second = load_trace(reference), load_trace(candidate)
    found = hold(first, second, parse_policy(policy, rule or []), tuple(allow_missing or ()))
    finish([replace(found, command=this_command())], report, as_json)
