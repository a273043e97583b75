"""Nodes of a Ray cluster that run one model together, each a range of its blocks.

Each opens the model by itself, and maps its weights; what blocks give is handed on from node to
node (block_ranges.py). On a node one actor serves all backends that run the model, the truth and
the yardsticks of a witness among them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from driftwalk.adapter import Sink
from driftwalk.errors import BackendError, BackendUnavailable, DriftwalkError, UsageError
from driftwalk.registry import create
from driftwalk.states import Probe, State

from .block_ranges import Blocks, Handed, run_range
from .depth import Look
from .fingerprint import digest_of, tensor_hashes
from .layout import Layout
from .loaded import LoadedModel
from .ray_cluster import connected, first_line, node_names
from .sources import torch_model
from .torch_eager import TorchEager
from .truth import Truth

NOT_INSTALLED = (
    "Ray is not installed: pip install 'driftwalk[ray]' runs a model in ranges. Without ranges=... "
    "the model runs in this process."
)
START = 120.0
"""Seconds that a node has to start an actor."""

_PLACED = ("folder", "hub", "factory", "built in")
"""Where a model may come from that a node can open by itself."""


@dataclass(frozen=True)
class NodeModel:
    """What a node opens."""

    name: str
    blocks: str | None
    trust_remote_code: bool

    @classmethod
    def of(cls, model: LoadedModel) -> NodeModel:
        if model.source not in _PLACED:
            raise UsageError(
                f"ranges=... runs a model that each node can open by itself: a folder, a hub id or "
                f"package.module:factory. {model.label} exists in this process only."
            )
        name = os.path.abspath(model.label) if model.source == "folder" else model.label
        return cls(name, model.blocks, model.trust_remote_code)


@dataclass(frozen=True)
class Order:
    """One run, as every node is told of it."""

    spec: str
    look: Look
    how: str
    """The backend's method: `run`, `stream`, `replay` ..."""
    probe: Probe
    more: Mapping[str, Any]
    """What the method takes beside the probe and a sink."""
    layout: Layout


@dataclass
class Made:
    """What a node gives of its range, beside what it hands on."""

    states: list[Any] = field(default_factory=list)
    """References: a state travels when somebody asks for it."""
    given: Any = None
    """What the method gave."""
    flags: Mapping[str, str] = field(default_factory=dict)


class RangeNode:
    """What runs on a node, for one model: Ray makes an actor of it."""

    def __init__(self) -> None:
        self._backends: dict[str, TorchEager] = {}

    def open(self, model: NodeModel) -> dict[str, str]:
        """Map the model; says which versions of packages run it."""
        self._model = torch_model(
            model.name, blocks=model.blocks, trust_remote_code=model.trust_remote_code
        )
        return self._model.versions

    def fingerprint(self, layout: Layout, some: range) -> str:
        """Of all that a range needs of the model as it lies here."""
        module = self._model.module
        names = Blocks.of(layout).needs(module, some)
        return digest_of(module, tensor_hashes(module, names))

    def run(self, order: Order, some: range, given: Handed) -> tuple[Handed, Made]:
        import ray

        made = Made()
        backend = self._backend(order.spec)
        backend.look(order.look.depth, order.look.layer)
        backend.share(order.look.shared)
        if isinstance(backend, Truth):
            backend.seed = some.start
        self._model.given_layout = order.layout

        def run(sink: Sink) -> Any:
            method = getattr(backend, order.how)
            if order.how == "run":
                return dict(method(order.probe))
            result = method(order.probe, sink=sink, **order.more)
            return dict(result) if isinstance(result, Mapping) else result

        def keep(state: State) -> None:
            made.states.append(ray.put(state))

        handed, made.given = run_range(backend, run, Blocks.of(order.layout), some, given, keep)
        self._model.end()
        made.flags = backend.info.flags
        return handed, made

    def _backend(self, spec: str) -> TorchEager:
        if spec not in self._backends:
            made = create(spec, self._model)
            assert isinstance(made, TorchEager)
            self._backends[spec] = made
        return self._backends[spec]

    def close(self, spec: str) -> None:
        if (backend := self._backends.pop(spec, None)) is not None:
            backend.close()


class Nodes:
    """The nodes of a cluster that run one model, each a range of its blocks."""

    _opened: ClassVar[list[Nodes]] = []
    """Those in use in this process: whoever runs the same model in as many ranges shares them."""
    _connected: ClassVar[bool] = False
    """Whether it was this module that connected the process to a cluster."""

    def __init__(self, address: str, count: int, model: LoadedModel) -> None:
        self.asked = address, count, model
        self._model = model
        self._users = 0
        self._fingerprinted: set[tuple[str, int]] = set()
        self._actors: list[Any] = []
        self.names: list[str] = []
        if any(other.asked[0] != address for other in self._opened):
            raise UsageError("All sides must name the same Ray cluster: address=HOST:PORT.")
        import ray

        self._ray = ray
        if not ray.is_initialized():
            connected(address, NOT_INSTALLED, "or name it: ranges=2,address=HOST:PORT")
            Nodes._connected = True
        Nodes._opened.append(self)
        try:
            self._start(count)
        except BaseException:
            self._end()
            raise

    @classmethod
    def of(cls, address: str, count: int, model: LoadedModel) -> Nodes:
        """Nodes that run the model already, or some that begin to; `close` when done."""
        asked = address, count, model
        same = (one for one in cls._opened if one.asked == asked)
        nodes = next(same, None) or cls(*asked)
        nodes._users += 1
        return nodes

    def _start(self, count: int) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        alive = [node for node in self._ray.nodes() if node.get("Alive")]
        named = sorted(zip(node_names(alive), (node["NodeID"] for node in alive), strict=True))
        if len(named) < count:
            raise BackendUnavailable(
                f"ranges={count} takes as many nodes, and the Ray cluster has {len(named)}: "
                f"{', '.join(name for name, _ in named)}. Add some with `ray start --address`, or "
                "ask for fewer ranges."
            )
        for name, node in named[:count]:
            place = NodeAffinitySchedulingStrategy(node, soft=False)
            options = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": place}
            self._actors.append(self._ray.remote(RangeNode).options(**options).remote())
            self.names.append(name)
        begun = [actor.__ray_ready__.remote() for actor in self._actors]
        for number, one in enumerate(begun):
            self.get(number, one, "started", START)
        where = NodeModel.of(self._model)
        opened = [actor.open.remote(where) for actor in self._actors]
        for number, one in enumerate(opened):
            if (theirs := self.get(number, one, "opened the model")) != self._model.versions:
                raise BackendError(
                    f"Node {self.names[number]} has other versions than this machine: {theirs}, "
                    f"here {self._model.versions}. States of both would not be comparable."
                )

    def check(self, layout: Layout, ranges: Sequence[range]) -> None:
        """Every node must have the very weights that are here, as far as its range needs them."""
        fresh = [n for n in range(len(ranges)) if (layout.key, n) not in self._fingerprinted]
        asked = {n: self._actors[n].fingerprint.remote(layout, ranges[n]) for n in fresh}
        module, hashes = self._model.module, self._model.hashes if asked else {}
        for number, one in asked.items():
            names = Blocks.of(layout).needs(module, ranges[number])
            ours = digest_of(module, {n: hashes[n] for n in names})
            if self.get(number, one, "hashed its weights") != ours:
                raise BackendError(
                    f"{NodeModel.of(self._model).name!r} on node {self.names[number]} is another "
                    "model than here: its weights or its config differ. Copy the folder again."
                )
            self._fingerprinted.add((layout.key, number))

    def run(self, order: Order, ranges: Sequence[range]) -> list[Any]:
        """References to what each node makes of its range, one after the other."""
        told, made = self._ray.put(order), []
        handed: Any = {}
        for actor, some in zip(self._actors, ranges, strict=True):
            # From node to node: what is handed on never comes here.
            handed, own = actor.run.options(num_returns=2).remote(told, some, handed)
            made.append(own)
        return made

    def get(self, number: int, reference: Any, doing: str, seconds: float | None = None) -> Any:
        """What a node gives; whatever keeps it from that is one error that names the node."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference, timeout=seconds)
        except errors.GetTimeoutError:
            raise BackendUnavailable(
                f"Node {self.names[number]} has not {doing} in {seconds:.0f} s."
            ) from None
        except errors.RayTaskError as error:
            if isinstance(error.cause, DriftwalkError):
                kind = type(error.cause)
                raise kind(f"On node {self.names[number]}: {error.cause}") from None
            raise BackendError(
                f"Node {self.names[number]} failed before it had {doing}: {first_line(error.cause)}"
            ) from None
        except errors.RayError as error:
            raise BackendError(
                f"Node {self.names[number]} was lost before it had {doing}: "
                f"{type(error).__name__}. Nothing of this run holds: run it again when the node is "
                "back, or with fewer ranges."
            ) from None

    def close(self, spec: str) -> None:
        """A backend is no longer needed; the last one of all ends the actors."""
        self._users -= 1
        if not self._users:
            self._end()
            return
        for actor in self._actors:
            actor.close.remote(spec)

    def _end(self) -> None:
        for actor in self._actors:
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)
        Nodes._opened.remove(self)
        if Nodes._connected and not Nodes._opened:
            self._ray.shutdown()
            Nodes._connected = False
