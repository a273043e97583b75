"""How much a candidate may differ at a point: tolerances, rules per point, policies.

An element passes when  |c - r| <= atol * scale + rtol * |r|.
`fixed` tolerances take scale = 1. The `dtype` table takes scale = RMS of the reference state: a
residual stream of size 1000 and one of size 0.01 then get the same *relative* room, where an
absolute 1e-5 would cry wolf at the first and sleep through the second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import starmap
from typing import Literal, get_args

from .dtypes import Format, loosest
from .errors import UsageError, nearest
from .judge.constants import DTYPE_ALLOWANCES

POLICIES = ("calibrated", "dtype", "fixed")

Scale = Literal["rms", "one"]


@dataclass(frozen=True)
class Tolerance:
    """Room for one element: `atol * scale + rtol * |reference|`."""

    atol: float
    rtol: float = 0.0
    scale: Scale = "one"

    def __post_init__(self) -> None:
        for name, value in (("atol", self.atol), ("rtol", self.rtol)):
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} must be a finite number, zero or more; got {value!r}.")
        if self.scale not in get_args(Scale):
            raise UsageError(f"scale must be 'rms' or 'one'; got {self.scale!r}.")


BY_DTYPE: dict[str, Tolerance] = {
    name: Tolerance(atol, rtol, "rms") for name, (atol, rtol) in DTYPE_ALLOWANCES.items()
}
"""Room per dtype, for whole models: rtol as in torch.testing, atol in units of the state's RMS."""


@dataclass(frozen=True)
class Rule:
    """A tolerance for all points a glob matches; None stands for the dtype table."""

    glob: str
    tolerance: Tolerance | None

    def matches(self, point: str) -> bool:
        return fnmatchcase(point, self.glob)


@dataclass(frozen=True)
class Policy:
    """Rules in order, the first that matches counts; the rest is calibrated or by the table."""

    name: str
    rules: tuple[Rule, ...] = ()
    calibrated: bool = False

    def has_rule(self, point: str) -> bool:
        """Whether a tolerance was named for this point by hand."""
        return any(rule.matches(point) for rule in self.rules)

    def tolerance(self, point: str, *formats: Format) -> Tolerance:
        """The tolerance at a point; of the formats that took part the loosest decides."""
        rule = next((rule for rule in self.rules if rule.matches(point)), None)
        named = rule.tolerance if rule else None
        return BY_DTYPE[loosest(formats).name] if named is None else named

    def check_rules(self, points: Iterable[str]) -> None:
        """A rule that matches no point is an error: a typo must not loosen or void a gate."""
        names = list(points)
        for rule in self.rules:
            if not any(rule.matches(name) for name in names):
                raise UsageError(
                    f"Tolerance rule {rule.glob!r} matches no point. {nearest(rule.glob, names)}"
                )


DEFAULT_POLICY = "calibrated"

PolicyLike = str | Tolerance | Mapping[str, Tolerance] | Policy


def make_policy(given: PolicyLike) -> Policy:
    """A policy from what users write: a name, `fixed:ATOL[,RTOL]`, a Tolerance, a dict of globs."""
    if isinstance(given, Policy):
        return given
    if isinstance(given, Tolerance):
        return Policy("fixed", (Rule("*", given),))
    if isinstance(given, Mapping):
        for glob, value in given.items():
            if not isinstance(value, Tolerance):
                raise UsageError(f"Rule {glob!r}: expected a Tolerance(atol, rtol), got {value!r}.")
        return Policy("rules", tuple(starmap(Rule, given.items())), calibrated=True)
    if given in ("calibrated", "dtype"):
        return Policy(given, calibrated=given == "calibrated")
    if isinstance(given, str) and given.startswith("fixed:"):
        return Policy("fixed", (Rule("*", parse_tolerance(given.removeprefix("fixed:"))),))
    if given == "fixed":
        raise UsageError("Policy 'fixed' needs its numbers: write fixed:ATOL or fixed:ATOL,RTOL.")
    raise UsageError(f"Unknown policy {given!r}. {nearest(str(given), POLICIES)}")


def parse_tolerance(text: str) -> Tolerance:
    """Read `ATOL` or `ATOL,RTOL`."""
    try:
        atol, rtol = map(float, text.split(",") if "," in text else (text, "0"))
    except ValueError:
        raise UsageError(f"Cannot read tolerance {text!r}; write ATOL or ATOL,RTOL.") from None
    return Tolerance(atol, rtol)


def parse_rule(text: str) -> Rule:
    """Read `GLOB=ATOL[,RTOL]` or `GLOB=dtype`."""
    glob, separator, value = text.partition("=")
    if not separator or not glob.strip():
        raise UsageError(f"Cannot read rule {text!r}; write GLOB=ATOL[,RTOL] or GLOB=dtype.")
    return Rule(glob.strip(), None if value.strip() == "dtype" else parse_tolerance(value))
