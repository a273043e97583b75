"""`exporter=transformers`: graphs made by `transformers.exporters.OnnxExporter`.

It is given the model with its states as further outputs, so that its patches, its translations and
its fixes apply to them as to everything else. Of some models it computes inputs beforehand that
cannot be traced (positions of image patches); the graph then takes these, too, and they are
computed by the same functions for every probe.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from driftwalk.dtypes import Array
from driftwalk.errors import BackendUnavailable

from ..calls import Inputs, first_line, own_copies
from ..tensors import to_numpy
from .exporters import Exporter
from .exposed import Exposed

_LOGGER = "transformers"


class TransformersExporter(Exporter):
    """The model as it is, its way of running experts included, with `OnnxConfig`'s options."""

    label = "transformers OnnxExporter"
    for_export = False

    def __init__(self, dynamic: bool = False, opset: int | None = None) -> None:
        self.one_for_all = dynamic
        self._opset = opset

    @property
    def key(self) -> tuple[str, ...]:
        return self.label, str(self.one_for_all), str(self._opset)

    @property
    def notes(self) -> tuple[str, ...]:
        return self._made[1]

    @cached_property
    def _made(self) -> tuple[Any, tuple[str, ...]]:
        """The exporter, and what it says of the versions that it finds."""
        try:
            with _heard() as said:
                exporter = self._opened()
            return exporter, tuple(dict.fromkeys(said))
        except ImportError as error:
            raise BackendUnavailable(f"exporter=transformers: {first_line(error)}") from error

    def _opened(self) -> Any:
        from transformers.exporters.exporter_onnx import OnnxExporter

        return OnnxExporter()

    def program(self, exposed: Exposed, outputs: Sequence[str]) -> Any:
        from transformers.exporters.configs import OnnxConfig

        called = exposed.called
        words = words_for(called.tensors)
        axes = {words[name]: {axis: Dim.DYNAMIC} for name, axis in called.open_axes.items()}
        config = OnnxConfig(
            dynamic=self.one_for_all,
            dynamic_shapes={word: axes.get(word) for word in words.values()} if axes else None,
            opset_version=self._opset,
        )
        sample = {words[name]: tensor for name, tensor in own_copies(called.tensors).items()}
        names = {word: name for name, word in words.items()}
        exposed.by_name, exposed.names = tuple(outputs), names
        with as_the_model(exposed):
            program = self._made[0].export(exposed, sample, config)
        for value in program.model.graph.inputs:
            value.name = names.get(value.name, value.name)
        return program

    def added(self, module: nn.Module, inputs: Inputs, names: Sequence[str]) -> dict[str, Array]:
        from transformers.exporters.utils import get_leaf_tensors, prepare_for_export

        if not names:
            return {}
        with torch.no_grad():
            _, prepared, _ = prepare_for_export(module, own_copies(inputs))
        tensors = get_leaf_tensors(prepared)
        return {name: to_numpy(tensors[name]) for name in names if name in tensors}


def words_for(names: Iterable[str]) -> dict[str, str]:
    """What inputs are called there: parameters of a function, which cannot be `past.0.key`."""
    return {n: n if n.isidentifier() else f"input_{i}" for i, n in enumerate(names)}


@contextmanager
def as_the_model(exposed: Exposed) -> Iterator[None]:
    """It asks the model for its config and its methods, and its class for the file it is from."""
    own, inner = type(exposed), exposed.module

    def of_the_model(self: nn.Module, name: str) -> Any:
        try:
            return nn.Module.__getattr__(self, name)
        except AttributeError:
            return getattr(inner, name)

    known = {"__module__": type(inner).__module__, "__getattr__": of_the_model}
    exposed.__class__ = type(type(inner).__name__, (own,), known)
    try:
        yield
    finally:
        exposed.__class__ = own
        exposed.by_name, exposed.names = (), {}


@contextmanager
def _heard() -> Iterator[list[str]]:
    """What transformers warns about meanwhile, in place of its being printed."""
    said: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(" ".join(record.getMessage().split()))

    logger, disabled = logging.getLogger(_LOGGER), logging.root.manager.disable
    handler, level, handlers = Listening(logging.WARNING), logger.level, logger.handlers
    passes_on = logger.propagate
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.WARNING)
    logging.disable(logging.NOTSET)
    try:
        yield said
    finally:
        logger.handlers, logger.propagate = handlers, passes_on
        logger.setLevel(level)
        logging.disable(disabled)
