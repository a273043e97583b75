"""A port's own names of its states, and the points they are: a small TOML file.

    [points]
    "wte_wpe" = "embed"
    "transformer.h.{i}.out" = "layer.{i}"
    "debug.*" = ""

`{name}` stands for one part of a name (no dot in it) and is used again on the right; `*` stands for
anything. What becomes the empty name is left out. Nothing is guessed: a state that no line names,
or two name differently, and two states that become one point are errors.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..states import Point, State, Trace

_PART = re.compile(r"\{(\w+)\}|(\*)")
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class PointMap:
    """The lines of a map, in the file's order; all that speak of a name must agree."""

    lines: Mapping[str, str]
    """A glob with captures, and what it makes of a name."""
    origin: str

    def names(self, given: Iterable[str]) -> dict[str, str]:
        """The point of each name; empty for what is left out."""
        points = {name: self._point(name) for name in given}
        first: dict[str, str] = {}
        for name, point in points.items():
            if point and point in first:
                raise UsageError(
                    f"{self.origin}: {first[point]!r} and {name!r} both become {point!r}."
                )
            first[point] = name
        if not any(points.values()):
            raise UsageError(
                f"{self.origin}: nothing is left of the trace; every state is left out."
            )
        return points

    def _point(self, name: str) -> str:
        matches = {pattern: _compiled(pattern).fullmatch(name) for pattern in self.lines}
        said = {
            pattern: self.lines[pattern].format_map(match.groupdict())
            for pattern, match in matches.items()
            if match is not None
        }
        if not said:
            raise UsageError(
                f"{self.origin}: no line matches the state {name[:80]!r}. Map it to a point, or "
                'leave it out: "NAME" = "".'
            )
        if len(set(said.values())) > 1:
            both = ", ".join(f"{pattern!r} makes it {point!r}" for pattern, point in said.items())
            raise UsageError(f"{self.origin}: {name[:80]!r} is ambiguous: {both}.")
        return next(iter(said.values()))

    def renamed(self, trace: Trace) -> Trace:
        """The same states under the names of points."""
        points = self.names(trace.names)
        states = tuple(
            State(Point(points[s.point.name], s.point.module or s.point.name, "map"), s.array)
            for s in trace
            if points[s.point.name]
        )
        return replace(trace, states=states)


def load_map(path: str | Path) -> PointMap:
    """Read a map; what it may not say is named."""
    at = Path(path)
    try:
        with at.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise UsageError(f"{str(at)!r} is larger than any map of names.")
        data = tomllib.loads(raw.decode())
    except OSError as error:
        raise UsageError(f"Cannot read {str(at)!r}: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{str(at)!r} is not TOML: {error}.") from None
    extra = [key for key in data if key != "points"]
    if extra:
        raise UsageError(f"{at.name}: unknown key {extra[0]!r}; a map has one table: [points].")
    points = data.get("points")
    if not isinstance(points, dict) or not points:
        raise UsageError(f'{at.name} maps nothing; write [points] and lines: "NAME" = "layer.0".')
    for pattern, point in points.items():
        _check_line(at.name, pattern, point)
    return PointMap(points, at.name)


def _check_line(origin: str, pattern: str, point: Any) -> None:
    if isinstance(point, dict):
        raise UsageError(
            f"{origin}: {pattern!r} is a table: names with a dot stand in quotes, "
            '"a.b" = "layer.0".'
        )
    if not isinstance(point, str):
        raise UsageError(f"{origin}: {pattern!r} becomes {point!r}; a point is a text.")
    for text in (pattern, point):
        bare = _PART.sub("", text)
        if "{" in bare or "}" in bare:
            raise UsageError(f"{origin}: cannot read {text!r}; a capture is {{name}}.")
    captured = [name for name, _ in _PART.findall(pattern) if name]
    used = [name for name, star in _PART.findall(point) if name or star]
    if len(set(captured)) < len(captured) or not all(map(_NAME.match, captured)):
        raise UsageError(f"{origin}: a capture stands twice, or is no name, in {pattern!r}.")
    for name in used:
        if name not in captured:
            raise UsageError(
                f"{origin}: {point!r} uses {name or '*'!r}, which {pattern!r} does not capture."
            )


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Captures are one part of a name; stars are anything; all else is itself."""
    text, at = "", 0
    for part in _PART.finditer(pattern):
        text += re.escape(pattern[at : part.start()])
        text += ".*" if part[2] else f"(?P<{part[1]}>[^.]+)"
        at = part.end()
    return re.compile(text + re.escape(pattern[at:]), re.DOTALL)
