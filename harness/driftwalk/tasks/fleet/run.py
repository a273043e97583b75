"""From a question to a fleet report: which cluster, which jobs, and what it all says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...environment import environment, now, this_tool
from ...errors import BackendUnavailable, UsageError
from ...files import writable_folder
from .agreement import Agreement, agreement, differences_of
from .cluster import Cluster, Watcher
from .engine import Engine
from .job import Golden, Job, JobKind
from .jobs import read
from .local import LocalCluster, devices
from .result import FleetReport, Record
from .store import Store

LOCAL, AUTO = "local", "auto"
DEVICES = {"all": ("cpu", "cuda"), "cpu": ("cpu",), "cuda": ("cuda",)}


@dataclass(frozen=True)
class Fleet:
    """Where to run, how long, and how often to try again."""

    address: str | None = None
    """A Ray address, `auto`, `local`; None: Ray where a cluster is found, else this machine."""
    device: str = "all"
    timeout: float = 1800.0
    retries: int = 1
    slots: int = 1
    """Jobs that share the CPU of a node."""
    golden: Golden = field(default_factory=Golden)
    """Used where it lies by this machine, and sent to others."""


def open_cluster(fleet: Fleet) -> tuple[Cluster, str]:
    """The machines, and what a person should know about the choice."""
    if fleet.device not in DEVICES:
        raise UsageError(f"Unknown device {fleet.device!r}. Known: {', '.join(DEVICES)}.")
    wanted, note = DEVICES[fleet.device], ""
    if fleet.address != LOCAL:
        from driftwalk_backends.ray_cluster import NOT_INSTALLED, RayCluster, installed

        try:
            return RayCluster(fleet.address or AUTO, wanted, fleet.golden, fleet.slots), ""
        except BackendUnavailable:
            if fleet.address is not None:
                raise
        none = (
            "No Ray cluster is running here (`ray start --head` starts one; --address names one)."
        )
        why = none if installed() else NOT_INSTALLED
        note = f"{why} This run: this machine alone, in processes."
    there = devices() if "cuda" in wanted else ["cpu"]
    fitting = [name for name in there if name.partition(":")[0] in wanted]
    return LocalCluster(fitting, fleet.golden.path, fleet.slots), note


def run(
    cluster: Cluster,
    jobs: Sequence[Job],
    folder: Path,
    fleet: Fleet,
    *,
    resume: bool = False,
    watch: Watcher,
    command: str = "",
    note: str = "",
) -> FleetReport:
    """Do all jobs, and put together what they say. The cluster is closed at the end."""
    started = time.monotonic()
    store = Store(folder, read)
    try:
        writable_folder(folder)
        if store.used and not resume:
            raise UsageError(
                f"{str(folder)!r} holds results of an earlier run. --resume goes on with it and "
                "runs only what is missing; or name another folder."
            )
        if not jobs:
            raise UsageError("There is nothing to do: no device and no job was found.")
        engine = Engine(cluster, store, fleet.timeout, fleet.retries, watch)
        records = engine.run(jobs, resume)
        about = cluster.about
    finally:
        cluster.close()
    return replace(
        put_together(records, jobs[0].kind, about),
        seconds=time.monotonic() - started,
        complete=engine.complete,
        command=command,
        notes=(note,) if note else (),
    )


def put_together(records: Sequence[Record], task: JobKind, cluster: str) -> FleetReport:
    """The report: what each job says, and what only all of them together say."""
    findings = {r.place.name: r.finding for r in records if r.place and r.finding}
    agreed = agreement(findings) if task == "hwcheck" else Agreement()
    return FleetReport(
        tool=this_tool(),
        created=now(),
        command="",
        task=task,
        cluster=cluster,
        records=tuple(records),
        outliers=agreed.outliers,
        splits=agreed.splits,
        alone=agreed.alone,
        differences=differences_of(records),
        environment=environment(),
    )
