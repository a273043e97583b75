"""The graphs of one model: a single file, or an encoder's and a decoder's side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from driftwalk.dtypes import Array
from driftwalk.errors import UsageError
from driftwalk.states import Point, Probe

from .graph import OnnxGraph
from .reading import read_graph
from .scopes import Scopes, scopes_of
from .structure import COPIES, cuts, repeated

_SINGLE = "model.onnx"
_ENCODER = "encoder_model.onnx"
_DECODERS = ("decoder_model.onnx", "decoder_model_merged.onnx")


@dataclass(frozen=True)
class Part:
    """One graph and the half of the model it is: `encoder`, `decoder`, or empty for the whole."""

    graph: OnnxGraph
    role: str = ""

    @cached_property
    def scopes(self) -> tuple[Scopes, ...]:
        return scopes_of(self.graph)

    def serves(self, point: str) -> bool:
        return not self.role or (self.role == "encoder") == point.startswith("encoder.")

    def takes(self, probe: Probe, handed_on: Mapping[str, Array]) -> dict[str, Array]:
        """What this graph is given: the probe, under the names that a half of a model has."""
        if not self.role:
            return dict(probe.inputs)
        mine = {n: a for n, a in probe.inputs.items() if n.startswith("decoder_")}
        others = {n: a for n, a in probe.inputs.items() if n not in mine}
        if self.role == "encoder":
            return others
        known = {value.name for value in self.graph.inputs}
        given = {name.removeprefix("decoder_"): array for name, array in mine.items()}
        given |= {f"encoder_{n}": a for n, a in others.items() if f"encoder_{n}" in known}
        return given | {n: a for n, a in handed_on.items() if n in known}


class Parts:
    """All graphs of a model; a tensor has the number of its graph before its name."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.all = tuple(parts)

    @property
    def label(self) -> str:
        return ", ".join(part.graph.path.name for part in self.all)

    def key(self, part: Part, tensor: str) -> str:
        return f"{self.all.index(part)}:{tensor}"

    def split(self, key: str) -> tuple[Part, str]:
        number, _, tensor = key.partition(":")
        return self.all[int(number)], tensor

    def of(self, point: str) -> Part:
        return next(part for part in self.all if part.serves(point))

    @cached_property
    def floats(self) -> tuple[str, ...]:
        return tuple(self.key(part, name) for part in self.all for name in part.graph.floats)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.key(part, v.name) for part in self.all for v in part.graph.outputs)

    def depends(self, later: str, earlier: str) -> bool:
        (here, a), (there, b) = self.split(later), self.split(earlier)
        return here is there and here.graph.depends(a, b)

    def root(self, key: str) -> str:
        """The tensor that another is only a copy, a cast or a reshape of."""
        part, name = self.split(key)
        made = part.graph.producers
        while name in made and part.graph.nodes[made[name]].op in COPIES:
            node = part.graph.nodes[made[name]]
            if not node.inputs or node.inputs[0] not in made:
                break
            name = node.inputs[0]
        return self.key(part, name)

    def cuts(self, point: str, after: str | None) -> tuple[str, ...]:
        """The narrow places of a point's graph, from a tensor on."""
        part = self.of(point)
        start = self.split(after)[1] if after is not None else None
        return tuple(self.key(part, name) for name in cuts(part.graph, start))

    def repeated(self, after: str, times: int) -> tuple[str, ...]:
        """The ends of so many equal blocks behind a tensor, or none."""
        part, start = self.split(after)
        return tuple(self.key(part, name) for name in repeated(part.graph, start, times))

    def scoped(self, point: Point) -> tuple[tuple[str, ...], str]:
        """The tensors that a graph's scopes say may be this point's state, and which way it was."""
        part = self.of(point.name)
        for scopes in part.scopes:
            if names := scopes.leaving(point):
                return tuple(self.key(part, name) for name in names), scopes.way
        return (), ""


def open_parts(path: Path) -> Parts:
    """The graphs at a path: a file, or a folder as optimum writes it."""
    if path.is_dir():
        return Parts(_in_folder(path))
    return Parts([Part(read_graph(path))])


def _in_folder(folder: Path) -> list[Part]:
    decoder = next((folder / name for name in _DECODERS if (folder / name).is_file()), None)
    if (folder / _ENCODER).is_file() and decoder is not None:
        encoder = Part(read_graph(folder / _ENCODER), "encoder")
        return [encoder, Part(read_graph(decoder), "decoder")]
    if (folder / _SINGLE).is_file():
        return [Part(read_graph(folder / _SINGLE))]
    found = sorted(file.name for file in folder.glob("*.onnx"))
    if len(found) != 1:
        has = f"It has {', '.join(found[:8])}." if found else "It has no .onnx file at all."
        raise UsageError(
            f"Folder {str(folder)!r} has neither {_SINGLE} nor {_ENCODER} with {_DECODERS[0]}. "
            f"{has} Name the file: file=PATH."
        )
    return [Part(read_graph(folder / found[0]))]
