"""One device under test: what it is, what it can do, and how each thing is run on it."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from driftwalk.cpu import cpu_model
from driftwalk.dtypes import Array
from driftwalk.errors import BackendUnavailable, UsageError
from driftwalk.spec import Spec
from driftwalk.states import Probe, Trace
from driftwalk.tasks.hardware.result import Difference

from ..calls import first_line, forward_of
from ..loaded import LoadedModel
from ..sources import torch_model
from ..tensors import from_numpy, to_numpy
from ..torch_devices import why_not
from . import patterns
from .digest import as_text, digest, locate
from .inject import Injection
from .model import LARGE, MEDIUM, SMALL, Repeater, Size, built_in, default_probe
from .sensors import sensors_of
from .units import Prepared, States, Unit, planned


@cache
def torch_build() -> str:
    """Tells builds of one version apart: how torch was compiled, and the libraries beside it."""
    root = Path(torch.__file__).parent
    folders = (root / "lib", root.with_name("torch.libs"))
    files = [file for folder in folders if folder.is_dir() for file in folder.iterdir()]
    sizes = sorted((file.name, file.stat().st_size) for file in files if file.is_file())
    told = f"{torch.version.git_version}\n{torch.__config__.show()}\n{sizes}"
    return hashlib.sha256(told.encode()).hexdigest()[:12]


class Station:
    """A device, with the sensors beside it and the fault that is put in, if one is."""

    def __init__(self, device: str, injection: Injection | None = None) -> None:
        self.device = torch.device(device)
        if why := why_not(self.device):
            raise BackendUnavailable(f"{device} cannot be checked here: {why}.")
        self.label = device
        self.core: int | None = None
        self._injection = injection
        self._sensors = sensors_of(self.device)

    def identity(self) -> dict[str, str]:
        """What decides the bits of a result; two devices with the same must agree in each."""
        both = {"device": self.device.type, "torch": torch.__version__, "build": torch_build()}
        if self.device.type == "cuda":
            matmul = torch.backends.cuda.matmul
            return both | {
                "model": torch.cuda.get_device_name(self.device),
                "capability": ".".join(map(str, torch.cuda.get_device_capability(self.device))),
                "cuda": str(torch.version.cuda),
                "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
                "cublas workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", "default"),
                "fp16 reduced reduction": str(matmul.allow_fp16_reduced_precision_reduction),
                "bf16 reduced reduction": str(matmul.allow_bf16_reduced_precision_reduction),
            }
        return both | {
            "model": cpu_model(),
            "machine": platform.machine(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "threads": str(torch.get_num_threads()),
            "fpmath": os.environ.get("DNNL_DEFAULT_FPMATH_MODE", "default"),
        }

    def details(self) -> dict[str, str]:
        """What names this one device, and explains; it decides no bit."""
        facts = self._sensors.names()
        if self.device.type == "cuda":
            total = torch.cuda.get_device_properties(self.device).total_memory
            facts["memory"] = f"{total / 2**30:.1f} GiB"
        return facts

    def dtypes(self) -> tuple[str, ...]:
        """The formats this device computes in; halves on a CPU by whatever way it has."""
        if self.device.type != "cuda":
            return ("fp64", "fp32", "bf16", "fp16")
        capability = torch.cuda.get_device_capability(self.device)
        newer, newest = capability >= (8, 0), capability >= (8, 9)
        return ("fp64", "fp32", *["tf32", "bf16"] * newer, "fp16", *["fp8"] * newest)

    def sense(self) -> tuple[dict[str, float], tuple[str, ...]]:
        """What the sensors say now."""
        return self._sensors.values(), self._sensors.throttled()

    def cores(self) -> tuple[int, ...]:
        """The cores this process may use; none where they cannot be chosen."""
        if self.device.type != "cpu" or not hasattr(os, "sched_setaffinity"):
            return ()
        return tuple(sorted(os.sched_getaffinity(0)))

    @contextmanager
    def on_core(self, core: int) -> Iterator[None]:
        """One thread, on one core; the process gets all of its cores back."""
        allowed, threads = os.sched_getaffinity(0), torch.get_num_threads()
        try:
            os.sched_setaffinity(0, {core})
            torch.set_num_threads(1)
            self.core = core
            yield
        finally:
            self.core = None
            os.sched_setaffinity(0, allowed)
            torch.set_num_threads(threads)

    def built_in(self, small: bool = False) -> tuple[LoadedModel, Probe]:
        """The seeded model, sized for this device, and its probe; `small` is for every device."""
        size: Size = LARGE if self.device.type == "cuda" and not small else SMALL
        return built_in(size), default_probe(size)

    def token_model(self) -> tuple[LoadedModel, Probe]:
        """The seeded model in a size whose float64 a CPU computes in no time."""
        size = MEDIUM if self.device.type == "cuda" else SMALL
        return built_in(size), default_probe(size)

    def repeater(self, model: object, dtype: str, threads: int | None = None) -> Repeater:
        """A model on this device in a dtype; `tf32` is float32 with TF32 products."""
        stored, options = ("fp32", {"tf32": "on"}) if dtype == "tf32" else (dtype, {})
        if threads and self.device.type == "cpu":
            options["threads"] = str(threads)
        return Repeater(Spec("torch", self.label, stored, options), torch_model(model))

    def as_states(self, trace: Trace) -> States:
        """Recorded states as tensors on the host."""
        return {state.point.name: from_numpy(state.array) for state in trace}

    def as_arrays(self, states: States) -> dict[str, Array]:
        return {name: to_numpy(tensor) for name, tensor in states.items()}

    def token_facts(self, model: LoadedModel) -> tuple[int, bool]:
        """The id that pads, and whether the model can be told where each token stands."""
        pad = getattr(model.config, "pad_token_id", None)
        takes = "position_ids" in forward_of(model.module).names
        return (pad if isinstance(pad, int) else 0), takes

    def threads(self) -> int:
        """How many threads this process computes with; 0 where that decides nothing."""
        return torch.get_num_threads() if self.device.type == "cpu" else 0

    def model_states(self, backend: Repeater, probe: Probe, case: str, repeat: int) -> States:
        """All states of one run, with the fault in it that is to be put in."""
        if self._injection is None:
            return backend.states(probe)

        def exchange(state: str, tensor: torch.Tensor) -> torch.Tensor | None:
            given = self._with_fault(tensor, state, case, repeat)
            return None if given is tensor else given

        return backend.states(probe, exchange)

    def units(self, dtypes: tuple[str, ...], level: str) -> list[Unit]:
        return planned(self.device, dtypes, level)

    def prepare(self, unit: Unit) -> Prepared:
        """A unit with its inputs; what the device does not offer is refused by name."""
        try:
            prepared = Prepared(unit, self.device)
            prepared.run()
            self.wait()
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            if "CUDA error" in str(error):  # the device broke; that is no lack of a feature
                raise
            self.free()
            why = first_line(error)[:160]
            raise BackendUnavailable(f"{unit.name} does not run here: {why}") from error
        return prepared

    def unit_states(self, prepared: Prepared, case: str, repeat: int) -> States:
        states = prepared.run()
        return {name: self._with_fault(states[name], name, case, repeat) for name in states}

    def memory_states(
        self, kind: str, pattern: str, level: str, repeat: int, case: str
    ) -> patterns.Words:
        """Each tensor that was copied or kept: its name, what it should be, what it is."""
        if kind == "memory":
            words = patterns.fill(pattern, level, self.device, 1000 * repeat)
        else:
            words = patterns.copies(pattern, patterns.COPY_WORDS[level], self.device, repeat)
        for name, right, kept in words:
            yield name, right, self._with_fault(kept, name, case, repeat)

    def digests(self, states: Mapping[str, torch.Tensor]) -> dict[str, str]:
        """In hexadecimal, by state; waits for the device."""
        texts = as_text([digest(tensor) for tensor in states.values()])
        return dict(zip(states, texts, strict=True))

    def differences(self, expected: States, found: States, state: str) -> Difference:
        differing, flips = locate(expected[state], found[state])
        return differing, found[state].numel(), flips

    def burn(self, seconds_each: float = 0.2) -> None:
        """Heavy work for about so long, whose result nobody looks at."""
        big = 4096 if self.device.type == "cuda" else 384
        dtype = torch.float16 if self.device.type == "cuda" else torch.float32
        a = torch.ones(big, big, dtype=dtype, device=self.device)
        end = time.perf_counter() + seconds_each
        while time.perf_counter() < end:
            for _ in range(8):
                torch.mm(a, a)
            self.wait()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def free(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _with_fault(self, tensor: torch.Tensor, state: str, case: str, repeat: int) -> torch.Tensor:
        """A copy with the fault that is to be put in; the tensor itself where none is."""
        fault = self._injection
        if fault is None or not fault.strikes(self.label, case, state, repeat, self.core):
            return tensor
        return fault.flipped(tensor)


def device_names(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """`all` as names; any other text is one name, or several with commas between."""
    if wanted == "all":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return tuple(f"cuda:{number}" for number in range(count)) or ("cpu",)
    named = wanted.split(",") if isinstance(wanted, str) else wanted
    names = tuple(name.strip() for name in named if name.strip())
    for name in names:
        kind, _, number = name.partition(":")
        if kind not in ("cpu", "cuda") or (number and not (kind == "cuda" and number.isdecimal())):
            raise UsageError(f"No device {name[:40]!r}; write cpu, cuda, cuda:N or all.")
    if not names:
        raise UsageError("No device was named; write cpu, cuda, cuda:N or all.")
    return names
