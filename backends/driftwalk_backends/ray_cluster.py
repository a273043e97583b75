"""A Ray cluster as places for jobs; as nodes that share a model, it is in range_nodes.py.

Each device gets one small actor, pinned to its node, that holds the device's reservation: Ray hands
a GPU to one actor only, and tells it which. The actor runs each job as a process of its own, so
that a crash or a hang of the job is not one of the actor. What travels is plain text and bytes;
the golden is put into the object store once, and each actor fetches it from its node.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from driftwalk.errors import BackendUnavailable
from driftwalk.jsonable import decode, encode
from driftwalk.tasks.fleet.cluster import Event
from driftwalk.tasks.fleet.job import Golden, Job, Place, unpacked
from driftwalk.tasks.fleet.local import Process

NOT_INSTALLED = "Ray is not installed: pip install 'driftwalk[ray]' checks every node of a cluster."
REACH = 5.0
"""Seconds to wait for a port to answer."""
CLAIM = 60.0
"""Seconds to wait for GPUs that others may hold; later ones may still come free in time."""


def installed() -> bool:
    from importlib.util import find_spec

    return find_spec("ray") is not None


class Seat:
    """What runs on a node, for one device: Ray makes an actor of it."""

    def __init__(self, device: str, files: Mapping[str, bytes] | None, single: bool) -> None:
        self._device = device
        self._process: Process | None = None
        self._golden = ""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if files:
            self._folder = tempfile.TemporaryDirectory(prefix="driftwalk-golden-")
            path = unpacked(Golden(files, single), Path(self._folder.name))
            self._golden = str(path)

    def gpu(self) -> str:
        """The GPU that Ray has given to this actor, by its number on the node."""
        import ray

        return str(next(iter(ray.get_gpu_ids()), ""))

    def work(self, job: dict[str, Any], place: dict[str, Any], timeout: float) -> dict[str, Any]:
        """One job, to its end or the end of its time; plain words in, plain words out."""
        asked = decode(Job, job, "job")
        # Ray shows an actor its own GPU only, and there it is the first.
        here = decode(Place, place | {"device": self._device}, "place")
        self._process = Process(asked.command(here, self._golden), timeout, asked.folder)
        try:
            self._process.poll(math.inf)
            return self._process.result()
        finally:
            self._process = None

    def stop(self) -> None:
        """End the job, not the actor; called beside `work`."""
        if self._process is not None:
            self._process.kill()


class RayCluster:
    """Every node of a Ray cluster that is alive now, and every GPU of it."""

    def __init__(
        self,
        address: str = "auto",
        devices: Sequence[str] = ("cpu", "cuda"),
        golden: Golden | None = None,
        slots: int = 1,
    ) -> None:
        self._ray = connected(
            address,
            f"{NOT_INSTALLED} --address local runs on this machine alone.",
            "name it with --address HOST:PORT, or use --address local",
        )
        self._golden = golden or Golden()
        self._files = self._ray.put(dict(self._golden.files)) if self._golden.files else None
        self._nodes: dict[str, str] = {}
        self._actors: dict[Place, Any] = {}
        self._running: dict[Any, tuple[Place, Job]] = {}
        self._places = tuple(self._survey(devices, slots))

    @property
    def about(self) -> str:
        where = self._ray.get_runtime_context().gcs_address
        return f"Ray {self._ray.__version__} at {where}, {len(self._nodes)} nodes"

    def places(self) -> Sequence[Place]:
        return self._places

    def _survey(self, devices: Sequence[str], slots: int) -> list[Place]:
        alive = [node for node in self._ray.nodes() if node.get("Alive")]
        cpus: list[Place] = []
        seats: dict[str, list[Any]] = {}
        for node, name in sorted(
            zip(alive, node_names(alive), strict=True), key=lambda pair: pair[1]
        ):
            self._nodes[name] = node["NodeID"]
            cpus += [Place(name, "cpu", slot) for slot in range(slots if "cpu" in devices else 0)]
            gpus = int(node.get("Resources", {}).get("GPU", 0)) if "cuda" in devices else 0
            seats[name] = [self._seat(name, gpu=True) for _ in range(gpus)]
        return sorted([*cpus, *self._claimed(seats)], key=lambda place: (place.node, place.name))

    def _claimed(self, seats: Mapping[str, Sequence[Any]]) -> list[Place]:
        """All GPUs at once, so that each actor gets another one; then each is asked which it has.

        Ray does not let one choose. A GPU that is not free yet has the number nobody else has.
        """
        asked = {seat.gpu.remote(): seat for actors in seats.values() for seat in actors}
        answered = []
        if asked:
            answered, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=CLAIM)
        number = {}
        for task in answered:
            with contextlib.suppress(self._ray.exceptions.RayError):
                number[asked[task]] = self._ray.get(task)
        for node, actors in seats.items():
            taken = {number[seat] for seat in actors if seat in number}
            free = iter(str(n) for n in range(len(actors)) if str(n) not in taken)
            for seat in actors:
                which = number[seat] if seat in number else next(free)
                self._actors[Place(node, f"cuda:{which}")] = seat
        return list(self._actors)

    def _seat(self, node: str, gpu: bool) -> Any:
        """An actor for one device of a node."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return (
            self._ray.remote(Seat)
            .options(
                num_cpus=0,  # a node is checked however busy it is; only a GPU is reserved
                num_gpus=1 if gpu else 0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(self._nodes[node], soft=False),
                max_restarts=0,
                max_concurrency=2,  # so that `stop` is heard while `work` works
            )
            .remote("cuda:0" if gpu else "cpu", self._files, self._golden.single)
        )

    def _actor(self, place: Place) -> Any:
        """The actor of a place; that of a CPU is made when it is first needed."""
        if place not in self._actors:
            self._actors[place] = self._seat(place.node, gpu=place.kind == "cuda")
        return self._actors[place]

    def start(self, place: Place, job: Job, timeout: float) -> None:
        task = self._actor(place).work.remote(encode(job), encode(place), timeout)
        self._running[task] = (place, job)

    def wait(self, seconds: float) -> Sequence[Event]:
        if not self._running:
            return []
        done, _ = self._ray.wait(
            list(self._running), num_returns=len(self._running), timeout=seconds
        )
        return [self._ended(task) for task in done]

    def _ended(self, task: Any) -> Event:
        place, job = self._running.pop(task)
        try:
            return Event(place, job, **self._ray.get(task))
        except self._ray.exceptions.RayActorError as error:
            return Event(place, job, "lost", err=first_line(error))
        except self._ray.exceptions.RayError as error:  # of the task, not of the node
            return Event(place, job, "ended", 70, err=first_line(error))

    def abandon(self, place: Place) -> None:
        """End the actor; its job is a group of processes, which it is told to end first."""
        self._running = {task: at for task, at in self._running.items() if at[0] != place}
        actor = self._actors.pop(place, None)
        if actor is None:
            return
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(actor.stop.remote(), timeout=10)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(actor)

    def close(self) -> None:
        for place in list(self._actors):
            self.abandon(place)
        self._ray.shutdown()


def connected(address: str, not_installed: str, otherwise: str) -> Any:
    """Ray, talking to a cluster that is there already; never one that Ray starts by itself.

    The texts say that Ray is missing, and what else to do where no cluster answers.
    """
    if not installed():
        raise BackendUnavailable(not_installed)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a check phones nobody
    import ray

    host, _, port = address.rpartition(":")
    try:
        # Ray tries an address where nobody listens for many minutes; one try of our own will do.
        if host and "://" not in address and port.isdigit():
            socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, OSError, OverflowError) as error:
        raise BackendUnavailable(
            f"No Ray cluster at {address!r}: {first_line(error).rstrip('.')}. Start one with `ray "
            f"start --head`, {otherwise}."
        ) from None
    return ray


def node_names(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names that stay the same between runs where they can: given, else the host's, else numbered.

    Ray's own ids are new at every start, and a results folder must be understood the next day.
    """
    plain = []
    for node in nodes:
        address = node.get("NodeManagerAddress")
        given = str(node.get("NodeName") or "")
        host = str(node.get("NodeManagerHostname") or address)
        plain.append(host if given in ("", address) else given)
    often = Counter(plain)
    return [
        f"{name} ({node['NodeID'][:8]})" if often[name] > 1 else name
        for node, name in zip(nodes, plain, strict=True)
    ]


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
