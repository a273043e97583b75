"""What a report says of a module that was given as the candidate."""

from __future__ import annotations

import driftwalk
from cli.factories import Tiny

ITSELF, TRAINING = "the very object that the reference runs", "given in train mode"


def notes(model: object, candidate: object, reference: object = None) -> str:
    report = driftwalk.verify(model, candidate, reference, policy="dtype")
    assert report.ok
    return "\n".join(report.notes)


def test_the_reference_itself_is_noted() -> None:
    model, other = Tiny().eval(), Tiny().eval()
    assert ITSELF in notes(model, model)
    assert ITSELF in notes(model, other, other)
    assert ITSELF not in notes(model, other)
    assert ITSELF not in notes(model, "torch")


def test_train_mode_is_noted_and_left_as_it_was() -> None:
    model, other = Tiny().eval(), Tiny().train()
    assert TRAINING in notes(model, other)
    assert other.training
    assert TRAINING not in notes(model, other.eval())
