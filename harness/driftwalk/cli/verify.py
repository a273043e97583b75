"""The command `verify`: one model, or all that the configuration names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .configured import (
    ConfigOption,
    ExpectedOption,
    ListOption,
    OnlyOption,
    check_options,
    chosen,
    judged,
    run_all,
    show_runs,
    the_config,
)
from .console import guarded, this_command, working
from .failing import FailOnOption, SlowdownOption, check_failing, failing
from .options import (
    AllowMissingOption,
    AnyModelArgument,
    BatchOption,
    BlocksOption,
    IdsOption,
    JsonOption,
    LengthOption,
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
from .studies import ContrastOption, PatchOption, PropagationOption

if TYPE_CHECKING:
    from ..result import Report

BENCH_ROUNDS = 15
"""Plain runs of each backend that `verify --bench` times."""


@guarded
def verify(
    context: typer.Context,
    model: AnyModelArgument = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            "-r",
            metavar="SPEC",
            help="The backend that is right. Torch, if none is named; for a graph, as written.",
            show_default=False,
        ),
    ] = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option(
            "--candidate",
            "-c",
            metavar="SPEC",
            help="A backend to verify; may be given several times. Onnxruntime, if none is named.",
            show_default=False,
        ),
    ] = None,
    prompt: PromptOption = None,
    ids: IdsOption = None,
    probe: ProbeOption = None,
    policy: PolicyOption = "calibrated",
    rule: RuleOption = None,
    allow_missing: AllowMissingOption = None,
    depth: Annotated[
        str, typer.Option("--depth", metavar="D", help="block, sublayer, module or op.")
    ] = "block",
    blame: Annotated[
        bool | None,
        typer.Option(
            "--blame/--no-blame",
            help="Split each layer's error into introduced and inherited; on drift, if not said.",
            show_default=False,
        ),
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Reuse stored calibrations.")
    ] = True,
    bench: Annotated[
        bool, typer.Option("--bench", help="Time plain runs of all backends afterwards.")
    ] = False,
    spill: Annotated[
        bool, typer.Option("--spill", help="Keep the reference's states in a temporary file.")
    ] = False,
    contrast: ContrastOption = None,
    propagation: PropagationOption = False,
    patch: PatchOption = False,
    blocks: BlocksOption = None,
    batch: BatchOption = None,
    length: LengthOption = None,
    seed: SeedOption = 0,
    trust_remote_code: TrustOption = False,
    report: ReportOption = None,
    as_json: JsonOption = False,
    expected: ExpectedOption = None,
    fail_on: FailOnOption = None,
    max_slowdown: SlowdownOption = 1.10,
    config: ConfigOption = None,
    list_only: ListOption = False,
    only: OnlyOption = None,
) -> None:
    """Run MODEL on a reference and on candidates, and walk their layers side by side.

    Without MODEL, all that the configuration names (driftwalk.toml, or pyproject.toml).
    """
    from ..files import writable_folder
    from ..project.expected import load_expected

    wanted = check_failing(fail_on, model, bench, expected is not None)
    check_options(context, model)
    if report is not None:
        writable_folder(report)
    if model is None:
        whole = the_config(config)
        runs = chosen(whole, only)
        if list_only:
            return show_runs(runs, as_json)
        options = {"cache": cache, "spill": spill}
        reports, code = run_all(whole, runs, only is None, config, options)
        return finish(reports, report, as_json, code)
    given = given_probe(prompt, ids, probe)
    known = load_expected(expected) if expected is not None else ()
    reports = run_verify(
        model,
        candidate or ["onnxruntime"],
        reference,
        given,
        parse_policy(policy, rule or []),
        depth=depth,
        blame="auto" if blame is None else blame,
        cache=cache,
        spill=spill,
        bench=BENCH_ROUNDS if bench else 0,
        contrast=contrast,
        propagation=propagation,
        patch=patch,
        blocks=blocks,
        allow_missing=allow_missing or (),
        batch=batch,
        length=length,
        seed=seed,
        trust_remote_code=trust_remote_code,
    )
    reports, code = judged(reports, known)
    finish(reports, report, as_json, failing(reports, code, wanted, max_slowdown))


def run_verify(
    model: str,
    candidates: Sequence[object],
    reference: str | None,
    probe: object,
    policy: Any,
    **options: Any,
) -> list[Report]:
    """`verify_all`, with a bar."""
    from ..api import verify_all

    with working() as bar:
        return verify_all(
            model,
            candidates,
            reference,
            probe,
            policy,
            command=this_command(),
            progress=bar,
            **options,
        )
