"""A set of probes by its name, made for one model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from driftwalk.dtypes import Array
from driftwalk.errors import ProbeError, UsageError, nearest
from driftwalk.states import Probe

from ..calls import first_line, forward_of
from ..default_probe.search import default_inputs
from ..loaded import LoadedModel
from ..onnx.pairs.model import OnnxModel
from ..probes import BATCH, LENGTH, from_texts, make_probe, max_positions, try_run
from .edges import IDS, LONGEST, TextEdges
from .graphs import GraphEdges
from .suggest import suggest
from .texts import long_text, texts
from .values import value_edges

TEXT, EDGE, SUGGEST = NAMES = ("builtin:text", "builtin:edge", "suggest")
MOST_TOKENS = 128
"""Of a text; a script that a tokenizer does not know takes a token for each byte."""
MOST_OF_LONG = 512


@dataclass(frozen=True)
class ModelSet:
    """Probes that were made for a model, each with its name, and what is to be said of them."""

    probes: tuple[tuple[str, Probe], ...]
    notes: tuple[str, ...] = ()


def builtin(model: LoadedModel | OnnxModel, name: str, seed: int = 0) -> ModelSet:
    """A set by its name; of the edges, those that the model takes."""
    if isinstance(model, OnnxModel):
        return _of_graph(model, name, seed)
    if name == TEXT:
        return ModelSet(tuple(_texts(model)))
    if name == EDGE:
        return edge_set(model, seed)
    if name == SUGGEST:
        made = suggest(model, seed)
        return ModelSet(made.probes, made.notes)
    raise UsageError(f"There is no set of probes {name!r}. {nearest(name, NAMES)}")


def _of_graph(model: OnnxModel, name: str, seed: int) -> ModelSet:
    if name != EDGE:
        known = nearest(name, NAMES) if name not in NAMES else ""
        raise UsageError(f"--probes {name} is not for a graph, which has {EDGE}. {known}".strip())
    edges = GraphEdges(model, seed)
    return ModelSet(tuple(edges.probes(EDGE)), tuple(edges.notes))


def _texts(model: LoadedModel) -> Iterator[tuple[str, Probe]]:
    """Each text with its beginning as a second row, so that there is padding."""
    if IDS not in forward_of(model.module).names:
        raise ProbeError(f"{model.label} takes no texts; {EDGE} is for any model.")
    most = min(max_positions(model, IDS) or LONGEST, LONGEST)
    for name, text in texts().items():
        beginning = text[: max(1, len(text) // 3)].strip() or text
        yield name, _cut(model, [text, beginning], min(most, MOST_TOKENS), name)
    yield "long text", _cut(model, [long_text() * 8], min(most, MOST_OF_LONG), "long text")


def _cut(model: LoadedModel, texts: list[str], most: int, name: str) -> Probe:
    """The probe of some texts, with no more tokens than wanted: the first of each row."""
    made = from_texts(model, texts)
    left = getattr(model.tokenizer, "padding_side", "right") == "left"
    inputs: dict[str, Array] = {}
    for key, array in made.inputs.items():
        inputs[key] = array[:, -most:] if left else array[:, :most]
    tokens = tuple(row[-most:] if left else row[:most] for row in made.tokens)
    cut = replace(made, inputs=inputs, tokens=tokens, origin=f"{TEXT} ({name})")
    return make_probe(model, cut)


def edge_set(model: LoadedModel, seed: int = 0) -> ModelSet:
    """The edges of whatever a model takes: texts, pixels, sound, floats of any kind."""
    base = default_inputs(model, BATCH, LENGTH, seed)
    notes: list[str] = []
    found: list[tuple[str, dict[str, Array]]] = []
    if IDS in base and base[IDS].ndim == 2:
        edges = TextEdges(model, base, seed)
        found += edges.all()
        notes += edges.notes
    else:
        found.append(("usual", base))
    found += value_edges(base, model.config)
    return ModelSet(tuple(taken(model, found, EDGE, notes)), tuple(notes))


def taken(
    model: LoadedModel,
    found: Iterable[tuple[str, dict[str, Array]]],
    origin: str,
    notes: list[str],
) -> Iterator[tuple[str, Probe]]:
    """Those that the model itself runs with; of any other a note says so."""
    seen: set[str] = set()
    for name, inputs in found:
        try:
            probe = make_probe(model, Probe(inputs, f"{origin} ({name})"))
            if probe.sha256 in seen:
                continue
            try_run(model, probe)
        except Exception as error:  # whatever the model raises
            notes.append(
                f"{origin} without {name!r}, which the model does not take: {first_line(error)}"
            )
            continue
        seen.add(probe.sha256)
        yield name, probe
