"""The `torch` backend: PyTorch on the CPU or a GPU, in fp64, fp32, fp16 or bf16; eager, or, with
`compile=...`, through torch.compile.

Compiled, plain and traced runs have functions of their own. For a traced one the hooks are compiled
too: every state becomes an output of the one graph, as in an exported model, and what the compiler
fuses between them stays fused.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from types import FunctionType
from typing import Any, cast, get_args

import torch
from torch import nn

from driftwalk.adapter import Sink
from driftwalk.decoding import Beams, Decoding
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, UsageError, nearest
from driftwalk.names import is_output
from driftwalk.spec import Spec
from driftwalk.states import Point, Probe, State

from .calls import Inputs, arguments_of, call, kept_in, own_copies
from .decoding import decoded, generated, restored, searched, watched_decoding
from .depth import BLOCKS
from .eager_run import as_arrays, between, stamp, wait, watched
from .given import GivenModel
from .hooks import TensorSink, capture
from .layout import Layout
from .lending import Lend
from .loaded import LoadedModel
from .randomness import begin_alike
from .tensors import from_numpy, to_numpy
from .torch_runtime import TorchRuntime

_STREAM: tuple[Lend, ...] = get_args(Lend)

States = list[tuple[Point, torch.Tensor]]


class TorchEager(TorchRuntime):
    """Plain eager PyTorch: hooks on the blocks, everything else untouched."""

    def __init__(self, spec: Spec, model: object) -> None:
        if another := {"compile", "ranges"} & spec.options.keys():
            raise UsageError(
                f"{spec}: {type(self).__name__} has no {min(another)}=... "
                "driftwalk.backend(spec, model) makes the backend that a spec names."
            )
        super().__init__(spec, model)
        usual = "large" if self._device.type == "cpu" else "off"
        self._lend = cast(Lend, spec.choice("stream", _STREAM, usual))
        self.calls: Callable[[nn.Module, Inputs], Any] = call
        """How the model is called: all of it, or a range of its blocks (block_ranges.py)."""
        self._decoding: Decoding | None = None

    @classmethod
    def around(
        cls, module: nn.Module, label: str = "", like: LoadedModel | None = None
    ) -> TorchEager:
        """A backend for a module as it is: its own dtypes, its own devices, nothing converted.

        `like` is the model that it is another implementation of.
        """
        given = GivenModel(module, label, like)
        return cls(Spec("torch", str(given.device), given.mixture.dtype), given)

    def shows(self, model: LoadedModel) -> bool:
        """Whether its states prove what this model gives on its device."""
        plain = type(self) is TorchEager and not (self._attn or self._threads or self._tf32)
        whole = self._decoding is None or not self._decoding.chunks
        return plain and whole and self._model is model and self._look == BLOCKS

    def decode(self, plan: Decoding | None) -> None:
        self._decoding = plan

    def generate(self, probe: Probe, plan: Decoding, sink: Sink) -> Mapping[str, Array]:
        with self.at_work(probe) as (module, inputs, layout):
            grown: dict[str, Any] = {}

            def run(hand_on: TensorSink) -> Any:
                output, whole = generated(module, inputs, plan, layout, hand_on)
                grown.update(whole)
                return output

            as_arrays(run, sink)
            return {n: to_numpy(v) for n, v in grown.items() if n in probe.inputs}

    def search(self, probe: Probe, plan: Decoding, beams: int) -> tuple[Mapping[str, Array], Beams]:
        with self.at_work(probe) as (module, inputs, _):
            whole, made = searched(module, inputs, plan, beams)
            return {n: to_numpy(v) for n, v in whole.items() if n in probe.inputs}, made

    def restored(
        self, probe: Probe, plan: Decoding, given: Mapping[str, Array], sink: Sink
    ) -> None:
        with self.at_work(probe) as (module, inputs, layout):
            states = {name: from_numpy(array, self._device) for name, array in given.items()}

            def run(hand_on: TensorSink) -> Any:
                return restored(module, inputs, plan, layout, states, hand_on)

            as_arrays(run, sink)

    @property
    def _plan(self) -> Decoding | None:
        """How sequences are fed; as all runs of the model are, where nothing else was said."""
        return self._decoding or self._model.decoding

    def weights_taken(self, lent: bool) -> int:
        """What its copy of the model takes on the host; nothing where it runs the model itself."""
        if self._given is not None and self._given.is_mixed:
            # Its yardstick is a copy in float32, parts of which are cast on the way (mixture.py).
            return 2 * sum(4 * weight.numel() for weight in self._given.module.parameters())
        if self._given is not None or self._device.type != "cpu":
            return 0
        return self._model.copied_bytes(self._dtype, self._attn, self._lend, lent)

    @property
    def _asked_for(self) -> Mapping[str, Any]:
        plan = self._plan
        return {} if plan is None or plan.cache == "none" else {"use_cache": True}

    def _plain(self, module: nn.Module, inputs: Inputs) -> Any:
        if (plan := self._plan) is not None:
            return decoded(module, inputs, plan)
        return self.calls(module, inputs)

    def _watched(self, module: nn.Module, inputs: Inputs, layout: Layout, sink: TensorSink) -> Any:
        if (plan := self._plan) is not None:
            return watched_decoding(module, inputs, plan, layout, sink)
        return watched(module, layout, sink, partial(self.calls, module, inputs))

    def layer_laps(self, probe: Probe) -> Mapping[str, float]:
        """The time from one point to the next, in a run in which nothing is copied."""
        with self.at_work(probe) as (module, inputs, layout):
            stamps: list[tuple[str, Any]] = [("", stamp(*self._devices))]

            def note(point: Point, _: torch.Tensor) -> None:
                stamps.append((point.name, stamp(*self._devices)))

            watched(module, layout, note, partial(call, module, inputs))
            wait(*self._devices)
        return {name: between(before, after) for (_, before), (name, after) in pairwise(stamps)}

    def replay(self, probe: Probe, given: Mapping[str, Array], sink: Sink) -> None:
        """Run each block on the *given* previous state; hand on what this model makes of it."""
        with self.at_work(probe) as (module, inputs, layout):
            walked = {point.name for stack in layout.stacks for point in stack.points}

            def exchange(point: Point, tensor: torch.Tensor) -> torch.Tensor | None:
                sink(State(point, to_numpy(tensor)))
                array = given.get(point.name)
                if array is None:
                    return None
                # Nothing follows an output; inside a block, another implementation may go another
                # way.
                alike = array.shape == tuple(tensor.shape)
                if point.name not in walked and (is_output(point.name) or not alike):
                    return None
                if not alike:
                    shapes = f"{array.shape} at {tuple(tensor.shape)}"
                    raise UsageError(f"Cannot replay a state of shape {shapes}.")
                return from_numpy(array, tensor.device, tensor.dtype)

            watched(module, layout, exchange, partial(self.calls, module, inputs))


class TorchCompiled(TorchRuntime):
    """PyTorch behind a compiler; points are found, and states named, as in eager PyTorch.

    It neither replays nor times layers: blocks one by one are not what was compiled.
    """

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec, model)
        if spec.choice("stream", _STREAM, "off") != "off":
            raise UsageError(f"{spec}: what a compiler makes of weights cannot be streamed.")
        self._compiler = spec.options["compile"]
        known = torch.compiler.list_backends(exclude_tags=())
        if self._compiler not in known:
            raise UsageError(f"compile={self._compiler}: {nearest(self._compiler, known)}")
        self._known: dict[tuple[Any, ...], _Compiled] = {}

    def _flags(self) -> dict[str, str]:
        """How it was compiled; code between two graphs ran in Python."""
        flags = {**super()._flags(), "compile": self._compiler}
        if counts := {str(compiled.graphs) for compiled in self._known.values()}:
            flags["graphs"] = " or ".join(sorted(counts))
        return flags

    def _plain(self, module: nn.Module, inputs: Inputs) -> Any:
        return self._compiled_for(module, inputs, None)(inputs)[0]

    def _watched(self, module: nn.Module, inputs: Inputs, layout: Layout, sink: TensorSink) -> Any:
        output, states = self._compiled_for(module, inputs, layout)(inputs)
        for point, tensor in states:
            sink(point, tensor)
        return output

    def _compiled_for(self, module: nn.Module, inputs: Inputs, layout: Layout | None) -> _Compiled:
        """Compiled for these shapes alone: others would count as recompilations, and after some of
        those PyTorch goes on without compiling."""
        shapes = (
            (n, tuple(v.shape), v.dtype) if isinstance(v, torch.Tensor) else (n, kept_in(n, v))
            for n, v in sorted(inputs.items())
        )
        key = (None if layout is None else (layout.look, layout.points), *shapes)
        if key not in self._known:
            start = time.perf_counter()
            self._known[key] = _Compiled(module, layout, self._compiler, inputs)
            taken = time.perf_counter() - start
            self._seconds["compile"] = self._seconds.get("compile", 0.0) + taken
        return self._known[key]

    def _close(self) -> None:
        self._known.clear()
        super()._close()


class _Compiled:
    """A compiled model for inputs of these shapes; with a layout, one whose states are seen."""

    def __init__(
        self, module: nn.Module, layout: Layout | None, compiler: str, inputs: Inputs
    ) -> None:
        self._compiler = compiler
        self._seen: States = []
        self._finish: Callable[[Any], None] | None = None
        # Hooks stay as long as this does: compiled code finds what they write to by way of them.
        self._hooks = ExitStack()
        if layout is not None:
            # The same modules once more, for hooks of our own, with the same weights.
            shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
            module = copy.deepcopy(module, shared)
            self._finish = self._hooks.enter_context(capture(module, layout, self._keep))

        self._module = module

        def run(positions: list[Any], keywords: dict[str, Any]) -> Any:
            return module(*positions, **keywords)

        # Compiled code is kept with the function's, where one with other hooks would find it.
        own = FunctionType(run.__code__.replace(), run.__globals__, "run", None, run.__closure__)
        self._run = torch.compile(own, backend=compiler, dynamic=False)
        before = _graphs()
        self(inputs)  # the first call compiles
        self.graphs = _graphs() - before
        """How many the model was cut into."""

    def __call__(self, inputs: Inputs) -> tuple[Any, States]:
        """What the model gives, and the states on the way to it."""
        self._seen.clear()
        positions, keywords = arguments_of(self._module, own_copies(inputs))
        begin_alike()
        with _compiling(self._compiler):
            output = self._run(positions, keywords)
        if self._finish is not None:
            self._finish(output)
        return output, list(self._seen)

    def _keep(self, point: Point, tensor: torch.Tensor) -> None:
        # A copy, as in every hook: what follows may write into the tensor.
        self._seen.append((point, tensor.clone()))


def _graphs() -> int:
    """How many were compiled in this process so far."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


@contextmanager
def _compiling(compiler: str) -> Iterator[None]:
    """Compilers warn of what is theirs to know; what they fail with becomes one sentence."""
    from torch._dynamo import config
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor import config as inductor

    try:
        # Random numbers as in eager PyTorch: inductor has a generator of its own.
        with (
            warnings.catch_warnings(),
            config.patch(skip_nnmodule_hook_guards=False),
            inductor.patch(fallback_random=True),
        ):
            warnings.simplefilter("ignore")
            yield
    except TorchDynamoException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = " ".join(line for line in lines[:2] if not line.startswith("Set TORCH"))
        raise BackendError(
            f"torch.compile with {compiler} failed: {type(error).__name__}: "
            f"{said[:400].rstrip('.')}. Without compile=... the model runs eagerly."
        ) from error
