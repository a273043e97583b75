"""Graphs that others made to decode with: which files they are, and how they are fed.

What a graph is, its inputs and outputs say: one that takes a past goes on, one that takes none and
gives what is present begins; one that takes a past of any length, or has optimum's flag, does both.
Beside a decoder there may be an encoder, whose output it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError

from .backend import Sessions
from .decoder_export import ENCODED
from .graph import OnnxGraph
from .past import Kept, kept_among
from .reading import CACHE_FLAG, read_graph
from .stepping import StepGraph, step_graph

_ENCODER = "encoder_model.onnx"
_BEGINS = {"decoder_with_past_model.onnx": "decoder_model.onnx", "decode.onnx": "prefill.onnx"}
"""What optimum and transformers call a graph that goes on, and the one that begins."""
_LAST = "encoder_last_hidden_state"


@dataclass(frozen=True, eq=False)
class DecoderFiles:
    """The graphs to begin and to go on with, which may be one; and the encoder's, if any."""

    first: OnnxGraph
    after: OnnxGraph
    encoder: OnnxGraph | None = None

    @property
    def shows_states(self) -> bool:
        """Whether a state that is found in the first graph is there in all steps, too."""
        merged = CACHE_FLAG in _inputs(self.after)
        return self.first is self.after and self.encoder is None and not merged

    @property
    def graphs(self) -> tuple[OnnxGraph, ...]:
        encoder = () if self.encoder is None else (self.encoder,)
        return (*encoder, *dict.fromkeys((self.first, self.after)))

    @property
    def label(self) -> str:
        return ", ".join(graph.path.name for graph in self.graphs)

    def check(self, kept: Mapping[Kept, torch.Tensor], model: str) -> None:
        """An error where the graph keeps something else than the model: it is of another one."""
        taken = {value.name: value for value in self.after.inputs}
        named = kept_among(taken)
        ours, theirs = ({one.layer for one in side if not one.cross} for side in (kept, named))
        if len(ours) != len(theirs):
            raise BackendError(
                f"{self.after.path.name} keeps {len(theirs)} layers, and {model} {len(ours)}: "
                "it is a graph of another model."
            )
        for held, tensor in kept.items():
            shape = taken[named[held]].shape if held in named else ()
            pairs = zip(shape, tensor.shape, strict=False)
            fits = len(shape) == tensor.ndim and all(
                size == own
                for axis, (size, own) in enumerate(pairs)
                if axis in (1, 3) and isinstance(size, int)
            )
            if not fits:
                found = f"{list(shape)}" if shape else "nothing"
                raise BackendError(
                    f"{self.after.path.name} keeps {found} as {held.past!r}, and {model} "
                    f"{list(tensor.shape)}: it is a graph of another model."
                )


def open_decoder(path: Path) -> DecoderFiles:
    """The graphs of a file, or of a folder as optimum or `transformers.exporters` write it."""
    files = sorted(path.glob("*.onnx")) if path.is_dir() else [path]
    graphs = [read_graph(file) for file in files]
    encoder = next((graph for graph in graphs if graph.path.name == _ENCODER), None)
    going = [graph for graph in graphs if kept_among(_inputs(graph))]
    going.sort(key=lambda graph: CACHE_FLAG not in _inputs(graph))
    if not going:
        names = ", ".join(file.name for file in files) or "no file at all"
        raise BackendError(
            f"{str(path)!r} cannot be decoded step by step: {names} takes no past, such as "
            "'past_key_values.0.key'. Export it with one (optimum-cli export onnx --task "
            "text-generation-with-past)."
        )
    after = going[0]
    beside = graphs if path.is_dir() else _beside(path)
    begins = [
        graph
        for graph in beside
        if not kept_among(_inputs(graph)) and kept_among(v.name for v in graph.outputs)
    ]
    both = CACHE_FLAG in _inputs(after) or not begins
    if encoder is None and not path.is_dir() and (path.parent / _ENCODER).is_file():
        encoder = read_graph(path.parent / _ENCODER)
    return DecoderFiles(after if both else begins[0], after, encoder)


def _beside(path: Path) -> list[OnnxGraph]:
    """The graph that begins what a file goes on with, by the names that exporters give the two."""
    if path.name not in _BEGINS:
        return []
    other = path.with_name(_BEGINS[path.name])
    return [read_graph(other)] if other.is_file() else []


def _inputs(graph: OnnxGraph) -> list[str]:
    return [value.name for value in graph.inputs]


def stepped(files: DecoderFiles, first: Any, after: Any, sessions: Sessions) -> list[StepGraph]:
    """The graphs of two sessions as they are fed; behind an encoder, fed what it gives."""
    graphs = [step_graph(one, sessions, files.label) for one in (first, after)]
    if files.encoder is None:
        return graphs
    encoder = step_graph(sessions.of(files.encoder.path), sessions, files.label)
    return [_behind(encoder, graph) for graph in graphs]


def _behind(encoder: StepGraph, decoder: StepGraph) -> StepGraph:
    """A decoder with its encoder: it takes what the model takes, and encodes where nobody has."""

    def ask(feed: Mapping[str, Array]) -> dict[str, Array]:
        own = {n.removeprefix("decoder_"): a for n, a in feed.items() if n.startswith("decoder_")}
        own |= {n: a for n, a in feed.items() if n not in own and n != "attention_mask"}
        encoded = feed[ENCODED] if ENCODED in feed else _encoded(encoder, feed)
        mask = feed.get("attention_mask", np.ones(encoded.shape[:2], np.int64))
        own |= {ENCODED: encoded, "encoder_attention_mask": mask}
        return {_LAST: encoded, **decoder.ask(own)}

    return StepGraph(decoder.label, ask, decoder.inputs, (_LAST, *decoder.outputs))


def _encoded(encoder: StepGraph, feed: Mapping[str, Array]) -> Array:
    own = {n: a for n, a in feed.items() if n in encoder.inputs}
    if "attention_mask" in encoder.inputs and "input_ids" in own:
        own.setdefault("attention_mask", np.ones_like(own["input_ids"]))
    return next(iter(encoder.ask(own).values()))
