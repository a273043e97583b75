"""What every study does first: open the model, make its backends, say who and where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...adapter import Backend
from ...environment import environment, now, this_tool
from ...errors import UsageError
from ...stage import check_names, is_graph, open_backend, torch_model

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
    if is_graph(model):
        raise UsageError(
            "A study needs a model that torch can run, for its tokenizer and its layers; "
            "name the model the graph was exported from."
        )
    check_names(specs)
    loaded = torch_model(model, blocks=blocks, trust_remote_code=trust_remote_code)
    with ExitStack() as stack:
        yield Opened(loaded, tuple(open_backend(spec, loaded, stack) for spec in specs))


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
