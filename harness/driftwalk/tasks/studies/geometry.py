"""Where a labelled set of sentences lies at each layer, and whether a backend keeps it there.

Sentences are run in batches and pooled as their states are made: what is kept is one vector per
sentence and point, whatever the model's size and the sentences' length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...adapter import Backend
from ...dtypes import Array
from ...errors import BackendError, ModelError, UsageError
from ...names import is_output
from ...progress import Progress
from ...stage import make_probe
from ...states import Point, Probe, State
from . import similarity
from .causality import declared
from .datasets import Dataset, load_dataset
from .geometry_result import Agreement, Geometry, GeometryLayer, Spot
from .pooling import check_pooling, pool
from .projections import check_projection, project
from .running import head, opened

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel

BATCH, NEIGHBOURS = 16, 10

Cloud = dict[str, tuple[Point, Array]]


def geometry(
    model: object,
    dataset: str | Path | Dataset = "cities",
    *,
    backend: object = "torch",
    candidate: object = None,
    pooling: str | None = None,
    projection: str = "pca",
    k: int = NEIGHBOURS,
    batch: int = BATCH,
    seed: int = 0,
    blocks: str | None = None,
    trust_remote_code: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> Geometry:
    """The sentences of a dataset at every layer, in two dimensions; with a candidate, both clouds.

    No pooling means the last token of a causal model, and the mean over tokens of any other.
    """
    show = progress or Progress()
    check_projection(projection)
    if pooling is not None:
        check_pooling(pooling)
    if batch < 1 or k < 1:
        raise UsageError("batch and k are whole numbers from 1.")
    data = dataset if isinstance(dataset, Dataset) else load_dataset(dataset)
    sides = (backend,) if candidate is None else (backend, candidate)
    show.expect(1 + len(sides))
    with opened(model, *sides, blocks=blocks, trust_remote_code=trust_remote_code) as stage:
        how = pooling or ("last" if declared(stage.model) else "mean")
        probes = _batches(stage.model, data.texts, batch)
        clouds = []
        for side in stage.backends:
            with show.stage(f"{len(data.texts)} sentences on {side.spec}"):
                clouds.append(pooled(side, probes, how))
        near = min(k, len(data.texts) - 1)
        with show.stage("projecting"):
            other = clouds[1] if candidate is not None else None
            layers = _layers(clouds[0], other, data.labels, near, projection, seed)
        top = head(stage.model, stage.backends[0], command)
        top["notes"] = (*top["notes"], *_notes(clouds))
        return Geometry(
            **top,
            dataset=data.name,
            texts=data.texts,
            labels=data.labels,
            pooling=how,
            projection=projection,
            k=near,
            candidate=stage.backends[1].info if candidate is not None else None,
            layers=layers,
        )


def _batches(model: LoadedModel, texts: Sequence[str], batch: int) -> list[Probe]:

    try:
        _ = model.tokenizer
    except ModelError as error:
        raise UsageError(f"Geometry is about sentences, and needs a tokenizer: {error}") from None
    groups = [list(texts[i : i + batch]) for i in range(0, len(texts), batch)]
    return [make_probe(model, group) for group in groups]


def pooled(backend: Backend, probes: Sequence[Probe], how: str) -> Cloud:
    """One vector per sentence at every point that has one state per token."""
    found: dict[str, tuple[Point, list[Array]]] = {}
    for probe in probes:
        keep = probe.inputs["attention_mask"] != 0

        def take(state: State, keep: Array = keep) -> None:
            if _is_layer(state, keep):
                name = state.point.name
                found.setdefault(name, (state.point, []))[1].append(pool(state.array, keep, how))

        backend.stream(probe, take)
    whole = {name: (point, parts) for name, (point, parts) in found.items()}
    if not whole:
        raise BackendError(f"{backend.spec} has no point with one state per token to look at.")
    return {name: (point, np.concatenate(parts)) for name, (point, parts) in whole.items()}


def _is_layer(state: State, keep: Array) -> bool:
    """Hidden states only; a decoder that reads an encoder has no mask of its own, and no last
    token that means the sentence."""
    name = state.point.name
    fits = len(state.shape) == 3 and state.shape[:2] == keep.shape
    return fits and not is_output(name) and not name.startswith("decoder.")


def _layers(
    reference: Cloud,
    candidate: Cloud | None,
    labels: Sequence[str],
    k: int,
    projection: str,
    seed: int,
) -> tuple[GeometryLayer, ...]:
    layers = []
    for name, (point, ours) in reference.items():
        if not np.isfinite(ours).all():
            raise BackendError(
                f"The backend itself gives NaN or Inf at {name}; nothing to compare."
            )
        theirs = _partner(candidate, name, ours)
        bad = 0 if theirs is None else int((~np.isfinite(theirs)).any(axis=1).sum())
        whole = theirs if not bad else None
        drawn = project(projection, ours, whole, seed)
        layers.append(
            GeometryLayer(
                point,
                ours.shape[1],
                _spots(drawn.reference),
                drawn.explained,
                similarity.separation(ours, labels),
                None if drawn.candidate is None else _spots(drawn.candidate),
                None if whole is None else similarity.separation(whole, labels),
                None if whole is None else agreement(ours, whole, k),
                bad,
            )
        )
    return tuple(layers)


def _partner(candidate: Cloud | None, name: str, ours: Array) -> Array | None:
    if candidate is None or name not in candidate:
        return None
    theirs = candidate[name][1]
    if theirs.shape != ours.shape:
        raise BackendError(
            f"At {name} the backend has {ours.shape[1]} values per token, the candidate "
            f"{theirs.shape[1]}: they are not the same model."
        )
    return theirs


def agreement(one: Array, other: Array, k: int) -> Agreement:
    """All numbers that hold two clouds of the same sentences against each other."""
    return Agreement(
        similarity.knn_overlap(one, other, k),
        similarity.linear_cka(one, other),
        similarity.procrustes(one, other),
        similarity.displacement(one, other),
    )


def _spots(points: Array) -> tuple[Spot, ...]:
    return tuple((float(x), float(y)) for x, y in points)


def _notes(clouds: Sequence[Mapping[str, object]]) -> list[str]:
    if len(clouds) < 2:
        return []
    lacking = [name for name in clouds[0] if name not in clouds[1]]
    return [f"The candidate has no {', '.join(lacking[:6])}."] if lacking else []
