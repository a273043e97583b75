"""The observer check in words: what changed, and never by nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from driftwalk.adapter import Backend, BackendInfo, Offer, Sink
from driftwalk.dtypes import Array
from driftwalk.judge.gate import run_verdict
from driftwalk.observing import observe
from driftwalk.result import Coverage
from driftwalk.spec import Spec
from driftwalk.states import Probe
from driftwalk.tolerance import make_policy
from driftwalk_reports.sentences import observer_effect
from unit.material import info

MASK = np.array([[1, 1, 0]])
PROBE = Probe({"input_ids": [[1, 2, 3]], "attention_mask": MASK})
STATE = np.arange(6, dtype=np.float32).reshape(1, 3, 2)


class Given(Backend):
    """Gives what it is told to."""

    name = "given"

    def __init__(self, outputs: Mapping[str, Array]) -> None:
        super().__init__(Spec(self.name))
        self._outputs = outputs

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return []

    @property
    def info(self) -> BackendInfo:
        return info(self.name)

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        return self._outputs


def changed(index: tuple[int, ...], value: float) -> Array:
    state = STATE.copy()
    state[index] = value
    return state


@pytest.mark.parametrize(
    ("traced", "words", "within"),
    [
        ({"logits": changed((0, 1, 0), 2.5)}, "by up to 0.5, more than the tolerance", False),
        ({"logits": changed((0, 0, 0), -0.0)}, "(other bits for equal values", True),
        ({"logits": changed((0, 2, 1), 9.0)}, "(it differs at padding alone), within", True),
        ({"logits": changed((0, 1, 1), np.nan)}, "(1 of its values are NaN or Inf in one", False),
        ({"logits": STATE[:, :2]}, "(its shape was [1, 3, 2] and became [1, 2, 2])", False),
        ({"logits": STATE, "more": STATE}, "output more (one of the two runs alone", False),
    ],
)
def test_what_changed_is_said_and_never_by_nothing(
    traced: dict[str, Array], words: str, within: bool
) -> None:
    seen = observe(Given({"logits": STATE}), PROBE, traced, make_policy("dtype"), "block")
    assert not seen.bit_identical
    assert seen.within_tolerance == within
    said = observer_effect("candidate", seen)
    assert words in said
    assert "by up to 0," not in said
    verdict, reason = run_verdict((), Coverage(points=1, compared=1), {"candidate": seen})
    assert (verdict == "unverified") == (not within)
    assert seen.amount in reason or within
