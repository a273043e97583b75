"""Two dimensions out of many, for looking: PCA of our own, or UMAP where it is installed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...dtypes import Array
from ...errors import BackendUnavailable, UsageError

PROJECTIONS = ("pca", "umap")


@dataclass(frozen=True, eq=False)
class Projected:
    """Both clouds in the reference's plane."""

    reference: Array
    candidate: Array | None
    explained: tuple[float, float] | None
    """The part of the reference's variance that each axis shows; none of UMAP's does."""


def project(how: str, reference: Array, candidate: Array | None, seed: int = 0) -> Projected:
    """The plane is the reference's alone, so that what moved in it is the candidate."""
    if how == "pca":
        return _pca(reference, candidate)
    if how == "umap":
        return _umap(reference, candidate, seed)
    raise UsageError(f"Unknown projection {how!r}. Known: {', '.join(PROJECTIONS)}.")


def _pca(reference: Array, candidate: Array | None) -> Projected:
    centre = reference.mean(axis=0)
    _, sizes, axes = np.linalg.svd(reference - centre, full_matrices=False)
    plane = np.zeros((2, reference.shape[1]))
    plane[: len(axes[:2])] = axes[:2]
    # The sign of an axis is free: its largest part is made positive, so that a plane is one plane.
    largest = np.abs(plane).argmax(axis=1)
    plane *= np.where(plane[np.arange(2), largest] < 0, -1.0, 1.0)[:, None]
    power = np.zeros(2)
    power[: len(sizes[:2])] = np.square(sizes[:2])
    whole = float(np.square(sizes).sum()) or 1.0
    return Projected(
        (reference - centre) @ plane.T,
        None if candidate is None else (candidate - centre) @ plane.T,
        (float(power[0]) / whole, float(power[1]) / whole),
    )


def _umap(reference: Array, candidate: Array | None, seed: int) -> Projected:
    make = _umap_class()
    near = min(15, len(reference) - 1)
    fitted = make(n_neighbors=near, random_state=seed, n_jobs=1, init="pca").fit(reference)
    moved = None if candidate is None else np.asarray(fitted.transform(candidate), np.float64)
    return Projected(np.asarray(fitted.embedding_, np.float64), moved, None)


def check_projection(how: str) -> None:
    """Refuse, before anything runs, what cannot work here."""
    if how not in PROJECTIONS:
        raise UsageError(f"Unknown projection {how!r}. Known: {', '.join(PROJECTIONS)}.")
    if how == "umap":
        _umap_class()


def _umap_class() -> type:
    try:
        from umap import UMAP
    except ImportError as error:
        raise BackendUnavailable(
            f"UMAP is not installed here ({error}): pip install 'driftwalk[umap]', "
            "or leave --projection out for PCA, which needs nothing."
        ) from None
    found: type = UMAP
    return found
