"""The light cone of a state: what it sees of earlier states, and which later ones see it."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from ...dtypes import Array
from ...environment import head
from ...errors import ModelError, ProbeError, UsageError
from ...progress import Progress
from ...stage import Setting, make_probe, open_sides
from ..constants import VISIBILITY_DIRECTIONS
from .inputs import has_tokenizer
from .results import Leak, Pairs, Visibility

if TYPE_CHECKING:
    from driftwalk_backends.jacobians import Jacobians

    from ...states import Probe

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
    start, show = time.perf_counter(), progress or Progress()
    show.expect(1)
    setting = Setting(model, blocks=blocks, trust_remote_code=trust_remote_code)
    with open_sides(setting, (backend,), show=show) as stage:
        loaded, (runner,) = stage.torch_model, stage.backends
        if not isinstance(runner, TorchEager):
            raise UsageError(f"{runner.spec} has no derivatives: name a torch backend.")
        if runner.info.dtype not in EXACT_ZEROS:
            raise UsageError(
                f"{runner.spec}: in {runner.info.dtype} a small derivative is rounded to zero, and "
                f"zero means that nothing is seen. Use {' or '.join(EXACT_ZEROS)}."
            )
        if text is None and has_tokenizer(loaded):
            text = DEFAULT_TEXT
        probe = make_probe(loaded, text, batch=1)
        _refuse_padding(probe)
        weights = sum(p.numel() for p in loaded.module.parameters())

        def columns(points: tuple[str, ...], positions: int, width: int) -> Array:
            """Orthonormal: as many as were asked for, or as time allows."""
            _chosen(points, positions, layer, position)  # a typo is found before anything slow
            each = max(1, weights) * positions * len(points) * positions
            count = directions or width
            if directions is None:
                count = max(VISIBILITY_DIRECTIONS, int(WORK / each))
            drawn = np.random.default_rng(seed).standard_normal((width, min(count, width)))
            return np.asarray(np.linalg.qr(drawn)[0])

        measured = jacobians(runner, probe, columns, stack, MOST_STATES, show)
        notes = (*loaded.notes, *_stack_notes(measured))
        top = head(command, loaded.describe(), notes) | {"backend": runner.info}
    row, at = _chosen(measured.points, measured.norms.shape[1], layer, position)
    influence = np.sqrt(measured.squares / measured.width)
    if not np.isfinite(influence).all():
        first = int(np.argmin(np.isfinite(influence).all(axis=(1, 2, 3))))
        raise ModelError(f"A derivative of {measured.points[first]} is not finite; nothing to map.")
    return Visibility(
        **top,
        text=probe.texts[0] if probe.texts else "",
        tokens=_tokens(probe, measured),
        points=measured.points,
        stack=measured.stack,
        point=measured.points[row],
        position=at,
        width=measured.width,
        directions=measured.directions,
        error=standard_error(
            measured.squares, measured.spread, measured.directions, measured.width
        ),
        norms=tuple(map(tuple, measured.norms.tolist())),
        pairs=Pairs.of(influence),
        causal=measured.causal if causal is None else causal,
        leak=look_ahead(measured.points, influence),
        seconds=time.perf_counter() - start,
    )


def _refuse_padding(probe: Probe) -> None:
    """Of a padded position nobody says what it may see."""
    for name, array in probe.inputs.items():
        if name.endswith("attention_mask") and len(array) == 1 and not array.all():
            raise ProbeError(f"{name} hides positions; a map is made of one text without padding.")


def _chosen(
    points: tuple[str, ...], positions: int, layer: int | str | None, position: int | None
) -> tuple[int, int]:
    """The row and the position that were asked for; the middle of both, if none was."""
    wanted = points[len(points) // 2] if layer is None else str(layer)
    ends = (f".{wanted}", f".layer.{wanted}")
    row = next((n for n, point in enumerate(points) if f".{point}".endswith(ends)), None)
    if row is None:
        raise UsageError(f"There is no layer {wanted!r} here; there is {', '.join(points)}.")
    at = positions // 2 if position is None else position
    if not -positions <= at < positions:
        raise UsageError(f"Position {at}: the text has {positions} tokens, counted from 0.")
    return row, at % positions


def _tokens(probe: Probe, measured: Jacobians) -> tuple[str, ...]:
    positions = measured.norms.shape[1]
    words = probe.tokens[0] if probe.tokens else ()
    # A decoder reads the same text behind a start token.
    if (
        measured.stack == "decoder"
        and len(words) == positions
        and "decoder_input_ids" in probe.inputs
    ):
        return ("<start>", *words[:-1])
    return words if len(words) == positions else tuple(map(str, range(positions)))


def _stack_notes(measured: Jacobians) -> tuple[str, ...]:
    others = [name for name in measured.stacks if name != measured.stack]
    if not others:
        return ()
    return (
        f"The model has {len(measured.stacks)} stacks; this is the map of {measured.stack} alone. "
        f"What it sees of {', '.join(others)} is not in it; --stack {others[0]} makes the other "
        "map.",
    )


def standard_error(squares: Array, spread: Array, directions: int, width: int) -> float | None:
    """Of a typical influence, relative: half of that of its square, by the delta method.

    `spread` is the variance over orthonormal directions; a whole basis leaves nothing to chance.
    """
    if directions >= width:
        return 0.0
    if directions < 2:
        return None
    there = squares > 0
    if not there.any():
        return 0.0
    variance = spread[there] / (directions - 1) * (1 - directions / width)
    return 0.5 * math.sqrt(float(np.mean(variance / squares[there] ** 2)))


def look_ahead(points: tuple[str, ...], influence: Array) -> Leak | None:
    """The largest influence of a later token on an earlier one; None where all are exactly zero."""
    positions = influence.shape[1]
    later = np.triu(np.ones((positions, positions), bool), 1)[None, :, None, :]
    ahead = np.where(later, influence, 0.0)
    if not ahead.any():
        return None
    at = np.unravel_index(int(ahead.argmax()), ahead.shape)
    target, target_position, source, source_position = map(int, at)
    return Leak(
        pairs=int(np.count_nonzero(ahead)),
        source=points[source],
        source_position=source_position,
        target=points[target],
        target_position=target_position,
        influence=float(ahead[at]),
    )
