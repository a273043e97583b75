"""From a question to a fleet report: which cluster, which jobs, and what it all says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...environment import environment, now, this_tool
from ...errors import BackendUnavailable, UsageError
from ...files import writable_folder
from .differences import differences_of
from .engine import Engine
from .job import Golden, Job, JobKind
from .local import LocalCluster
from .majority import vote
from .reading import read
from .result import FleetReport, Record
from .store import Store
from .watch import Watcher

if TYPE_CHECKING:
    from .cluster import Cluster

LOCAL, AUTO = "local", "auto"
DEVICES = {"all": ("cpu", "cuda"), "cpu": ("cpu",), "cuda": ("cuda",)}
TIMEOUT = 1800.0
BIGGEST_GOLDEN = 2**31
"""Bytes that are sent to every node."""


@dataclass(frozen=True)
class Fleet:
    """Where to run, how long, and how often to try again."""

    address: str | None = None
    """A Ray address, `auto`, `local`; None: Ray where a cluster is found, else this machine."""
    device: str = "all"
    timeout: float = TIMEOUT
    retries: int = 1
    slots: int = 1
    """Jobs that share the CPU of a node."""


def open_cluster(
    fleet: Fleet, golden: Path | None = None, packed: Golden | None = None
) -> tuple[Cluster, str]:
    """The machines, and what a person should know about the choice.

    `golden` is used where it lies by this machine, and sent as `packed` to others.
    """
    if fleet.device not in DEVICES:
        raise UsageError(f"Unknown device {fleet.device!r}. Known: {', '.join(DEVICES)}.")
    wanted = DEVICES[fleet.device]
    if fleet.address == LOCAL:
        return _local(fleet, wanted, golden), ""
    from driftwalk_backends.ray_cluster import INSTALL, RayCluster, installed

    if not installed():
        said = f"Ray is not installed: {INSTALL} checks every node of a cluster."
        if fleet.address is not None:
            raise BackendUnavailable(f"{said} --address local runs on this machine alone.")
        return _local(fleet, wanted, golden), f"{said} This run: this machine alone, in processes."
    try:
        return RayCluster(fleet.address or AUTO, wanted, packed, fleet.slots), ""
    except BackendUnavailable:
        if fleet.address is not None:
            raise
    said = "No Ray cluster is running here (`ray start --head` starts one; --address names one)."
    return _local(fleet, wanted, golden), f"{said} This run: this machine alone, in processes."


def _local(fleet: Fleet, wanted: Sequence[str], golden: Path | None) -> Cluster:
    from driftwalk_backends.devices import devices

    there = ["cpu"] if tuple(wanted) == ("cpu",) else devices()
    fitting = [name for name in there if name.partition(":")[0] in wanted]
    return LocalCluster(fitting, golden, fleet.slots)


def pack(golden: Path) -> Golden:
    """A golden's files, to be sent; a folder is taken whole."""
    if golden.is_file():
        return Golden({golden.name: golden.read_bytes()}, single=True)
    files = sorted(path for path in golden.rglob("*") if path.is_file()) if golden.is_dir() else []
    if not files:
        raise UsageError(f"No golden at {str(golden)!r}: `driftwalk record` makes one.")
    size = sum(path.stat().st_size for path in files)
    if size > BIGGEST_GOLDEN:
        raise UsageError(
            f"The golden {str(golden)!r} has {size / 2**30:.1f} GiB; at most "
            f"{BIGGEST_GOLDEN / 2**30:.0f} GiB are sent to every node. Use a shorter probe."
        )
    return Golden({path.relative_to(golden).as_posix(): path.read_bytes() for path in files})


def run(
    cluster: Cluster,
    jobs: Sequence[Job],
    folder: Path,
    fleet: Fleet,
    *,
    resume: bool = False,
    watch: Watcher | None = None,
    command: str = "",
    notes: Sequence[str] = (),
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
        engine = Engine(cluster, store, timeout=fleet.timeout, retries=fleet.retries, watch=watch)
        records = engine.run(jobs, resume)
        about = cluster.about
    finally:
        cluster.close()
    return put_together(
        records,
        jobs[0].kind,
        about,
        seconds=time.monotonic() - started,
        complete=engine.complete,
        command=command,
        notes=notes,
    )


def put_together(
    records: Sequence[Record],
    task: JobKind,
    cluster: str,
    *,
    seconds: float = 0.0,
    complete: bool = True,
    command: str = "",
    notes: Sequence[str] = (),
) -> FleetReport:
    """The report: what each job says, and what only all of them together say."""
    done = [record for record in records if record.finding is not None and record.place is not None]
    found = {r.place.name: r.finding for r in done if r.place and r.finding}
    told = vote(found) if task == "hwcheck" else vote({})
    return FleetReport(
        tool=this_tool(),
        created=now(),
        command=command,
        task=task,
        cluster=cluster,
        records=tuple(records),
        outliers=told.outliers,
        splits=told.splits,
        alone=told.alone,
        differences=differences_of(done),
        seconds=seconds,
        complete=complete,
        environment=environment(),
        notes=tuple(notes),
    )
