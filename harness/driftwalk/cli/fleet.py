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

from .configured import ConfigOption, OnlyOption, chosen, the_config
from .console import guarded, say, this_command
from .hwcheck import BuiltInOption, CheckOption, DtypeOption, LevelOption, MinutesOption
from .options import (
    Command,
    Group,
    JsonOption,
    PolicyOption,
    PromptOption,
    RuleOption,
    option,
    parse_policy,
)
from .rendering import finish_document

if TYPE_CHECKING:
    from ..tasks.fleet.cluster import Cluster, Watcher
    from ..tasks.fleet.job import Job
    from ..tasks.fleet.result import FleetReport
    from ..tasks.fleet.run import Fleet

RESULTS, REPORTS = "driftwalk-fleet", "reports"

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run checks on every node and device of a Ray cluster, or on this machine.",
    epilog="Exit codes: 0 nothing wrong was found, 1 a fault or drift, 2 usage error, 3 something "
    "could not be checked, and nothing wrong was found.",
)

AddressOption = Annotated[
    str | None,
    option(
        "--address A",
        "A Ray cluster: auto or HOST:PORT; or local. The one that runs here, if not said; "
        "without one, this machine.",
        show_default=False,
    ),
]
TimeoutOption = Annotated[float, option("--timeout S", "Seconds for one job.", min=1.0)]
RetriesOption = Annotated[
    int, option("--retries", "How often a job without a result is tried again.", min=0)
]
OutputOption = Annotated[
    Path | None,
    option(
        "--output -o RESULTS",
        f"The results folder; a new one below {RESULTS}, if not said.",
        show_default=False,
    ),
]
ResumeOption = Annotated[
    bool, option("--resume", "Go on in a results folder: run only what is missing.")
]


@app.command(cls=Command)
@guarded
def hwcheck(
    device: Annotated[str, option("--device D", "Of each node: all, cpu or cuda.")] = "all",
    level: LevelOption = "quick",
    minutes: MinutesOption = None,
    golden: Annotated[
        Path | None, option("--golden F", "A trace of a trusted machine, sent to all.")
    ] = None,
    model: BuiltInOption = None,
    check: CheckOption = None,
    dtype: DtypeOption = None,
    address: AddressOption = None,
    timeout: TimeoutOption = 1800.0,
    retries: RetriesOption = 1,
    output: OutputOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check every device, hold them against each other, and name those that compute wrongly."""
    from ..errors import UsageError
    from ..tasks.fleet.job import Golden, pack
    from ..tasks.fleet.jobs import hwcheck_jobs
    from ..tasks.fleet.run import Fleet
    from ..tasks.hardware.work import level_named

    level_named(level, minutes)  # a wrong one is found before anything is sent
    if minutes is not None and 60 * minutes > timeout:
        raise UsageError(
            f"A soak of {minutes:g} minutes does not end within --timeout {timeout:g} (seconds)."
        )
    options = ["--level", level]
    options += ["--minutes", f"{minutes:g}"] if minutes is not None else []
    options += ["--model", model] if model is not None else []
    options += [word for name in check or () for word in ("--check", name)]
    options += [word for name in dtype or () for word in ("--dtype", name)]
    packed = pack(golden) if golden is not None else Golden()
    fleet = Fleet(address, device, timeout, retries, golden=packed)

    def jobs(cluster: Cluster) -> Sequence[Job]:
        return hwcheck_jobs(cluster.places(), options, packed.sha256)

    _carry_out(fleet, jobs, output, resume, as_json)


@app.command(cls=Command)
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
        str | None, option("--reference -r SPEC", "The backend that is right.")
    ] = None,
    candidate: Annotated[
        list[str] | None, option("--candidate -c SPEC", "A backend to verify: a job for each.")
    ] = None,
    prompt: PromptOption = None,
    policy: PolicyOption = "calibrated",
    rule: RuleOption = None,
    config: ConfigOption = None,
    only: OnlyOption = None,
    workers: Annotated[
        int, option("--workers", "Jobs at a time on the CPU of each node.", min=1)
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
    from ..project.config import DEFAULT_CANDIDATE, Common, Inputs, Run
    from ..tasks.fleet.jobs import verify_jobs
    from ..tasks.fleet.run import Fleet

    if models:
        if config is not None or only is not None:
            raise UsageError(
                "--config and --only are for running the configuration; leave out MODEL."
            )
        candidates = tuple(candidate or [DEFAULT_CANDIDATE])
        common = Common(reference, candidates, parse_policy(policy, rule or []))
        inputs = Inputs(given=list(prompt) if prompt else None)
        runs = [Run(model, model, common, inputs) for model in dict.fromkeys(models)]
        home = Path.cwd()
    else:
        if reference or candidate or prompt or rule:
            raise UsageError("No MODEL is named: the configuration says what it is held to.")
        whole = the_config(config)
        runs = list(chosen(whole, only))
        home = whole.path.resolve().parent if whole.path else Path.cwd()
    jobs = verify_jobs(runs, home)
    device = "all" if any(job.needs == "cuda" for job in jobs) else "cpu"
    fleet = Fleet(address, device, timeout, retries, workers)
    _carry_out(fleet, lambda _: jobs, output, resume, as_json)


def _carry_out(
    fleet: Fleet,
    jobs: Callable[[Cluster], Sequence[Job]],
    output: Path | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Do the jobs, write the pages of each and the report of all, show it, and leave."""
    from datetime import UTC, datetime

    from ..errors import UsageError
    from ..files import writable_folder
    from ..tasks.fleet.run import open_cluster, run
    from ..tasks.hardware.result import INTERRUPTED

    if output is None and resume:
        raise UsageError("--resume needs the results folder to go on with: -o RESULTS.")
    # A folder that nobody named says when, and is made when it is needed.
    unnamed = Path(RESULTS) / f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = writable_folder(output) if output is not None else unnamed
    # Ray tells of every lost node on stdout, in a hundred lines; stdout is for the result.
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        cluster, note = open_cluster(fleet)
        if note:
            say(f"driftwalk: {note}")
        with _watching() as watch:
            report = run(
                *(cluster, jobs(cluster), folder, fleet),
                resume=resume,
                watch=watch,
                command=this_command(),
                note=note,
            )
    report = _with_pages(report, folder)
    stopped = not report.complete and report.verdict != "fault"
    finish_document(report, folder, as_json, INTERRUPTED if stopped else report.exit_code)


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
    """The pages of all results: each check's beside it, those of verifications below an index."""
    from ..document import KINDS, load
    from ..files import write_atomically
    from ..publish import folder_names, publish
    from ..registry import load_target
    from ..result import Report

    stored = {record.id: load(folder / record.file) for record in report.records if record.file}
    pages: dict[str, str] = {}
    if drifts := {key: item for key, item in stored.items() if isinstance(item, Report)}:
        reports = list(drifts.values())
        publish(reports, folder / REPORTS)
        for key, name in zip(drifts, folder_names(reports), strict=True):
            pages[key] = (Path(REPORTS) / name / "report.html").as_posix()
    render = load_target(KINDS["hardware"].formats["html"][1])
    for record in report.records:
        if record.file and record.id not in pages:
            pages[record.id] = record.file.removesuffix(".json") + ".html"
            write_atomically(folder / pages[record.id], render(stored[record.id]))
    records = (replace(record, page=pages.get(record.id, "")) for record in report.records)
    return replace(report, records=tuple(records))
