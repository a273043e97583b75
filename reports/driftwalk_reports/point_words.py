"""What to call a point, with its module or the model's own word where the name does not tell."""

from __future__ import annotations

import re

from driftwalk.layer_drift import LayerDrift
from driftwalk.names import place_of
from driftwalk.result import Report

from .numbers import cut

_NUMBER = re.compile(r"[0-9]{1,9}\Z")


def name_of(layer: LayerDrift) -> str:
    """The point, with its module where the name does not tell which that is."""
    place = module_beside(layer)
    return cut(layer.point.name, 80) + (f" ({cut(place, 80)})" if place else "")


def module_beside(layer: LayerDrift) -> str:
    """What a point's name does not tell: the model's name of an output, or the module of a layer,
    where its path does not end in the number that the layer has.

    In a list of blocks it does; in a walk over the module tree `layer.7` may be anything.
    """
    name, module = layer.point.name, layer.point.module
    if layer.point.output:
        return layer.point.output
    place, end = place_of(name), _NUMBER.search(module)
    if place is None or place.number is None or not place.is_canonical:
        return ""
    return "" if end is not None and int(end[0]) == place.number else module


def called(report: Report, point: str) -> str:
    """A point of a report by its name, as `name_of` calls it."""
    found = next((layer for layer in report.layers if layer.point.name == point), None)
    return cut(point, 80) if found is None else name_of(found)
