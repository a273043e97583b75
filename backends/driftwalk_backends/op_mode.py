"""Modes that see every operation, without torch's compiler where nobody compiles.

PyTorch keeps its compiler out of such a mode, and imports all of it to do so: that takes as long as
to import the rest of PyTorch. Where it was never imported, nothing is being compiled.
"""

from __future__ import annotations

import sys
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_COMPILER = "torch._dynamo"


class OpMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that asks for the compiler only where that has been imported."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # type: ignore[no-untyped-call]
        guarded: Any = cls.__dict__.get("__torch_dispatch__")
        plain: Any = getattr(guarded, "__wrapped__", None)
        if plain is None:
            return

        def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen = guarded if _COMPILER in sys.modules else plain
            return seen(self, func, types, args, kwargs)

        cls.__torch_dispatch__ = dispatch  # type: ignore[method-assign]
