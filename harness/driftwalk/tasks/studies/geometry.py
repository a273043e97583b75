"""Where a labelled set of sentences lies at each layer, and whether a backend keeps it there.

Sentences are run in batches and pooled as their states are made: what is kept is one vector per
sentence and point, whatever the model's size and the sentences' length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...adapter import Backend
from ...dtypes import Array
from ...environment import head
from ...errors import BackendError, ModelError, UsageError
from ...names import is_output
from ...progress import Progress
from ...stage import Setting, make_probe, open_sides
from ...states import Point, Probe, State
from . import clouds
from .contrast import declared_causal
from .inputs import Dataset, load_dataset
from .results import Agreement, Geometry, GeometryLayer, Spot

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
    clouds.check_projection(projection)
    if pooling is not None:
        clouds.check_name("pooling", pooling, clouds.POOLINGS)
    if batch < 1 or k < 1:
        raise UsageError("batch and k are whole numbers from 1.")
    data = dataset if isinstance(dataset, Dataset) else load_dataset(dataset)
    sides = (backend,) if candidate is None else (backend, candidate)
    show.expect(2 + len(sides))
    setting = Setting(model, blocks=blocks, trust_remote_code=trust_remote_code)
    with open_sides(setting, sides, show=show) as stage:
        loaded = stage.torch_model
        how = pooling or ("last" if declared_causal(loaded) else "mean")
        probes = _batches(loaded, data.texts, batch)
        made = []
        for side in stage.backends:
            with show.stage(f"{len(data.texts)} sentences on {side.spec}"):
                made.append(pooled(side, probes, how))
        near = min(k, len(data.texts) - 1)
        reference, other = made[0], made[1] if len(made) > 1 else None
        with show.stage("projecting"):
            layers = list(_layers(reference, other, data.labels, near, projection, seed))
        lacking = [name for name in reference if other is not None and name not in other]
        more = [f"The candidate has no {', '.join(lacking[:6])}."] if lacking else []
        infos = [side.info for side in stage.backends]
        return Geometry(
            **head(command, loaded.describe(), (*loaded.notes, *more)),
            backend=infos[0],
            dataset=data.name,
            texts=data.texts,
            labels=data.labels,
            pooling=how,
            projection=projection,
            k=near,
            candidate=infos[1] if other is not None else None,
            layers=tuple(layers),
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
    parts: dict[str, tuple[Point, list[Array]]] = {}
    for probe in probes:
        keep = probe.inputs["attention_mask"] != 0

        def take(state: State, keep: Array = keep) -> None:
            if _is_layer(state, keep):
                _, vectors = parts.setdefault(state.point.name, (state.point, []))
                vectors.append(clouds.pool(state.array, keep, how))

        backend.stream(probe, take)
    if not parts:
        raise BackendError(f"{backend.spec} has no point with one state per token to look at.")
    return {name: (point, np.concatenate(vectors)) for name, (point, vectors) in parts.items()}


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
) -> Iterable[GeometryLayer]:
    for name, (point, ours) in reference.items():
        if not np.isfinite(ours).all():
            raise BackendError(
                f"The backend itself gives NaN or Inf at {name}; nothing to compare."
            )
        theirs = candidate[name][1] if candidate is not None and name in candidate else None
        if theirs is not None and theirs.shape != ours.shape:
            raise BackendError(
                f"At {name} the backend has {ours.shape[1]} values per token, the candidate "
                f"{theirs.shape[1]}: they are not the same model."
            )
        broken = 0 if theirs is None else int((~np.isfinite(theirs)).any(axis=1).sum())
        whole = theirs if not broken else None
        drawn = clouds.project(projection, ours, whole, seed)
        layer = GeometryLayer(
            point,
            ours.shape[1],
            _spots(drawn.reference),
            drawn.explained,
            clouds.separation(ours, labels),
            broken=broken,
        )
        if whole is not None and drawn.candidate is not None:
            layer = replace(
                layer,
                candidate=_spots(drawn.candidate),
                candidate_separation=clouds.separation(whole, labels),
                agreement=Agreement(
                    clouds.knn_overlap(ours, whole, k),
                    clouds.linear_cka(ours, whole),
                    clouds.procrustes(ours, whole),
                    clouds.displacement(ours, whole),
                ),
            )
        yield layer


def _spots(points: Array) -> tuple[Spot, ...]:
    return tuple((float(x), float(y)) for x, y in points)
