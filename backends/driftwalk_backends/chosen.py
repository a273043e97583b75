"""What a model chooses in a run, and runs that are made to choose otherwise.

Every operation that ranks computed numbers (choices.py) is noted with the module that asked for it,
the numbers, and the indices it gave; so is what each one taken counts: a float tensor of the same
shape that a module takes or gives beside the indices. Indices that nobody uses decide nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves

from driftwalk.chosen import Choice
from driftwalk.dtypes import Array

from .choices import RANKINGS, Ranking, Recorded
from .op_values import leaves_of, tensors_of
from .widening import Args, Kwargs

MOST_SCORES = 1 << 24
"""A choice among more numbers than this, all rows together, is not noted."""

_MARK = "_driftwalk_chosen"


@dataclass(eq=False)
class _Noted:
    """A choice while the model runs."""

    name: str
    module: str
    op: str
    shape: torch.Size
    """Of the tensor of indices."""
    taken: torch.Tensor
    own: torch.Tensor
    scores: torch.Tensor
    ranking: Ranking
    point: str = ""
    used: bool = False
    weights: torch.Tensor | None = None

    @property
    def choice(self) -> Choice:
        weights = self.weights
        return Choice(
            name=self.name,
            module=self.module,
            point=self.point,
            op=self.op,
            taken=self.taken.cpu().numpy(),
            own=self.own.cpu().numpy(),
            scores=self.scores.double().cpu().numpy(),
            descending=self.ranking.descending,
            ordered=not self.ranking.best,
            weights=None if weights is None else _rows(weights, self.ranking, self.shape),
        )


def _rows(tensor: torch.Tensor, ranking: Ranking, shape: torch.Size) -> Array:
    axis = ranking.axis
    last = tensor if axis is None else tensor.movedim(axis, -1)
    return last.reshape(-1, shape[axis] if axis is not None else 1).double().cpu().numpy()


class Choosing(Recorded):
    """Notes every choice; those that are `forced` are made as they are given, by name."""

    def __init__(self, module: nn.Module, forced: Mapping[str, Array]) -> None:
        super().__init__()
        self._paths = {id(part): path for path, part in module.named_modules()}
        self._open: list[str] = [""]
        self._calls: Counter[str] = Counter()
        self._forced = forced
        self._noted: list[_Noted] = []

    def reached(self, point: str) -> None:
        """What was chosen since the last point belongs to this one."""
        for noted in reversed(self._noted):
            if noted.point:
                break
            noted.point = point

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Those whose indices were used."""
        return tuple(noted.choice for noted in self._noted if noted.used and noted.point)

    def before(self, module: nn.Module, args: Any) -> None:
        self._open.append(self._paths.get(id(module), self._open[-1]))

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """What a module takes or gives beside indices, in their shape, is what these count."""
        self._open.pop()
        if not self._noted:
            return
        tensors = [one for one in tree_leaves((output, args, kwargs)) if _is_tensor(one)]
        for tensor in tensors:
            noted = getattr(tensor, _MARK, None)
            if noted is None or noted.weights is not None or tensor.shape != noted.shape:
                continue
            alike = (t for t in tensors if t.is_floating_point() and t.shape == tensor.shape)
            if (weights := next(alike, None)) is not None:
                with torch._C._DisableTorchDispatch():
                    noted.weights = weights.detach().clone()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        marked = [one for t in tensors_of(args, kwargs or {}) if (one := getattr(t, _MARK, None))]
        given = super().__torch_dispatch__(func, types, args, kwargs)
        for noted in marked:
            if not func.is_view:
                noted.used = True
            elif isinstance(given, torch.Tensor):
                setattr(given, _MARK, noted)
        return given

    def _computed(self, func: Any, args: Args, kwargs: dict[str, Any]) -> Any:
        name = func._overloadpacket.__name__
        given = func(*args, **kwargs)
        ranking = Ranking.of(func, args, kwargs) if name in RANKINGS else None
        if ranking is None or args[0].numel() > MOST_SCORES or not args[0].numel():
            return given
        with torch._C._DisableTorchDispatch():
            return self._note(name, args[0], ranking, given)

    def _note(self, op: str, scores: torch.Tensor, ranking: Ranking, given: Any) -> Any:
        index = next((t for t in leaves_of(given) if t.dtype == torch.int64), None)
        if index is None:
            return given
        path, shape = self._open[-1], index.shape
        self._calls[f"{path}:{op}"] += 1
        name = f"{path}:{op}#{self._calls[f'{path}:{op}']}"
        axis = ranking.axis
        last = scores.flatten()[None] if axis is None else scores.movedim(axis, -1)
        kept = axis is not None and index.ndim == scores.ndim
        along = axis or 0
        own = index.movedim(along, -1) if kept else index.unsqueeze(-1)
        own = own.reshape(-1, own.shape[-1])
        taken, forced = own, self._forced.get(name)
        if forced is not None and len(forced) == len(own):
            taken = torch.from_numpy(np.ascontiguousarray(forced)).to(own.device)
            index = taken.reshape(*last.shape[:-1], -1)
            index = index.movedim(-1, along) if kept else index.reshape(shape)
            given = _with_index(given, scores, index, axis, kept)
            index = next(t for t in leaves_of(given) if t.dtype == torch.int64)
        rows = last.reshape(-1, last.shape[-1]).detach().clone()
        noted = _Noted(name, path, op, index.shape, taken.clone(), own.clone(), rows, ranking)
        self._noted.append(noted)
        setattr(index, _MARK, noted)
        return given


def _with_index(
    given: Any, scores: torch.Tensor, index: torch.Tensor, axis: int | None, kept: bool
) -> Any:
    """What an operation would have given, had it taken these."""
    if isinstance(given, torch.Tensor):
        return index.contiguous()
    along = 0 if axis is None else axis
    flat = scores.flatten() if axis is None else scores
    values = flat.gather(along, index if kept else index.unsqueeze(along))
    return values if kept else values.squeeze(along), index.contiguous()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


@contextmanager
def choosing(module: nn.Module, forced: Mapping[str, Array]) -> Iterator[Choosing]:
    """Runs of a module inside of this are watched."""
    mode = Choosing(module, forced)
    with ExitStack() as hooks:
        before = register_module_forward_pre_hook(mode.before)
        hooks.callback(before.remove)
        after = register_module_forward_hook(mode.after, with_kwargs=True)
        hooks.callback(after.remove)
        with mode:
            yield mode
