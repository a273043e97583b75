"""`driftwalk.generate`: a prompt, the steps after it, two sides, one report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import UsageError
from ...make_report import Terms
from ...progress import Progress
from ...stage import Setting, is_graph, open_stage
from ...tolerance import DEFAULT_POLICY, PolicyLike, make_policy
from .feeding import Feeding, How
from .generating import Generating
from .result import Generation

STEPS = 32


def generate(
    model: object,
    candidate: object = "onnxruntime",
    reference: object = None,
    prompt: object = None,
    steps: int | None = None,
    policy: PolicyLike = DEFAULT_POLICY,
    cache: str = "dynamic",
    blame: bool | str = "auto",
    **options: Any,
) -> Generation:
    """Decode on two backends step by step, and say where, in which layer and why they part.

    The prompt is what `verify` takes as a probe. Both sides are fed the tokens that the reference
    chooses, the likeliest in each of `steps` steps: 32, or as many as a recording has. See
    `generate_all` for options.
    """
    sides = [candidate], reference, prompt, steps, policy, cache, blame
    return generate_all(model, *sides, **options)[0]


def generate_all(
    model: object,
    candidates: Sequence[object],
    reference: object = None,
    prompt: object = None,
    steps: int | None = None,
    policy: PolicyLike = DEFAULT_POLICY,
    cache: str = "dynamic",
    blame: bool | str = "auto",
    *,
    beams: int = 1,
    chunk: int = 0,
    draft: int = 0,
    invariance: bool = False,
    allow_missing: Sequence[str] = (),
    patch: bool = False,
    stored: bool = True,
    witness: str = "auto",
    command: str = "",
    progress: Progress | None = None,
    **setting: Any,
) -> list[Generation]:
    """The same for several candidates: the reference decodes once.

    `cache` is what each side keeps between steps: `dynamic`, `static`, `sliding`, `quantized`, or
    `none`, where all tokens so far are fed again. `beams` rows of a beam search, `chunk` tokens of
    the prompt at once, and `draft` tokens of an assistant are fed as feeding.py says; `invariance`
    also compares runs that should agree (invariance.py), and calls it drift where they do not.
    `allow_missing` are patterns of points that a candidate need not have: `*.key` of one that does
    not show its cache. `patch` finds the layer whose drift parts the two sides: one more decoding
    for each point, up to that step. `stored=False` calibrates afresh; `witness` is where truth and
    yardsticks run. The `setting` is what `stage.Setting` takes: `blocks`, `trust_remote_code`,
    `batch`, `length` and `seed`.
    """
    feeding = Feeding(STEPS if steps is None else steps, cache, beams, chunk, draft)
    if blame not in ("auto", True, False):
        raise UsageError(f"blame={blame!r}: expected 'auto', True or False.")
    if not candidates:
        raise UsageError("No candidate to decode with; name at least one backend.")
    if is_graph(model):
        raise UsageError("A graph keeps no cache of its own; give the model that it was made of.")
    show, sides = progress or Progress(), ("torch" if reference is None else reference, *candidates)
    show.expect(4 + 2 * len(candidates))
    terms = Terms(make_policy(policy), command=command)
    with open_stage(Setting.asked(model, prompt, **setting), sides, "block", show) as stage:
        missing = tuple(allow_missing)
        how = How(feeding, blame, invariance, stored, witness, missing, patch, steps is None)
        return Generating(stage, prompt, terms, how, show).reports()
