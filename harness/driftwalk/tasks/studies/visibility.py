"""The light cone of a state: what it sees of earlier states, and which later ones see it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...dtypes import Array
from ...errors import ModelError, ProbeError, UsageError
from ...progress import Progress
from ...stage import make_probe
from .running import head, opened
from .visibility_result import Pairs, Visibility, influences, look_ahead, standard_error

if TYPE_CHECKING:
    from driftwalk_backends.jacobians import Jacobians

    from ...states import Probe

DIRECTIONS = 2
"""Per norm at least: of one alone the error cannot be told."""
WORK = 5e10
"""Multiplications up to which there may be more, and at last a whole basis: then it is exact."""
MOST_STATES = 2048
"""A map of n states has n * n numbers."""
EXACT_ZEROS = ("fp32", "fp64")
DEFAULT_TEXT = "It is done, and submitted. You can play Survival of the Tastiest."


def visibility(
    model: object,
    text: object = None,
    *,
    layer: int | str | None = None,
    position: int | None = None,
    backend: object = "torch",
    directions: int | None = None,
    stack: str | None = None,
    causal: bool | None = None,
    seed: int = 0,
    blocks: str | None = None,
    trust_remote_code: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> Visibility:
    """The influence of every state on every later one, in one sweep.

    `layer` is the number of a block, 5 for `layer.5`, or the name of a point: `embed`, `norm`.
    `directions` is how many random directions each norm is estimated from, 0 for all of them. Of
    an encoder-decoder, `stack` names the half; the decoder, if none is named. `causal` says what to
    expect where the model itself does not.
    """
    from driftwalk_backends.jacobians import jacobians
    from driftwalk_backends.torch_eager import TorchEager

    if directions is not None and directions < 0:
        raise UsageError(f"directions={directions}: expected 0 (all) or more.")
    start = time.perf_counter()
    with opened(model, backend, blocks=blocks, trust_remote_code=trust_remote_code) as stage:
        runner = stage.backends[0]
        if not isinstance(runner, TorchEager):
            raise UsageError(f"{runner.spec} has no derivatives: name a torch backend.")
        if runner.info.dtype not in EXACT_ZEROS:
            raise UsageError(
                f"{runner.spec}: in {runner.info.dtype} a small derivative is rounded to zero, and "
                f"zero means that nothing is seen. Use {' or '.join(EXACT_ZEROS)}."
            )
        probe = make_probe(stage.model, _text(stage.model, text), batch=1)
        _refuse_padding(probe)
        weights = sum(p.numel() for p in stage.model.module.parameters())
        plan = _Plan(layer, position, directions, seed, weights)
        found = jacobians(runner, probe, plan, stack, MOST_STATES, progress)
        top = head(stage.model, runner, command)
    row, at = plan.chosen(found.points, found.norms.shape[1])
    influence = influences(found.squares, found.width)
    if not np.isfinite(influence).all():
        first = int(np.argmin(np.isfinite(influence).all(axis=(1, 2, 3))))
        raise ModelError(f"A derivative of {found.points[first]} is not finite; nothing to map.")
    top["notes"] = (*top["notes"], *_notes(found))
    return Visibility(
        **top,
        text=probe.texts[0] if probe.texts else "",
        tokens=_tokens(probe, found),
        points=found.points,
        stack=found.stack,
        point=found.points[row],
        position=at,
        width=found.width,
        directions=found.directions,
        error=standard_error(found.squares, found.spread, found.directions, found.width),
        norms=tuple(map(tuple, found.norms.tolist())),
        pairs=Pairs.of(influence),
        causal=found.causal if causal is None else causal,
        leak=look_ahead(found.points, influence),
        seconds=time.perf_counter() - start,
    )


def _refuse_padding(probe: Probe) -> None:
    """Of a padded position nobody says what it may see."""
    for name, array in probe.inputs.items():
        if name.endswith("attention_mask") and len(array) == 1 and not array.all():
            raise ProbeError(f"{name} hides positions; a map is made of one text without padding.")


def _text(model: object, given: object) -> object:
    """The text, or the default one for a model with a tokenizer."""
    if given is not None:
        return given
    try:
        return DEFAULT_TEXT if model.tokenizer is not None else None  # type: ignore[attr-defined]
    except ModelError:
        return None


@dataclass(frozen=True)
class _Plan:
    """What was asked for, to be checked as soon as the points are known and before they are run."""

    layer: int | str | None
    position: int | None
    directions: int | None
    seed: int
    weights: int

    def __call__(self, points: tuple[str, ...], positions: int, width: int) -> Array:
        """Orthonormal columns: as many as were asked for, or as time allows."""
        self.chosen(points, positions)
        each = max(1, self.weights) * positions * len(points) * positions
        asked = self.directions
        count = max(DIRECTIONS, int(WORK / each)) if asked is None else asked or width
        drawn = np.random.default_rng(self.seed).standard_normal((width, min(count, width)))
        columns: Array = np.linalg.qr(drawn)[0]
        return columns

    def chosen(self, points: tuple[str, ...], positions: int) -> tuple[int, int]:
        """The row and the position that were asked for; the middle of both, if none was."""
        wanted = points[len(points) // 2] if self.layer is None else str(self.layer)
        named = [
            row
            for row, point in enumerate(points)
            if f".{point}".endswith((f".{wanted}", f".layer.{wanted}"))
        ]
        if not named:
            raise UsageError(f"There is no layer {wanted!r} here; there is {', '.join(points)}.")
        at = positions // 2 if self.position is None else self.position
        if not -positions <= at < positions:
            raise UsageError(f"Position {at}: the text has {positions} tokens, counted from 0.")
        return named[0], at % positions


def _tokens(probe: Probe, found: Jacobians) -> tuple[str, ...]:
    positions = found.norms.shape[1]
    words = probe.tokens[0] if probe.tokens else ()
    # A decoder reads the same text behind a start token.
    if found.stack == "decoder" and len(words) == positions and "decoder_input_ids" in probe.inputs:
        return ("<start>", *words[:-1])
    return words if len(words) == positions else tuple(map(str, range(positions)))


def _notes(found: Jacobians) -> tuple[str, ...]:
    others = [name for name in found.stacks if name != found.stack]
    if not others:
        return ()
    return (
        f"The model has {len(found.stacks)} stacks; this is the map of {found.stack} alone. What "
        f"it sees of {', '.join(others)} is not in it; --stack {others[0]} makes the other map.",
    )
