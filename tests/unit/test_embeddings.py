"""Embeddings: directions and neighbours, on numbers that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from driftwalk.judge.outputs import OutputNames
from driftwalk.measure.embeddings import Moved, embedding
from driftwalk.states import Point, State, Trace
from driftwalk_reports.embedding_words import embedding_sentence
from unit.material import info
from unit.test_drill import PROBE

ANGLES = np.radians([0.0, 10.0, 40.0, 90.0])


def on_a_circle(angles: np.ndarray, size: float = 1.0) -> np.ndarray:
    return size * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def test_the_length_of_a_vector_decides_nothing() -> None:
    found = embedding("text_embeds", on_a_circle(ANGLES), on_a_circle(ANGLES, 3.0), None, 0.0)
    assert found is not None
    assert found.cosine_min == pytest.approx(1)
    assert (found.rows, found.moved, found.reordered) == (4, 0, 0)
    assert "each has the same neighbours in the same order." in embedding_sentence(found)


def test_a_row_that_turns_has_another_neighbour() -> None:
    turned = ANGLES.copy()
    turned[1] = np.radians(30.0)  # nearer to the one at 40 than to the one at 0
    found = embedding("text_embeds", on_a_circle(ANGLES), on_a_circle(turned), None, 0.0)
    assert found is not None
    assert found.cosine_min == pytest.approx(np.cos(np.radians(20)))
    gap = np.cos(np.radians(10)) - np.cos(np.radians(30))
    assert found.examples == (Moved(1, 0, 2, pytest.approx(gap), False),)
    assert (found.moved, found.reordered) == (1, 1)
    said = embedding_sentence(found)
    assert "the nearest neighbour changes for 1, the order of all for 1; row 1 has row 2, " in said
    near, far = on_a_circle(ANGLES), on_a_circle(turned)
    at_a_tie = embedding("text_embeds", near, far, None, 1.01 * gap / 4)
    assert at_a_tie is not None
    assert at_a_tie.ties == 1
    assert "changes for 1 (1 inside the noise: a tie, not a bug)" in embedding_sentence(at_a_tie)
    sure = embedding("text_embeds", near, far, None, 0.99 * gap / 4)
    assert sure is not None
    assert sure.ties == 0


def test_an_order_that_changes_behind_the_nearest() -> None:
    before, after = np.radians([0, 5, 40, -44]), np.radians([0, 5, 40, -38])
    found = embedding("e", on_a_circle(before), on_a_circle(after), None, 0.0)
    assert found is not None
    assert (found.moved, found.reordered) == (0, 1)
    said = embedding_sentence(found)
    assert "same nearest neighbour, the order of those farther off changes for 1." in said


def test_positions_that_do_not_count_are_not_averaged() -> None:
    reference = np.ones((3, 4, 2))
    candidate = reference.copy()
    candidate[1, 3] = [1e6, -1e6]
    keep = np.ones((3, 4), bool)
    keep[1, 3] = False
    found = embedding("last_hidden_state", reference, candidate, keep, 0.0)
    assert found is not None
    assert found.pooled
    assert found.cosine_min == pytest.approx(1)
    counted = embedding("last_hidden_state", reference, candidate, None, 0.0)
    assert counted is not None
    assert counted.cosine_min < 0.1


def test_two_rows_have_no_order_and_nan_no_direction() -> None:
    two = on_a_circle(ANGLES[:2])
    found = embedding("e", two, two, None, 0.0)
    assert found is not None
    assert not found.compared
    assert "with 3 rows or more" in embedding_sentence(found)
    assert embedding("e", two, np.full_like(two, np.nan), None, 0.0) is None


def named(outputs: dict[str, np.ndarray], **states: np.ndarray) -> OutputNames:
    made = tuple(State(Point(name.replace("__", ".")), array) for name, array in states.items())
    return OutputNames.of(Trace(made, PROBE, info("torch"), outputs))


RNG = np.random.default_rng(0)
POOLED, WHOLE = RNG.standard_normal((2, 3)), RNG.standard_normal((2, 4, 3))


@pytest.mark.parametrize("name", ["logits", "output", "start_logits", "logits_per_image"])
def test_what_the_model_calls_logits_is_a_choice(name: str) -> None:
    assert named({name: POOLED}, logits=POOLED).decides


@pytest.mark.parametrize("name", ["pooler_output", "image_embeds", "predicted_depth"])
def test_what_it_calls_otherwise_is_none_and_has_its_own_name(name: str) -> None:
    found = named({name: POOLED}, logits=POOLED)
    assert not found.decides
    assert found.names == {"logits": name}
    assert dict(found.embeddings) == ({} if name == "predicted_depth" else {"logits": name})


def test_an_embedding_may_be_a_state_or_a_point_of_its_own() -> None:
    outputs = {"last_hidden_state": WHOLE, "pooler_output": POOLED, "text_embeds": POOLED + 1}
    states = {"layer__0": WHOLE + 1, "norm": WHOLE, "logits": POOLED}
    found = named(outputs, **states, output__text_embeds=POOLED + 1)
    assert dict(found.embeddings) == {
        "norm": "last_hidden_state",
        "logits": "pooler_output",
        "output.text_embeds": "text_embeds",
    }
    chosen = named({"logits": POOLED, "last_hidden_state": WHOLE}, norm=WHOLE, logits=POOLED)
    assert not chosen.embeddings
