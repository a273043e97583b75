"""A decoding recorded: by a side's own choices, or on the sequence of another trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...decoding import Decoding
from ...environment import environment
from ...errors import UsageError
from ...make_report import Terms
from ...names import is_of_cache
from ...progress import Progress
from ...stage import Setting, open_stage
from ...states import Trace
from ...tolerance import make_policy
from .feeding import Feeding, How
from .generating import Generating
from .run import STEPS
from .sides import DecodingBackend, decoding_side


def record_steps(
    model: object,
    backend: object = "torch",
    prompt: object = None,
    steps: int | None = None,
    cache: str = "dynamic",
    like: Trace | None = None,
    *,
    progress: Progress | None = None,
    **setting: Any,
) -> Trace:
    """A trace of decoding, to save: the side chooses the likeliest tokens, or is fed those of a
    trace that it is to be `like`; that sequence with `steps=0` all at once.

    The `setting` is what `stage.Setting` takes: `blocks`, `trust_remote_code`, `batch`, `length`,
    `seed`.
    """
    feeding = Feeding(STEPS if steps is None or like is not None else steps, cache)
    if like is not None and like.decoding is None:
        raise UsageError("The trace to be like was recorded in one run; it has no steps.")
    show = progress or Progress()
    show.expect(3)
    given = prompt if like is None else like.probe
    with open_stage(Setting.asked(model, given, **setting), (backend,), "block", show) as stage:
        with show.stage(f"recording: {stage.backends[0].spec}"):
            if like is None:
                terms = Terms(make_policy("dtype"))
                made = Generating(stage, prompt, terms, How(feeding), show).recorded()
            else:
                made = _alike(decoding_side(stage.backends[0]), like, steps)
        wanted = ("label", "class", "fingerprint")
        kept = {name: text for name, text in stage.model.describe().items() if name in wanted}
    return replace(made, model=kept, environment=environment())


def _alike(backend: DecodingBackend, like: Trace, steps: int | None) -> Trace:
    """The same sequence, in the same steps or at once."""
    plan = None if steps == 0 else like.decoding
    backend.decode(plan or Decoding())
    try:
        made = backend.trace(like.probe)
    finally:
        backend.decode(None)
    if plan is None:  # as `record` without steps has it
        made = replace(made, states=tuple(s for s in made if not is_of_cache(s.point.name)))
    return replace(made, decoding=plan)
