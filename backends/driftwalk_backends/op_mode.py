"""Modes that see every operation, without torch's compiler where nobody compiles.

PyTorch keeps its compiler out of such a mode, and imports all of it to do so: that takes as long as
to import the rest of PyTorch. Where no function is being called that shall be compiled, there is
nothing to keep out.
"""

from __future__ import annotations

from typing import Any

from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.utils._python_dispatch import TorchDispatchMode


class OpMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that asks for the compiler only where that is at work."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # type: ignore[no-untyped-call]
        guarded: Any = cls.__dict__.get("__torch_dispatch__")
        plain: Any = getattr(guarded, "__wrapped__", None)
        if plain is None:
            return

        def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen = plain if get_eval_frame_callback() is None else guarded
            return seen(self, func, types, args, kwargs)

        cls.__torch_dispatch__ = dispatch  # type: ignore[method-assign]
