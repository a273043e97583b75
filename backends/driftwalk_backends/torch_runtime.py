"""What every backend has that runs a torch module: dtype and device, its points, the clock."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from driftwalk.adapter import Backend, BackendInfo, Lap, Offer, Sink
from driftwalk.budget import trim
from driftwalk.dtypes import Array
from driftwalk.errors import BackendUnavailable, UsageError
from driftwalk.exercised import Exercised
from driftwalk.mixture import OWN, Mixture
from driftwalk.spec import THREADS_HELP, Spec
from driftwalk.states import Probe
from driftwalk.weight_source import WeightSource

from .ambient import settings_set_aside
from .calls import Inputs, call, explaining, quietly
from .depth import Looks
from .eager_run import as_arrays, device_clock, output_arrays, wait
from .fingerprint import versions
from .functions import is_closed
from .given import GivenModel
from .half_sums import has_convolution, sums_in_half
from .hooks import TensorSink
from .layout import Layout
from .lending import Lend, is_lent
from .on_device.states import Holding
from .randomness import DrawnAlike, unrepeatable_module
from .sources import torch_model
from .tensors import TORCH_DTYPES
from .torch_devices import (
    AUTO,
    DEVICES,
    device_name,
    device_of,
    driver_version,
    spreads_over,
    why_not,
)
from .torch_settings import Precision
from .untouched import Saved, saved_of, untouched


class TorchRuntime(Looks, Backend):
    """A module, its inputs and its points on a device, ready to be run in one way or another."""

    name: ClassVar[str] = "torch"
    options: ClassVar[Mapping[str, str]] = {
        "attn": "attention implementation of a transformers model: eager or sdpa",
        "folder": "run another saved model in its place, as transformers loads it: a quantised one",
        "memory": "torch:auto: most that weights may take of each GPU, 20GiB, or of one after the "
        "other, 20GiB/8GiB (default: nine tenths of what is free)",
        "compile": "run through torch.compile with this backend: inductor, aot_eager ...",
        "disable": "with compile=inductor: passes, lowerings and settings to leave out, with ; "
        "between them: lowerings:4:erf",
        "stream": "on, off or large: weights are cast, moved and read from their file as they are "
        "needed, and no copy is made (default: large models on the CPU)",
        "ranges": "number of nodes of a Ray cluster that run a range of the blocks each",
        "address": "of that cluster, HOST:PORT (default: the one that Ray finds)",
        "tf32": "on or off: TF32 matrix products for fp32 on CUDA (default off)",
        "matmul": "precision of fp32 matrix products: highest (default), high or medium",
        "cudnn": "on, off or benchmark: convolutions by cuDNN, on CUDA (default on)",
        "deterministic": "on or off: algorithms that give the same in every run (default off)",
        "threads": THREADS_HELP,
    }

    draws_as_float32: ClassVar[bool] = False
    """Whether its arithmetic draws the random numbers of a float32 model, whatever its dtype is."""

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec)
        self._model = torch_model(model)
        self._given = self._model if isinstance(self._model, GivenModel) else None
        self._device = device_of(spec.device or "cpu", self.name)
        self._dtype = spec.dtype or "fp32"
        self._attn = spec.choice("attn", ("eager", "sdpa"), "") if "attn" in spec.options else None
        self._tf32 = spec.choice("tf32", ("on", "off"), "off") == "on"
        self._precision = Precision.of(spec)
        self._threads = spec.count("threads")
        if self._dtype not in TORCH_DTYPES:
            raise UsageError(
                f"Backend 'torch' has no dtype {self._dtype!r}; it has {', '.join(TORCH_DTYPES)}."
                + (" For TF32 write torch:cuda:fp32,tf32=on." if self._dtype == "tf32" else "")
            )
        if why := why_not(self._device):
            raise BackendUnavailable(f"torch:{self._device} is not usable here: {why}.")
        if self._tf32 and self._device.type != "cuda":
            raise UsageError(f"tf32=on is for CUDA devices, not {self._device.type}.")
        if "disable" in spec.options and spec.options.get("compile") != "inductor":
            raise UsageError(f"{spec}: disable= is for compile=inductor.")
        self._module: nn.Module | None = None
        self._saved: Saved | None = None
        self._lent = False
        self._lend: Lend = "off"
        """Whether its module is lent the model's weights (lending.py)."""
        self._hold = False

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        offers = [Offer("torch:cpu", True, f"torch {torch.__version__}")]
        for device in DEVICES[1:]:
            why = why_not(torch.device(device))
            offers.append(Offer(f"torch:{device}", not why, why or device_name(device)))
        return [*offers, Offer(f"torch:{AUTO}", True, spreads_over())]

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(
            spec=str(self.spec),
            name=self.name,
            device=str(self._device),
            dtype="tf32" if self._tf32 else self._mixture.dtype,
            versions=versions("torch", "transformers"),
            flags=self._flags(),
            dtypes=self._mixture.dtypes,
            stored=self._mixture.stored,
        )

    @property
    def _mixture(self) -> Mixture:
        """What it computes in: of a module as it is, what was seen so far."""
        return self._given.mixture if self._given is not None else Mixture(self._dtype)

    def prepare(self, probe: Probe) -> None:
        if self._given is not None and self._given.is_mixed:
            with self.at_work(probe):
                pass  # what a module computes in is seen when its points are found

    @property
    def layout(self) -> Layout | None:
        """The points found so far; None before the first traced run."""
        return next(iter(self._model._layouts.values()), None)

    @property
    def outputs_skipped(self) -> tuple[str, ...]:
        return self._model.outputs_skipped

    def _flags(self) -> dict[str, str]:
        flags = {
            "threads": str(self._threads or torch.get_num_threads()),
            "cpu": torch.backends.cpu.get_cpu_capability(),
            **settings_set_aside(),
        }
        flags |= self._precision.flags
        config = getattr(self._module or self._model.module, "config", None)
        if attention := getattr(config, "_attn_implementation", None):
            flags["attn"] = str(self._attn or attention)
        if self._lent:
            flags["weights"] = "streamed"
        if self._own_convolutions:
            flags["convolutions"] = OWN
        if self._given is not None and self._given.quantised:
            flags["quantised"] = self._given.quantised
        if self._device.type == "cuda":
            flags["tf32"] = "on" if self._tf32 else "off"
            flags["gpu"] = torch.cuda.get_device_name(self._device)
            flags["capability"] = ".".join(map(str, torch.cuda.get_device_capability(self._device)))
            flags["cuda"] = str(torch.version.cuda)
            flags["driver"] = driver_version()
            flags["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
            matmul = torch.backends.cuda.matmul
            flags["fp16_reduced_reduction"] = str(matmul.allow_fp16_reduced_precision_reduction)
            flags["bf16_reduced_reduction"] = str(matmul.allow_bf16_reduced_precision_reduction)
        return flags

    @property
    def _own_convolutions(self) -> bool:
        """Whether convolutions are summed in half precision, which not all CPUs do."""
        dtype = TORCH_DTYPES.get(self._mixture.dtype)
        return (
            self._device.type == "cpu"
            and dtype in (torch.float16, torch.bfloat16)
            and not self._mixture.dtypes
            and has_convolution(self._module or self._model.module)
            and sums_in_half(dtype)
        )

    def _open(self) -> nn.Module:
        if self._module is None:
            start = time.perf_counter()
            self._module = self._load()
            self._lent = is_lent(self._module)
            taken = time.perf_counter() - start
            self._seconds["load"] = self._seconds.get("load", 0.0) + taken
        return self._module

    def _load(self) -> nn.Module:
        return self._model.at(self._dtype, str(self._device), self._attn, lend=self._lend)

    @property
    def _devices(self) -> tuple[torch.device, ...]:
        """Where it computes."""
        return (self._device,)

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        with self._ready(probe) as (module, inputs):
            if sink is None:
                with self._drawing():
                    return output_arrays(self._plain(module, inputs))
            run = partial(self._watched, module, inputs, self._find_layout(module, inputs))
            with self._drawing():
                return as_arrays(run, sink, Holding(self._device).keep if self._hold else None)

    @contextmanager
    def _running(self) -> Iterator[nn.Module]:
        """The module, in the arithmetic that was asked for."""
        module = self._open()
        quiet = quietly(module, self._saved)
        with quiet, self._arithmetic(), explaining(self._model.label, self.spec):
            yield module
        if self._lent:
            trim()

    @contextmanager
    def in_a_row(self) -> Iterator[None]:
        """What the module holds is looked at once, and put back after each run."""
        before, self._saved = self._saved, saved_of(self._open())
        try:
            yield
        finally:
            self._saved = before

    @contextmanager
    def _ready(self, probe: Probe) -> Iterator[tuple[nn.Module, Inputs]]:
        """The same, and the probe's tensors."""
        with self._running() as module:
            yield module, self._inputs(module, probe)

    @contextmanager
    def at_work(self, probe: Probe) -> Iterator[tuple[nn.Module, Inputs, Layout]]:
        """The module, the probe's tensors and the points, ready for a run of another kind."""
        with self._ready(probe) as (module, inputs):
            layout = self._find_layout(module, inputs)
            with self._drawing():
                yield module, inputs, layout

    def _drawing(self) -> AbstractContextManager[object]:
        """Random numbers as a float32 model draws them, in a model that is known to draw some."""
        plain = self._device.type == "cpu" and self._mixture == Mixture("fp32")
        alike = not self._model.drawing or self.draws_as_float32 or plain
        return nullcontext() if alike else DrawnAlike()

    @property
    def is_closed(self) -> bool:
        """Whether nothing inside of the model can be looked at."""
        return is_closed(self._model.module)

    def other_weights(self, model: object, probe: Probe) -> WeightSource | None:
        """Those of another module than the model's."""
        own = self._model
        if own is model or own.module is getattr(model, "module", None):
            return None
        return None if self._given is not None and self._given.quantised else own.own_weights()

    def unrepeatable(self, probe: Probe) -> str | None:
        """The innermost module that gives something else in every run; None where none does."""
        with self._ready(probe) as (module, inputs):

            def run() -> Any:
                with untouched(module):
                    return call(module, inputs, **self._asked_for)

            return unrepeatable_module(module, run)

    @property
    def _asked_for(self) -> Mapping[str, Any]:
        """What a model is asked for in runs that are not to be compared, beside its inputs."""
        return {}

    def _inputs(self, module: nn.Module, probe: Probe) -> dict[str, Any]:
        return self._model.inputs(module, probe, self._device)

    @abstractmethod
    def _plain(self, module: nn.Module, inputs: Inputs) -> Any:
        """What the model gives."""

    @abstractmethod
    def _watched(self, module: nn.Module, inputs: Inputs, layout: Layout, sink: TensorSink) -> Any:
        """The same, and every state to the sink as it is made."""

    def lap(self, probe: Probe) -> Lap:
        """One plain run; copies are timed apart, and the device is waited for."""
        with self._running() as module:
            start = time.perf_counter()
            inputs = self._inputs(module, probe)
            wait(*self._devices)
            ready = time.perf_counter()
            with device_clock(*self._devices) as clock:
                output = self._plain(module, inputs)
            wait(*self._devices)
            done = time.perf_counter()
            output_arrays(output)
            copied = time.perf_counter()
        if self._device.type == "cpu":  # nothing was copied anywhere
            return Lap(done - ready)
        return Lap(done - ready, ready - start, copied - done, clock())

    def device_memory(self) -> Mapping[str, int]:
        if self._device.type != "cuda":
            return {}
        return {
            "cuda allocated": torch.cuda.max_memory_allocated(self._device),
            "cuda reserved": torch.cuda.max_memory_reserved(self._device),
        }

    @property
    def holds_on(self) -> str:
        """The GPU that states can be left on; empty on the CPU, where they are at hand anyway."""
        if self._device.type != "cuda":
            return ""
        index = self._device.index
        return f"cuda:{torch.cuda.current_device() if index is None else index}"

    def hold(self, on: bool) -> None:
        self._hold = on

    def exercised(self, probe: Probe) -> Exercised | None:
        """What of the model the probe uses; one more run, unless one of it was watched."""
        with self._ready(probe) as (module, inputs):
            run = partial(call, module, inputs, **self._asked_for)
            return self._model.exercised(module, inputs, run)

    def _find_layout(self, module: nn.Module, inputs: Inputs) -> Layout:
        start = time.perf_counter()
        run = partial(call, module, inputs, **self._asked_for)
        layout = self._model.layout(module, inputs, run)
        if self._given is not None:
            self._given.watch(layout, run)
        self._seconds["points"] = self._seconds.get("points", 0.0) + time.perf_counter() - start
        return replace(layout, look=self._look)

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        """Threads, TF32 and other settings as asked for, for this run only."""
        with ExitStack() as restore:
            if self._threads:
                restore.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(self._threads)
            if self._device.type == "cuda":
                restore.enter_context(_tf32(self._tf32))
                restore.enter_context(torch.cuda.device(self._device))
            restore.enter_context(self._precision.set())
            yield

    def _close(self) -> None:
        self._module, self._lent = None, False


@contextmanager
def _tf32(on: bool) -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = on
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
