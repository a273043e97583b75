"""The `llamacpp` backend: a GGUF file run by llama.cpp.

Each row of a probe is a sequence of its own, without padding: what stands at padded positions is
zero. Keys and values are kept in float32 unless `kv=fp16` says otherwise, which is what llama.cpp
does by itself. Inputs of products are rounded as the file's types ask for (products.py): the model
that it is judged by rounds them, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import torch

from driftwalk.adapter import Backend, BackendInfo, Offer, Sink
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from driftwalk.files import sha256_of
from driftwalk.names import LOGITS, layer_of
from driftwalk.spec import THREADS_HELP, Spec
from driftwalk.states import Point, Probe, State
from driftwalk.weight_source import WeightSource

from ..depth import Looks
from ..fingerprint import versions
from ..loaded import LoadedModel
from ..onnx.export import layout_of
from ..sources import torch_model
from .attention import KeptInHalf
from .declared import declared_by_file, weights_in
from .header import read_header
from .library import INSTALL, KEPT, Llama, Seen, leaves_out_amx, sums_in_half, system, why_not
from .naming import at_depth, naming_of
from .products import input_for
from .source import check_sizes, file_of

_TAKES = ("input_ids", "attention_mask", "position_ids")


class LlamaCpp(Looks, Backend):
    """A file as it is; of the torch model, its points are asked, and what it should compute."""

    name: ClassVar[str] = "llamacpp"
    options: ClassVar[Mapping[str, str]] = {
        "threads": THREADS_HELP,
        "kv": "fp32 (default) or fp16: the type in which keys and values are kept",
        "attn": "plain (default) or flash: llama.cpp's flash attention",
    }

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec)
        if spec.dtype or spec.device:
            raise UsageError(f"{spec}: llama.cpp computes as the file says; name the file alone.")
        self._model = torch_model(model)
        self._threads = spec.count("threads") or torch.get_num_threads()
        self._keeps = spec.choice("kv", tuple(KEPT), "fp32")
        self._flash = spec.choice("attn", ("plain", "flash"), "plain") == "flash"
        if why := why_not():
            raise BackendUnavailable(f"Backend 'llamacpp' is not usable here: {why} {INSTALL}")
        self._header = read_header(file_of(spec, self._model))
        check_sizes(self._header)
        naming = naming_of(self._header)
        if naming is None:
            raise BackendError(
                f"{self._header.path.name} holds a {self._header.architecture!r}, whose states in "
                "llama.cpp have names that are not known here; llama, qwen2 and qwen3 are."
            )
        self._naming = naming
        self._llama: Llama | None = None

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        if why := why_not():
            return [Offer("llamacpp", False, f"{why} {INSTALL}")]
        here = versions("llama-cpp-python").get("llama-cpp-python", "of unknown version")
        return [Offer("llamacpp", True, f"llama-cpp-python {here}, {system()}")]

    @property
    def info(self) -> BackendInfo:
        types = sorted({one.type.name for one in self._header.tensors.values()})
        flags = {
            "file": self._header.path.name,
            "sha256": self._sha256,
            "types": ", ".join(types),
            "kv": self._keeps,
            "attention": "flash, keys and values in fp16" if self._flash else "plain",
            "threads": str(self._threads),
            "cpu": system(),
        }
        if "F16" in types and sums_in_half():
            flags["F16 products"] = "summed in half precision on this CPU"
        if leaves_out_amx():
            flags["AMX"] = "left out, and with it weights that are packed anew"
        return BackendInfo(
            spec=str(self.spec),
            name=self.name,
            device="cpu",
            dtype="fp32",
            versions=versions("llama-cpp-python", "gguf", "torch", "transformers"),
            flags=flags,
        )

    @property
    def _sha256(self) -> str:
        if not hasattr(self, "_digest"):
            self._digest = sha256_of(self._header.path)
        return self._digest

    def honest_model(self) -> LoadedModel | None:
        """For a file that is not in float32: the model with its weights, inputs rounded alike."""
        rounds = partial(input_for, half_sums=sums_in_half())
        # Flash attention casts whatever is kept.
        kept = KeptInHalf(sums_in_half(), self._flash)
        halves = self._flash or self._keeps == "fp16"
        given = self._model, self._header, self._naming, rounds
        return declared_by_file(*given, kept if halves else None)

    def other_weights(self, model: object, probe: Probe) -> WeightSource | None:
        """The file's own, unless they are quantised or the model's by construction."""
        own = self._model.gguf
        if own is not None and own.samefile(self._header.path):
            return None
        return weights_in(self._model, self._header, self._naming)

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        ids, places, keep = _rows(probe)
        llama = self._opened()
        if int(ids.max(initial=0)) >= llama.vocabulary or int(ids.min(initial=0)) < 0:
            raise BackendError(
                f"{self._header.path.name} has {llama.vocabulary} tokens, and the probe has token "
                f"{int(ids.max())}."
            )
        rows = [(ids[i][keep[i]].tolist(), places[i][keep[i]].tolist()) for i in range(len(ids))]
        depth, layer = self._look.depth, self._look.layer
        inside = depth if sink is not None else "block"

        def wants(name: str, operation: str) -> bool:
            return bool(self._points(name, operation, inside, layer))

        found = llama.run(rows, wants if sink is not None else None)
        logits = _joined([made for made, _ in found], keep)
        if sink is not None:
            self._hand_on(probe, [seen for _, seen in found], keep, logits, sink)
        return {LOGITS: logits}

    def _points(self, name: str, operation: str, depth: str, layer: str) -> list[str]:
        """The points that a tensor is, of those that are looked at; logits come by themselves."""
        point = self._naming.point(name, operation)
        if not point or point == LOGITS:
            return []
        found = at_depth(point, depth)
        if point.endswith(":in") and not layer:
            found = []  # inputs are looked at in one layer alone
        return [one for one in found if _is_asked(one, layer)]

    def _hand_on(
        self,
        probe: Probe,
        rows: list[list[Seen]],
        keep: Array,
        logits: Array,
        sink: Sink,
    ) -> None:
        """Each state once, the rows put together; of tensors of one name the last one counts."""
        layout = layout_of(self._model, self._model.on_host(), probe, self.spec)
        modules = {point.name: point for point in layout.points}
        paths = {p.name: p.module for stack in layout.stacks for p in stack.layers}
        made: dict[str, list[Array]] = {}
        for number, seen in enumerate(rows):
            for one in seen:
                point = self._naming.point(one.name, one.operation)
                array = one.array.reshape(int(keep[number].sum()), -1)
                if (arranged := self._naming.arranged(point)) is not None:
                    array = arranged(array)
                made.setdefault(point, [])[number:] = [array]
        for point, arrays in made.items():
            if len(arrays) != len(rows):
                continue
            state = np.ascontiguousarray(_joined(arrays, keep))
            for name in at_depth(point, self._look.depth):
                if _is_asked(name, self._look.layer):
                    sink(State(modules.get(name) or _inside(name, paths), state))
        sink(State(modules.get(LOGITS) or Point(LOGITS), logits))

    def _opened(self) -> Llama:
        if self._llama is None:
            start = time.perf_counter()
            path, threads = self._header.path, self._threads
            self._llama = Llama(path, threads, self._keeps, self._flash)
            self._seconds["load"] = time.perf_counter() - start
        return self._llama

    def _close(self) -> None:
        if self._llama is not None:
            self._llama.close()
            self._llama = None


def _rows(probe: Probe) -> tuple[Array, Array, Array]:
    """Tokens, their positions, and which of them are no padding."""
    if "input_ids" not in probe.inputs or set(probe.inputs) - set(_TAKES) or probe.others:
        names = ", ".join([*probe.inputs, *probe.others])
        raise BackendError(f"llama.cpp is fed tokens, input_ids; the probe has {names}.")
    ids = np.asarray(probe.inputs["input_ids"])
    keep = np.asarray(probe.inputs.get("attention_mask", np.ones_like(ids)))
    if ids.ndim != 2 or keep.shape != ids.shape or not (keep != 0).any(1).all():
        raise BackendError("llama.cpp is fed rows of tokens, each with one at least.")
    places = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    given = probe.inputs.get("position_ids")
    return ids, places if given is None else np.broadcast_to(given, ids.shape), keep != 0


def _joined(rows: list[Array], keep: Array) -> Array:
    """Rows of tokens at their places, zero where there is padding."""
    made = np.zeros((*keep.shape, rows[0].shape[-1]), np.float32)
    for row, kept, array in zip(made, keep, rows, strict=True):
        row[kept] = array
    return made


def _is_asked(name: str, layer: str) -> bool:
    """Whether a point is one of those looked at: of one layer's inside, or of all."""
    return not layer or layer_of(name) in (None, layer) or layer_of(name) == name


def _inside(name: str, blocks: Mapping[str, str]) -> Point:
    """A point inside a block, with the path of its module."""
    layer = layer_of(name) or name
    path = name.removeprefix(f"{layer}.").removesuffix(":in")
    return Point(name, f"{blocks.get(layer, layer)}.{path}")
