"""The commands `fleet hwcheck` and `fleet verify`: on every node and device, or on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .configured import ConfigOption, OnlyOption
from .console import guarded, say, this_command
from .options import JsonOption, PolicyOption, PromptOption, RuleOption, parse_policy
from .rendering import finish_document

if TYPE_CHECKING:
    from ..project.config import Run
    from ..tasks.fleet.cluster import Cluster
    from ..tasks.fleet.job import Golden, Job
    from ..tasks.fleet.result import FleetReport
    from ..tasks.fleet.run import Fleet
    from ..tasks.fleet.watch import Watcher

RESULTS, REPORTS = "driftwalk-fleet", "reports"
INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run checks on every node and device of a Ray cluster, or on this machine.",
    epilog="Exit codes: 0 nothing wrong was found, 1 a fault or drift, 2 usage error, 3 something "
    "could not be checked, and nothing wrong was found.",
)

AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="A",
        help="A Ray cluster: auto or HOST:PORT; or local. The one that runs here, if not said; "
        "without one, this machine.",
        show_default=False,
    ),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=1.0, metavar="S", help="Seconds for one job.")
]
RetriesOption = Annotated[
    int, typer.Option("--retries", min=0, help="How often a job without a result is tried again.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="RESULTS",
        help=f"The results folder; a new one below {RESULTS}, if not said.",
        show_default=False,
    ),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on in a results folder: run only what is missing.")
]


@app.command()
@guarded
def hwcheck(
    device: Annotated[
        str, typer.Option("--device", metavar="D", help="Of each node: all, cpu or cuda.")
    ] = "all",
    level: Annotated[
        str, typer.Option("--level", metavar="L", help="quick, standard or soak.")
    ] = "quick",
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0.0, help="How long a soak takes.")
    ] = None,
    golden: Annotated[
        Path | None,
        typer.Option("--golden", metavar="F", help="A trace of a trusted machine, sent to all."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="M", help="Instead of the built-in one.")
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option("--check", metavar="NAME", help="Only this one of hwcheck's checks."),
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option("--dtype", metavar="T", help="Only in this dtype.")
    ] = None,
    address: AddressOption = None,
    timeout: TimeoutOption = 1800.0,
    retries: RetriesOption = 1,
    output: OutputOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check every device, hold them against each other, and name those that compute wrongly."""
    from ..errors import UsageError
    from ..tasks.fleet.jobs import hwcheck_jobs
    from ..tasks.fleet.run import Fleet, pack

    if level not in ("quick", "standard", "soak"):
        raise UsageError(f"Unknown level {level!r}. Known: quick, standard, soak.")
    options = ["--level", level]
    options += ["--minutes", f"{minutes:g}"] if minutes is not None else []
    options += ["--model", model] if model is not None else []
    options += [word for name in check or () for word in ("--check", name)]
    options += [word for name in dtype or () for word in ("--dtype", name)]
    if minutes is not None and 60 * minutes > timeout:
        raise UsageError(
            f"A soak of {minutes:g} minutes does not end within --timeout {timeout:g} (seconds)."
        )
    packed = pack(golden) if golden is not None else None
    fleet = Fleet(address, device, timeout, retries)
    folder = _folder(output, resume)

    def jobs_for(cluster: Cluster) -> Sequence[Job]:
        return hwcheck_jobs(cluster.places(), options, packed.sha256 if packed else "")

    report = _run(fleet, folder, resume, jobs_for, golden, packed)
    _finish(_with_pages(report, folder), folder, as_json)


@app.command()
@guarded
def verify(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="As in `verify`; left out, all that the configuration names.",
            show_default=False,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option("--reference", "-r", metavar="SPEC", help="The backend that is right."),
    ] = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option(
            "--candidate", "-c", metavar="SPEC", help="A backend to verify: a job for each."
        ),
    ] = None,
    prompt: PromptOption = None,
    policy: PolicyOption = "calibrated",
    rule: RuleOption = None,
    config: ConfigOption = None,
    only: OnlyOption = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Jobs at a time on the CPU of each node.")
    ] = 1,
    address: AddressOption = None,
    timeout: TimeoutOption = 1800.0,
    retries: RetriesOption = 1,
    output: OutputOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Verify many models on many candidates, a job for each pair, shared out over all nodes."""
    from ..errors import UsageError
    from ..tasks.fleet.jobs import verify_jobs
    from ..tasks.fleet.run import Fleet

    if models:
        if config is not None or only is not None:
            raise UsageError(
                "--config and --only are for running the configuration; leave out MODEL."
            )
        runs = _named(models, reference, candidate, prompt, parse_policy(policy, rule or []))
        home = Path.cwd()
    else:
        from .configured import chosen, the_config

        if reference or candidate or prompt or rule:
            raise UsageError("No MODEL is named: the configuration says what it is held to.")
        whole = the_config(config)
        runs = list(chosen(whole, only))
        home = whole.path.resolve().parent if whole.path else Path.cwd()
    jobs = verify_jobs(runs, home)
    device = "all" if any(job.needs == "cuda" for job in jobs) else "cpu"
    fleet = Fleet(address, device, timeout, retries, workers)
    folder = _folder(output, resume)
    report = _run(fleet, folder, resume, lambda _: jobs)
    _finish(_published(report, folder), folder, as_json)


def _named(
    models: Sequence[str],
    reference: str | None,
    candidates: Sequence[str] | None,
    prompts: Sequence[str] | None,
    policy: object,
) -> list[Run]:
    """Runs as the configuration would name them, from what was typed."""
    from ..project.config import DEFAULT_CANDIDATE, Common, Inputs, Run
    from ..tolerance import Policy

    assert isinstance(policy, Policy)
    common = Common(reference, tuple(candidates or [DEFAULT_CANDIDATE]), policy)
    inputs = Inputs(given=list(prompts) if prompts else None)
    return [Run(model, model, common, inputs) for model in dict.fromkeys(models)]


def _folder(output: Path | None, resume: bool) -> Path:
    """The results folder; one that nobody named says when, and is made when it is needed."""
    from datetime import UTC, datetime

    from ..errors import UsageError
    from ..files import writable_folder

    if output is None and resume:
        raise UsageError("--resume needs the results folder to go on with: -o RESULTS.")
    if output is not None:
        return writable_folder(output)
    return Path(RESULTS) / f"{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _run(
    fleet: Fleet,
    folder: Path,
    resume: bool,
    jobs_for: Callable[[Cluster], Sequence[Job]],
    golden: Path | None = None,
    packed: Golden | None = None,
) -> FleetReport:
    from ..tasks.fleet.run import open_cluster, run

    # Ray tells of every lost node on stdout, in a hundred lines; stdout is for the result.
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        cluster, note = open_cluster(fleet, golden, packed)
        if note:
            say(f"driftwalk: {note}")
        with _watching() as watch:
            return run(
                cluster,
                jobs_for(cluster),
                folder,
                fleet,
                resume=resume,
                watch=watch,
                command=this_command(),
                notes=[note] if note else [],
            )


@contextmanager
def _watching() -> Iterator[Watcher]:
    """A table where somebody looks, lines where not."""
    from driftwalk_reports.fleet_live import Lines, LiveTable

    if not sys.stderr.isatty():
        yield Lines(lambda text: say(f"driftwalk: {text}"))
        return
    from rich.console import Console
    from rich.live import Live

    shown = Console(stderr=True)
    with Live(console=shown, transient=True, refresh_per_second=4, redirect_stdout=False) as live:
        yield LiveTable(live)


def _with_pages(report: FleetReport, folder: Path) -> FleetReport:
    """The page of every device's own check, beside its result."""
    from ..document import KINDS, from_dict
    from ..files import write_atomically
    from ..registry import load_target
    from ..tasks.fleet.store import own_result

    render = load_target(KINDS["hardware"].formats["html"][1])
    records = []
    for record in report.records:
        page = record.file.removesuffix(".json") + ".html" if record.file else ""
        if page:
            write_atomically(folder / page, render(from_dict(own_result(folder, record))))
        records.append(replace(record, page=page))
    return replace(report, records=tuple(records))


def _published(report: FleetReport, folder: Path) -> FleetReport:
    """The drift report of every verification that has one, with an index above them."""
    from ..publish import folder_names, publish
    from ..result import from_dict
    from ..tasks.fleet.store import own_result

    done = [record for record in report.records if record.file]
    reports = [from_dict(own_result(folder, record)) for record in done]
    if not reports:
        return report
    publish(reports, folder / REPORTS)
    below = [f"{REPORTS}/{name}/" if name else f"{REPORTS}/" for name in folder_names(reports)]
    pages = {record.id: f"{at}report.html" for record, at in zip(done, below, strict=True)}
    records = (replace(record, page=pages.get(record.id, "")) for record in report.records)
    return replace(report, records=tuple(records))


def _finish(report: FleetReport, folder: Path, as_json: bool) -> None:
    """Write the report's files, show it, and leave with the right exit code."""
    stopped = not report.complete and report.verdict != "fault"
    finish_document(report, folder, as_json, INTERRUPTED if stopped else report.exit_code)
