"""How much is done at each level."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import UsageError, nearest


@dataclass(frozen=True)
class Level:
    """How often each thing is repeated, and how long the device is kept busy."""

    name: str
    repeats: int
    """Runs of the model in each dtype."""
    slow_repeats: int
    """The same in half precision on a CPU, where each run can take hundreds of times as long."""
    unit_repeats: int
    core_repeats: int
    load_seconds: float


LEVELS: dict[str, Level] = {
    "quick": Level("quick", 20, 4, 3, 3, 6.0),
    "standard": Level("standard", 200, 20, 10, 10, 90.0),
    "soak": Level("soak", 50, 10, 5, 5, 600.0),
}


def level_named(name: str, minutes: float | None = None) -> Level:
    """A level; `minutes` say how long a soak takes, and are for a soak alone."""
    if name not in LEVELS:
        raise UsageError(f"There is no level {name!r}. {nearest(name, LEVELS)}")
    if minutes is None:
        return LEVELS[name]
    if name != "soak":
        raise UsageError(f"--minutes is for --level soak; {name} takes as long as it takes.")
    if not 0 < minutes < 1e6:
        raise UsageError(f"--minutes {minutes}: expected a number of minutes above 0.")
    return replace(LEVELS[name], load_seconds=60.0 * minutes)
