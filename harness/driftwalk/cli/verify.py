"""The command `verify`: one model, or all that the configuration names."""

from __future__ import annotations

from typing import Annotated

import typer

from . import configured, failing, options
from .console import guarded
from .options import option
from .rendering import finish
from .studies import ContrastOption, PatchOption, PropagationOption

EXAMPLES = (
    "driftwalk verify ./my-model --candidate emulated:bf16 --report out/",
    "driftwalk verify ./my-model -c onnxruntime -c torch,compile=inductor --prompt 'Hello there'",
    "driftwalk verify ./my-model -r torch:cpu:fp32 -c torch:cuda:fp16 --bench",
    "driftwalk verify ./my-model --probes builtin:text --report out/",
)

WORDS = (
    "Words:",
    "truth: this model in float64. Both sides are compared with it.",
    "yardstick: plain eager PyTorch at the dtype of a side. It shows how far from the truth honest "
    "arithmetic is, at each point.",
    "allowance: how far from the truth a side may be at a point: a few times the yardstick's "
    "error. A report shows which share of it was used.",
)

BENCH_ROUNDS = 15
"""Plain runs of each backend that `verify --bench` times."""


@guarded
def verify(
    context: typer.Context,
    model: options.AnyModelArgument = None,
    reference: Annotated[
        str | None,
        option(
            "--reference -r SPEC",
            "The backend that is right. torch, if none is named; for a graph, as written.",
        ),
    ] = None,
    candidate: Annotated[
        list[str] | None,
        option(
            "--candidate -c SPEC",
            "A backend to verify, name[:device][:dtype][,option=value]; may be given several "
            "times. onnxruntime, if none is named. `driftwalk backends` lists what there is.",
        ),
    ] = None,
    prompt: options.PromptOption = None,
    ids: options.IdsOption = None,
    inputs: options.InputOption = None,
    probe: options.ProbeOption = None,
    probes: options.ProbesOption = None,
    strict: options.StrictOption = False,
    thorough: options.ThoroughOption = False,
    policy: options.PolicyOption = "calibrated",
    rule: options.RuleOption = None,
    allow_missing: options.AllowMissingOption = None,
    max_format_kl: options.MaxFormatKlOption = None,
    min_format_snr: options.MinFormatSnrOption = None,
    depth: Annotated[str, option("--depth D", "block, sublayer, module or op.")] = "block",
    blame: Annotated[
        bool | None,
        option(
            "--blame/--no-blame",
            "Split each layer's error into introduced and inherited; on drift, if not said.",
        ),
    ] = None,
    cache: Annotated[bool, option("--cache/--no-cache", "Reuse stored calibrations.")] = True,
    bench: Annotated[
        bool, option("--bench", "Time plain runs of all backends afterwards.")
    ] = False,
    spill: Annotated[
        bool, option("--spill", "Keep the reference's states in a temporary file.")
    ] = False,
    stream: Annotated[
        bool, option("--stream", "Read, cast and move weights as they are needed; make no copies.")
    ] = False,
    witness: Annotated[
        str,
        option("--witness PLACE", "Where truth and yardsticks run: cpu, cuda or auto (by a side)."),
    ] = "auto",
    budget: Annotated[
        str | None,
        option("--budget SIZE", "Memory of this host at most: 8GiB; kept, or refused beforehand."),
    ] = None,
    contrast: ContrastOption = None,
    propagation: PropagationOption = False,
    patch: PatchOption = False,
    blocks: options.BlocksOption = None,
    batch: options.BatchOption = None,
    length: options.LengthOption = None,
    shape: options.ShapeOption = None,
    seed: options.SeedOption = 0,
    shapes: Annotated[
        str | None,
        option("--shapes LIST", "Verify at each of these: rows x length, 1x16,3x9, or auto."),
    ] = None,
    trust_remote_code: options.TrustOption = False,
    report: options.ReportOption = None,
    as_json: options.JsonOption = False,
    expected: configured.ExpectedOption = None,
    fail_on: failing.FailOnOption = None,
    max_slowdown: failing.SlowdownOption = 1.10,
    min_coverage: options.MinCoverageOption = None,
    config: configured.ConfigOption = None,
    list_only: configured.ListOption = False,
    only: configured.OnlyOption = None,
) -> None:
    """Run MODEL on a reference and on candidates, and walk their layers side by side.

    Without MODEL, all that the configuration names (driftwalk.toml, or pyproject.toml).
    """
    from ..errors import UsageError
    from ..files import writable_folder
    from ..project.expected import load_expected

    wanted = failing.check_failing(fail_on, model, bench, expected is not None)
    least = failing.parse_share(min_coverage)
    if expected is not None and probes is not None:
        raise UsageError("--expected is about one probe: of a set, any probe may drift elsewhere.")
    for name, given in (("--strict", strict), ("--thorough", thorough)):
        if given and probes is None:
            raise UsageError(f"{name} is about the probes of a set: it goes with --probes.")
    configured.check_options(context, model)
    if report is not None:
        writable_folder(report)
    if model is None:
        whole = configured.the_config(config)
        runs = configured.chosen(whole, only)
        if list_only:
            return configured.show_runs(runs, as_json)
        more = {"cache": cache, "spill": spill, "witness": witness, "stream": stream}
        more |= {} if budget is None else {"budget": budget}
        reports, code = configured.run_all(whole, runs, only is None, config, more)
        return finish(reports, report, as_json, code)
    known = {expected: load_expected(expected)} if expected is not None else {}
    reports = configured.verified(
        model,
        candidate or ["onnxruntime"],
        reference=reference,
        probe=options.given_probe(prompt, ids, probe, inputs),
        policy=options.parse_policy(policy, rule or []),
        depth=depth,
        blame="auto" if blame is None else blame,
        cache=cache,
        spill=spill,
        witness=witness,
        stream=stream,
        budget=budget,
        bench=BENCH_ROUNDS if bench else 0,
        contrast=contrast,
        propagation=propagation,
        patch=patch,
        blocks=blocks,
        allow_missing=allow_missing or (),
        max_format_kl=max_format_kl,
        min_format_snr=min_format_snr,
        batch=batch,
        length=length,
        input_shapes=options.parse_input_shapes(shape),
        seed=seed,
        shapes=shapes,
        trust_remote_code=trust_remote_code,
        probes=probes,
        strict=strict,
        thorough=thorough,
        keep_probes=report if probes is not None else None,
    )
    reports, code = configured.gated([(expected, report) for report in reports], known)
    code = failing.failing(reports, code, wanted, max_slowdown)
    finish(reports, report, as_json, failing.uncovered(reports, code, least))
