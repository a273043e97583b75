"""Golden traces: where they lie, and whether a fresh one differs from what is stored."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..signatures.data import Signature
from ..states import Trace, same_bits
from ..tolerance import Policy, make_policy

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


@dataclass(frozen=True)
class Golden:
    """One golden trace, which may not be there yet: a folder, or a file with its signature."""

    path: Path
    signed: bool

    def load(self) -> Trace | Signature:
        return Signature.load(self.path) if self.signed else Trace.load(self.path)

    def write(self, trace: Trace) -> bool:
        """Store a trace; one that has the same states already is left as it is."""
        made = Signature.of(trace) if self.signed else trace
        if self.path.exists() and _same(self.load(), made):
            return False
        made.save(self.path)
        return True


def golden_at(folder: Path, name: str, signature: bool | None) -> Golden:
    """The golden trace of that name; None takes what is there, whole traces before signatures."""
    if not _NAME.match(name) or name.endswith(".") or ".." in name:
        raise UsageError(
            f"Golden trace {name!r}: a name has letters, digits, '-', '_' and '.', begins with a "
            "letter or digit, and names no folder."
        )
    whole = Golden(folder / f"{name}.trace", signed=False)
    signed = Golden(folder / f"{name}.signature.json", signed=True)
    if signature is None:
        signature = signed.path.exists() and not whole.path.exists()
    golden = signed if signature else whole
    # A link would lead what is written, and what is believed, to somewhere else.
    if golden.path.is_symlink() or folder.is_symlink():
        raise UsageError(
            f"{str(golden.path)!r} is a link; a golden trace lies where its name says."
        )
    return golden


def golden_policy(policy: Policy) -> Policy:
    """Two traces have no truth to be calibrated by: the dtype table, after the rules."""
    if not policy.calibrated:
        return policy
    return Policy("rules", policy.rules) if policy.rules else make_policy("dtype")


def _same(stored: Trace | Signature, made: Trace | Signature) -> bool:
    """Whether two have the same points, inputs, weights and states, bit by bit."""
    if stored.names != made.names or stored.probe.sha256 != made.probe.sha256:
        return False
    if stored.model.get("fingerprint") != made.model.get("fingerprint"):
        return False
    if isinstance(stored, Signature) and isinstance(made, Signature):
        return [s.sha256 for s in stored.states] == [s.sha256 for s in made.states]
    if isinstance(stored, Trace) and isinstance(made, Trace):
        ours, theirs = ({s.point.name: s.array for s in trace} for trace in (stored, made))
        return same_bits(ours, theirs)
    return False
