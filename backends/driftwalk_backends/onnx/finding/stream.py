"""The residual stream in the names of points: which of them are computed one from the other."""

from __future__ import annotations

import re

from ...model_outputs import is_output

_CHAIN = re.compile(r"(?:(?P<stack>.+?)\.)?(?:embed|layer\.\d+|norm)\Z")
_INSIDE = re.compile(r"(?:(?P<stack>.+?)\.)?layer\.\d+\.")


def in_chain(name: str) -> bool:
    """Whether a point lies on the residual stream: each such state is computed from the last."""
    return bool(_CHAIN.match(name)) and not _INSIDE.match(name) and not is_output(name)


def is_layer(name: str) -> bool:
    return in_chain(name) and name.rpartition(".")[2].isdecimal()


def stack_of(name: str) -> str | None:
    """The stack a point belongs to: empty for the only one; None for the model's output."""
    match = _INSIDE.match(name) or _CHAIN.match(name)
    return None if match is None or is_output(name) else match["stack"] or ""
