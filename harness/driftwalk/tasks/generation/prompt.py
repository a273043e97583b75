"""The prompt of a generation, and the sequence that comes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...decoding import TOKENS
from ...dtypes import Array
from ...errors import ProbeError
from ...states import Probe

TOLD = (
    "Without position_ids the model counts each step's positions from 0, whatever its cache holds; "
    "both sides were told them, as `generate` of transformers does."
)
MASKS = {"input_ids": "attention_mask", "decoder_input_ids": "decoder_attention_mask"}


def tokens_of(probe: Probe) -> str:
    """The name of the input that holds the sequence."""
    found = next((name for name in TOKENS if name in probe.inputs), None)
    if found is not None and probe.inputs[found].ndim != 2:
        raise ProbeError(
            f"{found} has shape {probe.inputs[found].shape}: only one token at each place of a row "
            "can be gone on with, (row, token)."
        )
    if found is None:
        raise ProbeError(
            f"Only a sequence of tokens ({' or '.join(TOKENS)}) can be gone on with; the prompt "
            f"has {', '.join(probe.names)}."
        )
    return found


def positions_of(tokens: str) -> str:
    """The name of the input that has the positions of a sequence."""
    return MASKS[tokens].replace("attention_mask", "position_ids")


def begun(probe: Probe, given: object) -> Probe:
    """The probe of a prompt: a decoder behind an encoder begins with its first token.

    Unless it was `given` its tokens: texts and default probes have it read what it should write.
    """
    if tokens_of(probe) == TOKENS[1] or not (given is None or probe.texts):
        return probe
    rows, length = probe.inputs[TOKENS[0]].shape
    own = {n: a for n, a in probe.inputs.items() if n.startswith("decoder_")}
    cut = {n: a[:, :1] for n, a in own.items() if a.ndim >= 2 and a.shape[:2] == (rows, length)}
    return replace(probe, inputs={**probe.inputs, **cut})


def cut_to(probe: Probe, length: int) -> Probe:
    """The beginning of a sequence: the prompt of one that was recorded whole."""
    name = tokens_of(probe)
    rows, tokens = probe.inputs[name].shape
    cut = {
        n: a[:, :length]
        for n, a in probe.inputs.items()
        if _is_own(n, name) and a.ndim >= 2 and a.shape[:2] == (rows, tokens)
    }
    words = tuple(row[:length] if len(row) == tokens else row for row in probe.tokens)
    return replace(probe, inputs={**probe.inputs, **cut}, tokens=words, kept=None)


def left_padded(probe: Probe, takes_positions: bool) -> Probe:
    """Rows of unequal length end together, so that all of them go on at the same place.

    Positions are counted from the first token that is no padding, as `generate` of transformers
    does; only where the model can be told them.
    """
    name = tokens_of(probe)
    mask = probe.inputs.get(MASKS[name])
    if mask is None or mask.shape != probe.inputs[name].shape or (mask != 0).all():
        return probe
    keep = mask != 0
    order = np.argsort(keep, axis=1, kind="stable")  # padding first, all else as it was
    along = {
        n: a for n, a in probe.inputs.items() if a.shape[:2] == mask.shape and _is_own(n, name)
    }
    moved: dict[str, Array] = {
        n: np.take_along_axis(a, order.reshape(order.shape + (1,) * (a.ndim - 2)), 1)
        for n, a in along.items()
    }
    positions = positions_of(name)
    if takes_positions and positions not in probe.inputs:
        kept = np.take_along_axis(keep, order, 1)
        moved[positions] = np.maximum(kept.cumsum(1) - 1, 0).astype(np.int64)
    tokens = tuple(
        tuple(row[at] for at in order[number]) if len(row) == order.shape[1] else row
        for number, row in enumerate(probe.tokens)
    )
    return replace(probe, inputs={**probe.inputs, **moved}, tokens=tokens)


def told_positions(probe: Probe) -> Probe:
    """The same with a position for each token, from 0 on."""
    name = tokens_of(probe)
    rows, length = probe.inputs[name].shape
    positions = np.tile(np.arange(length), (rows, 1))
    return replace(probe, inputs={**probe.inputs, positions_of(name): positions})


def _is_own(name: str, tokens: str) -> bool:
    """Whether an input belongs to the sequence, and not to an encoder before it."""
    return tokens == TOKENS[1] or name.startswith("decoder_")
