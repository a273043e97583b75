"""The app and its commands verify, demo and backends; report and selftest stand on their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .bench import bench as bench_command
from .console import guarded, show, show_json, this_command, working
from .extract import extract
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
from .rendering import finish, report
from .selftest import selftest
from .traces import compare, record

if TYPE_CHECKING:
    from ..result import Report

BENCH_ROUNDS = 15
"""Plain runs of each backend that `verify --bench` times."""

app = typer.Typer(
    name="driftwalk",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run one model on two backends and find the first layer where they disagree.",
    epilog="Exit codes: 0 within tolerance, 1 drift, 2 usage error, 3 could not verify.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        show(f"driftwalk {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


@app.command()
@guarded
def verify(
    model: ModelArgument,
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
    blocks: BlocksOption = None,
    batch: BatchOption = None,
    length: LengthOption = None,
    seed: SeedOption = 0,
    trust_remote_code: TrustOption = False,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run MODEL on a reference and on candidates, and walk their layers side by side."""
    from ..files import writable_folder

    if report is not None:
        writable_folder(report)
    given = given_probe(prompt, ids, probe)
    reports = _run(
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
        blocks=blocks,
        allow_missing=allow_missing or (),
        batch=batch,
        length=length,
        seed=seed,
        trust_remote_code=trust_remote_code,
    )
    finish(reports, report, as_json)


@app.command()
@guarded
def demo(
    fault: Annotated[
        int | None,
        typer.Option(
            "--fault",
            min=0,
            max=5,
            metavar="LAYER",
            help="Change one weight of this layer (0 to 5) in the candidate, to see drift found.",
        ),
    ] = None,
    report: ReportOption = Path("driftwalk-report"),
    as_json: JsonOption = False,
) -> None:
    """The whole thing on a model that is built in: PyTorch against ONNX Runtime."""
    from ..files import writable_folder

    if report is not None:
        writable_folder(report)
    candidate: object = "onnxruntime"
    if fault is not None:
        from driftwalk_backends.demo import faulty_decoder
        from driftwalk_backends.torch_eager import TorchEager

        candidate = TorchEager.around(faulty_decoder(fault), f"demo:decoder, layer {fault} changed")
    prompts = ["The capital of France is Paris.", "Drift walks from layer to layer."]
    finish(_run("demo:decoder", [candidate], "torch", prompts, "calibrated"), report, as_json)


@app.command()
@guarded
def backends(as_json: JsonOption = False) -> None:
    """What is usable here, and why the rest is not."""
    from ..registry import backend_class, known_backends

    rows = []
    for name in known_backends():
        try:
            rows += [(o.spec, o.usable, o.note) for o in backend_class(name).offers()]
        except Exception as error:
            rows.append((name, False, f"{type(error).__name__}: {error}"))
    if as_json:
        import json

        found = [{"spec": spec, "usable": usable, "note": note} for spec, usable, note in rows]
        show_json(json.dumps(found, indent=1))
        return
    width = max(len(spec) for spec, _, _ in rows)
    lines = [f"{'✓' if usable else '✗'} {spec:<{width}}  {note}" for spec, usable, note in rows]
    show("\n".join(lines))


app.command()(report)
app.command()(record)
app.command()(compare)
app.command()(extract)
app.command("bench")(bench_command)
app.command()(selftest)


def _run(
    model: str,
    candidates: Sequence[object],
    reference: str | None,
    probe: object,
    policy: Any,
    **options: Any,
) -> list[Report]:
    from ..verification import verify_all

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
