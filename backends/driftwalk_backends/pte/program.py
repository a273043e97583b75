"""An ExecuTorch program, loaded and run.

The runtime says why something failed on the process's own standard error, below Python, and raises
a number. So that stream is read while it works, and the last line becomes the reason of an error.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, BackendUnavailable

from ..onnx.exposed import silence
from ..tensors import from_numpy, to_numpy

METHOD = "forward"
INSTALL = "Install it: pip install 'driftwalk[executorch]'."
_NOISE = ("cpuinfo", "Reading file")


@dataclass(frozen=True)
class Slot:
    """An input or output of a program: the dtype in torch's words, and the shape, at its most."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(eq=False)
class Program:
    """A program's one method, ready to be run."""

    path: Path
    method: Any
    owner: Any
    """Holds the memory that the method reads."""

    @property
    def inputs(self) -> tuple[Slot, ...]:
        meta = self.method.method_meta()
        return tuple(_slot(meta.input_tensor_meta(i)) for i in range(meta.num_inputs()))

    @property
    def outputs(self) -> tuple[Slot, ...]:
        meta = self.method.method_meta()
        return tuple(_slot(meta.output_tensor_meta(i)) for i in range(meta.num_outputs()))

    def run(self, arrays: Sequence[Array], label: str) -> tuple[list[Array], float]:
        """All outputs, and the seconds that the runtime itself took."""
        given = [from_numpy(np.ascontiguousarray(array), "cpu") for array in arrays]
        with own_log() as log:
            try:
                start = time.perf_counter()
                outputs = self.method(given)
                seconds = time.perf_counter() - start
            except (RuntimeError, ValueError, TypeError) as error:
                raise BackendError(f"ExecuTorch failed on {label}: {log.reason(error)}") from error
        return [to_numpy(torch.as_tensor(output)) for output in outputs], seconds


def runtime() -> Any:
    """ExecuTorch's binding; importing it says things that are no concern of ours."""
    with silence():
        import executorch.extension.pybindings.portable_lib as binding
    return binding


def not_installed() -> str:
    """Why ExecuTorch cannot be used here; empty where it can."""
    try:
        import executorch  # noqa: F401

        runtime()
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "executorch"
        said = str(error).rstrip(".")
        return "executorch is not installed." if missing else f"executorch cannot be used: {said}."
    return ""


def require(name: str) -> None:
    """Refuse now what could not be run later."""
    if why := not_installed():
        raise BackendUnavailable(f"Backend {name!r} is not usable here: {why} {INSTALL}")


def load(path: Path, label: str = "") -> Program:
    """A program of one method, or an error in one line."""
    binding = runtime()
    where = label or path.name
    with own_log() as log:
        try:
            owner = binding._load_program(
                str(path), program_verification=binding.Verification.InternalConsistency
            )
            names = [owner.get_method_name(i) for i in range(owner.num_methods())]
            if METHOD not in names:
                raise BackendError(
                    f"{where} has no method {METHOD!r}; it has {', '.join(names) or 'none'}."
                )
            return Program(path, owner.load_method(METHOD), owner)
        except RuntimeError as error:
            raise BackendError(f"ExecuTorch cannot load {where}: {log.reason(error)}") from error


def lacking_kernels(operators: Iterable[tuple[str, str]]) -> list[str]:
    """Those operators of a program that the runtime has no kernel for."""
    known = set(runtime()._get_operator_names())
    named = {f"{name}.{overload}" if overload else name for name, overload in operators}
    return sorted(named - known)


def set_threads(count: int | None) -> int:
    """The threads of the runtime's pool, which all programs of this process share."""
    binding = runtime()
    with own_log():  # it reads what CPU this is, and says so
        if count and binding._threadpool_get_thread_count() != count:
            binding._unsafe_reset_threadpool(count)
        return int(binding._threadpool_get_thread_count())


class Log:
    """What the runtime printed."""

    text = ""

    def reason(self, error: BaseException) -> str:
        """Its last line, or what was raised."""
        self.read()
        lines = [line for line in self.text.splitlines() if line.startswith("[")]
        said = [line for line in lines if not any(word in line for word in _NOISE)]
        reason = said[-1].partition("] ")[2] if said else ""
        return (reason or str(error).strip() or type(error).__name__)[:400]

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self) -> None:
        with suppress(OSError, ValueError):
            self._file.seek(0)
            self.text = self._file.read().decode(errors="replace")


@contextmanager
def own_log() -> Iterator[Log]:
    """The process's standard error, kept from the terminal; what was printed can be read."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield Log(file)
        finally:
            os.dup2(before, 2)
            os.close(before)


def _slot(info: Any) -> Slot:
    return Slot(_DTYPES.get(int(info.dtype()), "unknown"), tuple(int(d) for d in info.sizes()))


_DTYPES = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    11: "bool",
    15: "bfloat16",
}
"""Numbers of c10's ScalarType."""
