"""driftwalk: run one model on two backends, find the first layer that diverges.

Importing this package imports no framework; names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .adapter import Backend as Backend
    from .adapter import BackendInfo as BackendInfo
    from .api import record as record
    from .api import verify as verify
    from .api import verify_all as verify_all
    from .comparison import compare as compare
    from .document import load as load
    from .errors import DriftwalkError as DriftwalkError
    from .layer_drift import LayerDrift as LayerDrift
    from .result import Report as Report
    from .signatures.data import Signature as Signature
    from .states import Point as Point
    from .states import Probe as Probe
    from .states import State as State
    from .states import Trace as Trace
    from .tasks.bisect.run import bisect as bisect
    from .tasks.bundles.extraction import extract as extract
    from .tasks.generation.run import generate as generate
    from .tasks.hardware import hwcheck as hwcheck
    from .tasks.reduce.run import reduce as reduce
    from .tasks.repair.run import repair as repair
    from .tasks.studies.contrast import contrast as contrast
    from .tasks.studies.geometry import geometry as geometry
    from .tasks.studies.visibility import visibility as visibility
    from .tasks.weights.run import weights as weights
    from .tolerance import Tolerance as Tolerance
    from .verification import backend as backend

_NAMES = {
    "adapter": ("Backend", "BackendInfo"),
    "api": ("record", "verify", "verify_all"),
    "comparison": ("compare",),
    "document": ("load",),
    "errors": ("DriftwalkError",),
    "layer_drift": ("LayerDrift",),
    "result": ("Report",),
    "signatures.data": ("Signature",),
    "states": ("Point", "Probe", "State", "Trace"),
    "tasks.bisect.run": ("bisect",),
    "tasks.bundles.extraction": ("extract",),
    "tasks.hardware": ("hwcheck",),
    "tasks.studies.contrast": ("contrast",),
    "tasks.studies.geometry": ("geometry",),
    "tasks.studies.visibility": ("visibility",),
    "tasks.generation.run": ("generate",),
    "tasks.reduce.run": ("reduce",),
    "tasks.repair.run": ("repair",),
    "tasks.weights.run": ("weights",),
    "tolerance": ("Tolerance",),
    "verification": ("backend",),
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*_WHERE]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _WHERE:
        raise AttributeError(f"module 'driftwalk' has no attribute {name!r}")
    value = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value
