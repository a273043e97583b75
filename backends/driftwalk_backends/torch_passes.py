"""What torch.compile does to a graph, and how to leave some of it out.

PyTorch's own bisector (`torch._inductor.compiler_bisector`) has the places: before each pass,
decomposition and lowering the compiler asks it whether to skip that one. Here it is told which, by
`lowerings` (all of them), `lowerings:4` (by number) or `lowerings:4:erf` (by what it is about: a
number counts what hooks add, a name does not; the second of that name in all graphs is `erf@2`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from driftwalk.errors import UsageError, nearest

SUBSYSTEMS = {
    "lowerings": "lowering of operations by inductor",
    "post_grad_passes": "passes of inductor over the graph after autograd",
    "joint_graph_passes": "passes of inductor over the joint graph",
    "pre_grad_passes": "passes of inductor over the graph before autograd",
    "decomposition": "decomposition of operations into smaller ones",
}
"""From the last that the compiler does to the first: each works on what the next ones give."""
SETTINGS: dict[str, dict[str, Any]] = {
    "vectorisation": {"cpp.simdlen": 1},
    "fusion": {"max_fusion_size": 1, "epilogue_fusion": False},
    "layout_optimization": {"layout_optimization": False},
    "comprehensive_padding": {"comprehensive_padding": False},
    "kept_precision": {"emulate_precision_casts": True},
}
"""Settings of inductor with which something is off."""
_OPERATION = re.compile(r"<OpOverload\(op='([^']+)', overload='([^']+)'\)>")


@dataclass(frozen=True)
class Applied:
    """One pass, decomposition or lowering as it was applied."""

    subsystem: str
    number: int
    label: str

    @property
    def name(self) -> str:
        return f"{self.subsystem}:{self.number}:{self.label}"


def refuse_unknown(names: Sequence[str]) -> None:
    known = [*SUBSYSTEMS, *SETTINGS]
    for name in names:
        subsystem, _, rest = name.partition(":")
        number = rest.partition(":")[0]
        if subsystem not in known:
            raise UsageError(f"disable={name}: torch.compile has none. {nearest(subsystem, known)}")
        if rest and (subsystem in SETTINGS or not number.isdecimal()):
            raise UsageError(f"disable={name}: write lowerings, lowerings:4 or lowerings:4:erf.")


@contextmanager
def leaving_out(names: Sequence[str], seen: list[Applied] | None = None) -> Iterator[None]:
    """Compile without some passes, decompositions, lowerings and settings; see all others.

    No graph that was compiled before is taken from a cache, and none is stored there.
    """
    from torch._functorch import config as functorch
    from torch._inductor import config
    from torch._inductor.compiler_bisector import CompilerBisector as Bisector

    if not names and seen is None:
        yield
        return
    around = vars(Bisector)["disable_subsystem"]
    if seen is None and isinstance(around, _Skip):
        seen = around.seen
    settings = {key: value for name in names for key, value in SETTINGS.get(name, {}).items()}
    own = {"disable_subsystem": _Skip(names, seen), "bisection_enabled": True}
    with ExitStack() as patched:
        patched.enter_context(config.patch({"fx_graph_cache": False, **settings}))
        patched.enter_context(functorch.patch({"enable_autograd_cache": False}))
        for attribute, value in own.items():
            patched.callback(setattr, Bisector, attribute, vars(Bisector)[attribute])
            setattr(Bisector, attribute, value)
        yield


class _Skip:
    """Answers the compiler, which asks before each step."""

    def __init__(self, names: Sequence[str], seen: list[Applied] | None) -> None:
        parts = [name.split(":", 2) for name in names if ":" in name]
        self._whole = {name for name in names if ":" not in name}
        self._labels = {(part[0], part[2]) for part in parts if len(part) == 3}
        self._numbers = {(part[0], int(part[1])) for part in parts if len(part) == 2}
        self.seen = seen
        self._counts: Counter[tuple[str, ...]] = Counter()

    def __call__(
        self, backend: str, subsystem: str, debug_info: Callable[[], str] | None = None
    ) -> bool:
        if subsystem not in SUBSYSTEMS:
            return False
        number = self._counts[subsystem,]
        self._counts[subsystem,] += 1
        said = debug_info() if debug_info is not None else "step"
        label = _OPERATION.sub(r"\1.\2", said).replace(";", "").replace(",", "")
        self._counts[subsystem, label] += 1
        if (times := self._counts[subsystem, label]) > 1:
            label = f"{label}@{times}"
        if self.seen is not None:
            self.seen.append(Applied(subsystem, number, label))
        own = (subsystem, label) in self._labels or (subsystem, number) in self._numbers
        return subsystem in self._whole or own
