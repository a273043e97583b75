"""The `torch` backend with `compile=...`: PyTorch through torch.compile.

Plain and traced runs have functions of their own. For a traced one the hooks are compiled too:
every state becomes an output of the one graph, as in an exported model, and what the compiler fuses
between them stays fused.

Decoding is compiled as `generate` of transformers does it: the prompt is run eagerly, and all steps
after it are calls of one compiled function, on a cache that it writes to.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any, get_args

import torch
from torch import nn

from driftwalk.decoding import Decoding
from driftwalk.errors import BackendError, UsageError, nearest
from driftwalk.spec import Spec
from driftwalk.states import Point, Probe
from driftwalk.switches import Switch, named

from .calls import Inputs, arguments_of, call_as_it_is, kept_in, own_copies
from .decoding import Run, Watch, decoded, eagerly, tokens_of, watched_decoding
from .hooks import TensorSink, capture
from .layout import Layout
from .lending import Lend
from .randomness import begin_alike
from .torch_decoding import TorchDecoding
from .torch_passes import Applied, leaving_out, refuse_unknown
from .torch_switching import compiler_switches

_STREAM: tuple[Lend, ...] = get_args(Lend)

States = list[tuple[Point, torch.Tensor]]


class TorchCompiled(TorchDecoding):
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
        self._left_out = named(spec.options.get("disable", ""))
        refuse_unknown(self._left_out)
        self._known: dict[tuple[Any, ...], _Compiled] = {}

    def _flags(self) -> dict[str, str]:
        """How it was compiled; code between two graphs ran in Python."""
        flags = {**super()._flags(), "compile": self._compiler}
        flags |= {"disable": ", ".join(self._left_out)} if self._left_out else {}
        if counts := {str(compiled.graphs) for compiled in self._known.values()}:
            flags["graphs"] = " or ".join(sorted(counts))
        return flags

    def switches(self, probe: Probe) -> tuple[Switch, ...]:
        """What was seen to be applied while it was compiled once more; then options."""
        seen: list[Applied] = []
        if self._compiler == "inductor":
            with leaving_out((), seen), self.without(()) as other:
                other.trace(probe)
        return (*compiler_switches(self.spec, seen), *super().switches(probe))

    def _plain(self, module: nn.Module, inputs: Inputs) -> Any:
        if (plan := self._plan) is not None:
            return decoded(module, inputs, plan, self._steps(module, plan))
        return self._compiled_for(module, inputs, None)(own_copies(inputs))[0]

    def _watched(self, module: nn.Module, inputs: Inputs, layout: Layout, sink: TensorSink) -> Any:
        if (plan := self._plan) is not None:
            watch = self._watch(module, plan)
            return watched_decoding(module, inputs, plan, layout, sink, watch)
        output, states = self._compiled_for(module, inputs, layout)(own_copies(inputs))
        for point, tensor in states:
            sink(point, tensor)
        return output

    def _steps(self, module: nn.Module, plan: Decoding) -> Run:
        def run(number: int, given: Inputs) -> Any:
            if number == 0 and plan.chunks:
                return call_as_it_is(module, given)
            return self._step_for(module, given, None, number)(as_generate_does(module, given))[0]

        return run

    def _watch(self, module: nn.Module, plan: Decoding) -> Watch:
        eager = eagerly(module)

        def watch(number: int, given: Inputs, layout: Layout, sink: TensorSink) -> Any:
            if number == 0 and plan.chunks:
                return eager(number, given, layout, sink)
            step = self._step_for(module, given, layout, number)
            output, states = step(as_generate_does(module, given))
            for point, tensor in states:
                sink(point, tensor)
            return output

        return watch

    def _step_for(
        self, module: nn.Module, given: Inputs, layout: Layout | None, number: int
    ) -> _Compiled:
        """The function of all steps after the first; of the first, where that is all there is."""
        if number == 0:
            return self._compiled_for(module, given, layout)
        key = ("steps", None if layout is None else (layout.look, layout.points))
        if key not in self._known:
            self._known[key] = _Compiled(module, layout, self._compiler, self._left_out, True)
        return self._known[key]

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
            self._known[key] = _Compiled(module, layout, self._compiler, self._left_out)
            self._known[key](own_copies(inputs))  # the first call compiles
            taken = time.perf_counter() - start
            self._seconds["compile"] = self._seconds.get("compile", 0.0) + taken
        return self._known[key]

    def _close(self) -> None:
        self._known.clear()
        super()._close()


class _Compiled:
    """A compiled model; with a layout, one whose states are seen.

    For inputs of one shape, or for all `steps` of a sequence, whose shapes may be told apart.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout | None,
        compiler: str,
        left_out: Sequence[str] = (),
        steps: bool = False,
    ) -> None:
        self._compiler, self._left_out = compiler, left_out
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
        self._run = torch.compile(own, backend=compiler, dynamic=None if steps else False)
        self.graphs = 0
        """How many the model was cut into, and compiled anew."""

    def __call__(self, inputs: Inputs) -> tuple[Any, States]:
        """What the model gives on these very inputs, and the states on the way to it."""
        self._seen.clear()
        positions, keywords = arguments_of(self._module, inputs)
        begin_alike()
        before = _graphs()
        with compiling(self._compiler), leaving_out(self._left_out):
            output = self._run(positions, keywords)
        self.graphs += _graphs() - before
        if self._finish is not None:
            self._finish(output)
        return output, list(self._seen)

    def _keep(self, point: Point, tensor: torch.Tensor) -> None:
        # A copy, as in every hook: what follows may write into the tensor.
        self._seen.append((point, tensor.clone()))


def as_generate_does(module: nn.Module, given: Inputs) -> dict[str, Any]:
    """The inputs of a step after the first as transformers' `generate` hands them to a compiled
    model: masks as long as the cache, so that all steps have one shape."""
    prepare = getattr(module, "prepare_inputs_for_generation", None)
    if prepare is None or "past_key_values" not in given:
        return dict(given)
    name = tokens_of(given)
    others = {key: value for key, value in given.items() if key != name}
    prepared: dict[str, Any] = prepare(given[name], **others)
    return {key: value for key, value in prepared.items() if value is not None}


def _graphs() -> int:
    """How many were compiled in this process so far."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


@contextmanager
def compiling(compiler: str) -> Iterator[None]:
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
