"""Cuts of a torch module as the candidate runs them: compiled, or one operation after the other."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import numpy as np
import torch

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError

from ..calls import first_line
from ..tensors import to_numpy
from ..torch_compiled import TorchCompiled, compiling
from ..torch_passes import leaving_out
from ..torch_runtime import TorchRuntime
from .constants import PROGRAM_SUMS
from .cuts import Cut
from .programs import FLOATS, TorchCut, ran, widened
from .showing import Judge


class ProgramJudge(Judge):
    """Runs operations as a candidate of PyTorch runs its module."""

    def __init__(self, candidate: TorchRuntime) -> None:
        self._candidate = candidate

    def wide(
        self, cut: Cut, instead: Mapping[str, Array] | None = None, names: tuple[str, ...] = ()
    ) -> Any:
        found: dict[str, Array] = {}

        def keep(name: str, made: Any) -> Any:
            if isinstance(made, torch.Tensor) and made.is_floating_point():
                found[name] = to_numpy(made)
            return made

        tensors = {
            n: _wide(t) for n, t in _cut(cut, instead).tensors(self._candidate._device).items()
        }
        made = self._ran(cut, tensors, keep, wide=True)
        if names:
            return {name: found[name] for name in names if name in found}
        if not made.is_floating_point():
            raise BackendError("what comes out is no float")
        return to_numpy(made)

    def _ran(self, cut: Cut, tensors: Mapping[str, torch.Tensor], each: Any, wide: bool) -> Any:
        nodes = [widened(node) for node in cut.nodes] if wide else list(cut.nodes)
        try:
            with torch.no_grad(), self._candidate._arithmetic():
                return ran(nodes, tensors, cut.output, each)
        except BackendError:
            raise
        except Exception as error:  # operations raise what they like of shapes that do not fit
            raise BackendError(f"The operations do not run: {first_line(error)}") from error

    def _as_written(self, cut: Cut) -> Array:
        tensors = _cut(cut).tensors(self._candidate._device)
        return _array(self._ran(cut, tensors, None, wide=False))

    def _as_candidate(self, cut: Cut) -> Array:
        candidate = self._candidate
        if not isinstance(candidate, TorchCompiled):
            return self._as_written(cut)
        nodes, output = cut.nodes, cut.output

        def run(tensors: Mapping[str, torch.Tensor]) -> Any:
            return ran(nodes, tensors, output)

        # Compiled code is kept with the function's own.
        own = FunctionType(run.__code__.replace(), run.__globals__, "run", None, run.__closure__)
        compiler, left_out = candidate._compiler, candidate._left_out
        compiled = torch.compile(own, backend=compiler, dynamic=False)
        tensors = _cut(cut).tensors(candidate._device)
        try:
            with (
                torch.no_grad(),
                candidate._arithmetic(),
                compiling(compiler),
                leaving_out(left_out),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")
                return _array(compiled(tensors))
        except BackendError:
            raise
        except Exception as error:
            raise BackendError(f"The operations do not run: {first_line(error)}") from error

    def _by_another(self, cut: Cut) -> tuple[Array, float] | None:
        """In float64, every result rounded to the type that it has."""
        kinds: dict[str, torch.dtype] = {}

        def seen(name: str, made: Any) -> Any:
            if isinstance(made, torch.Tensor):
                kinds[name] = made.dtype
            return made

        def rounded(name: str, made: Any) -> Any:
            kind = kinds.get(name)
            return made.to(kind).to(torch.float64) if kind in FLOATS else made

        tensors = _cut(cut).tensors(self._candidate._device)
        try:
            self._ran(cut, tensors, seen, wide=False)
            exact = {name: _wide(tensor) for name, tensor in tensors.items()}
            return _array(self._ran(cut, exact, rounded, wide=True)), PROGRAM_SUMS
        except BackendError:
            return None


def _cut(cut: Cut, instead: Mapping[str, Array] | None = None) -> TorchCut:
    assert isinstance(cut, TorchCut)
    made = cut if not instead else cut.with_values(instead)
    assert isinstance(made, TorchCut)
    return made


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64) if tensor.dtype in FLOATS else tensor


def _array(made: Any) -> Array:
    if not isinstance(made, torch.Tensor):
        raise BackendError("what comes out is no tensor")
    array = to_numpy(made.float() if made.dtype is torch.bfloat16 else made)
    return np.asarray(array)
