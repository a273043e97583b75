"""A program that torch.export made as a candidate: run as it is, looked at layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from driftwalk.errors import BackendError
from driftwalk.spec import Spec
from driftwalk.states import Probe

from ..formats.in_libraries import UnknownFormatError
from ..given import GivenModel
from ..loaded import LoadedModel
from ..torch_eager import TorchEager
from .declared import honest
from .frames import is_program
from .nested import Program, nested
from .stored import Found, stored


def opened(given: object, like: LoadedModel | None) -> TorchProgram | None:
    """A backend for an exported program; None for what is none."""
    graph = given.module() if isinstance(given, torch.export.ExportedProgram) else given
    if not is_program(graph):
        return None
    try:
        program = nested(graph)  # type: ignore[arg-type]
        found = stored(program)
    except UnknownFormatError as error:
        raise BackendError(
            f"The exported program is quantised in a way that is not known here: {error}. "
            "See docs/quantised.md."
        ) from error
    return TorchProgram(program, found, like)


class TorchProgram(TorchEager):
    """Eager PyTorch on the operations of a program."""

    def __init__(self, program: Program, found: Found, like: LoadedModel | None) -> None:
        given = GivenModel(program, "the exported program", like)
        super().__init__(Spec("torch", str(given.device), given.mixture.dtype), given)
        self._program, self._found = program, found
        self._probe: Probe | None = None

    def prepare(self, probe: Probe) -> None:
        super().prepare(probe)
        self._probe = probe

    def honest_model(self) -> LoadedModel | None:
        """For a program that was quantised: the model, or the program, as it is declared."""
        like = self._model.like
        found = self._found
        if like is None or not (found.weights or found.vectors or found.between):
            return None
        return honest(self._program, found, like, self._probe)

    def leaving_out(self, modules: Sequence[str]) -> nn.Module:
        raise BackendError(
            "An exported program is not made anew: quantise it again without these modules "
            f"(set_module_name(..., None) of its quantizer): {', '.join(modules)}."
        )
