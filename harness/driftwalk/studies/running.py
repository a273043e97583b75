"""What every study does first: open the model, make its backends, say who and where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..adapter import Backend
from ..environment import environment, now, this_tool
from ..errors import UsageError
from ..graphs import is_graph
from ..registry import backend_class
from ..spec import Spec
from ..verification import as_backend

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel


@dataclass(frozen=True, eq=False)
class Opened:
    """A model and the backends that a study runs it on."""

    model: LoadedModel
    backends: tuple[Backend, ...]


@contextmanager
def opened(
    model: object,
    *specs: object,
    blocks: str | None = None,
    trust_remote_code: bool = False,
) -> Iterator[Opened]:
    """Load the model and make its backends; those made here are closed again."""
    from driftwalk_backends.sources import open_model

    if is_graph(model):
        raise UsageError(
            "A study needs a model that torch can run, for its tokenizer and its layers; "
            "name the model the graph was exported from."
        )
    for spec in specs:
        if isinstance(spec, str):
            backend_class(Spec.parse(spec).name)  # a typo is found before a model is loaded
    loaded = open_model(model, blocks=blocks, trust_remote_code=trust_remote_code)
    with ExitStack() as stack:
        made = []
        for spec in specs:
            backend = as_backend(spec, loaded)
            made.append(backend if backend is spec else stack.enter_context(backend))
        yield Opened(loaded, tuple(made))


def head(model: LoadedModel, backend: Backend, command: str = "") -> dict[str, Any]:
    """The fields of `Study`, as keywords of any study's class."""
    return {
        "tool": this_tool(),
        "created": now(),
        "command": command,
        "model": model.describe(),
        "backend": backend.info,
        "environment": environment(),
        "notes": tuple(model.notes),
    }
