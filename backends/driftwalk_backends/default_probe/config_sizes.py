"""Sizes in a config and in configs inside it: `vision_config`, `decoder`, `backbone_config`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

TEXT = ("text", "decoder", "language", "llm", "thinker")
VISION = ("vision", "visual", "backbone", "image", "encoder", "vit", "thinker")
AUDIO = ("audio", "speech", "sound", "encoder", "thinker")
_DEPTH = 3


def configs(config: Any, path: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """A config and the configs inside it, each with its dotted path; nearest first."""
    yield path, config
    inside = [
        (name, value)
        for name, value in vars(config).items()
        if not name.startswith("_") and hasattr(value, "to_dict") and hasattr(value, "model_type")
    ]
    if depth:
        for name, value in inside:
            yield from configs(value, f"{path}.{name}" if path else name, depth - 1)


def in_order(config: Any, near: Sequence[str]) -> list[Any]:
    """The config itself, then its parts whose names have one of these words, then the others."""
    first, *others = configs(config)
    ranked = sorted(
        others,
        key=lambda item: (
            next((i for i, word in enumerate(near) if word in item[0]), len(near)),
            item[0].count("."),
        ),
    )
    return [first[1], *(part for _, part in ranked)]


def value(config: Any, keys: Sequence[str], near: Sequence[str] = ()) -> Any:
    """The first of these keys that some config has a value for."""
    for part in in_order(config, near):
        for key in keys:
            if (found := getattr(part, key, None)) is not None:
                return found
    return None


def number(config: Any, keys: Sequence[str], near: Sequence[str] = ()) -> int | None:
    """The same, for whole numbers above 0; of a list its first."""
    for part in in_order(config, near):
        for key in keys:
            found = getattr(part, key, None)
            if isinstance(found, list | tuple) and found:
                found = found[0]
            if isinstance(found, int) and not isinstance(found, bool) and found > 0:
                return found
    return None


def sides(given: Any) -> tuple[int, int] | None:
    """Height and width, however they are written."""
    if isinstance(given, dict):
        edge = given.get("shortest_edge") or given.get("longest_edge")
        given = (given.get("height") or edge, given.get("width") or edge)
    if isinstance(given, list | tuple) and len(given) >= 2:
        given = given[-2:]
    elif isinstance(given, list | tuple) and given:
        given = (given[0], given[0])
    elif isinstance(given, int):
        given = (given, given)
    if not isinstance(given, list | tuple) or not all(isinstance(n, int) and n > 0 for n in given):
        return None
    return int(given[0]), int(given[1])
