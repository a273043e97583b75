"""What went wrong in a generation: what is kept between steps, the backend, or what layers share.

decoding wrong, the run on the whole sequence right      the cache
both wrong                                               the backend
where there is no such run: wrong in the prompt already  the backend; else the cache
what all layers are handed is wrong itself               shared
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...dtypes import Array
from ...layer_drift import AtFault, LayerDrift
from ...names import EMBED, is_of_cache, is_shared, layer_of, place_of
from ...result import Report
from .cells import Span, first_token, has_slots, places
from .result import At, Cause


@dataclass(frozen=True)
class Found:
    """The cause of a drift, where it is, and in words."""

    cause: Cause | None = None
    root: At | None = None
    sentence: str = ""


@dataclass(frozen=True)
class Evidence:
    """What is known of the side at fault beside the reports."""

    ratios: Mapping[str, Array] = field(default_factory=dict)
    """How far each point is off, by token, in units of what is allowed."""
    introduced: Mapping[str, Array] = field(default_factory=dict)
    """The same for what each layer made itself."""
    mixed: frozenset[str] = frozenset()
    """What caches hold that is another row's."""
    beams: int = 1


def first_divergence(report: Report, ratios: Mapping[str, Array], span: Span) -> At | None:
    """The earliest step in which a point is off, and the first point there."""
    bad = [row for row in report.layers if not row.ok]
    tokens = [t for row in bad if (t := _token(row, ratios, span)) is not None]
    # What is not known by token is wrong when what it is handed to is.
    earliest = min(tokens, default=None)
    return min((_at(row, ratios, span, earliest) for row in bad), key=_step, default=None)


def _step(at: At) -> int:
    return at.step


def _token(row: LayerDrift, ratios: Mapping[str, Array], span: Span) -> int | None:
    """The first token at which a point that drifts does so; None: it is not known by token."""
    name = row.point.name
    along, first = places(row.shape, name, span), first_token(row, ratios.get(name))
    return None if along is None or first is None else along[first]


def _at(
    row: LayerDrift, ratios: Mapping[str, Array], span: Span, otherwise: int | None = None
) -> At:
    """Where a point drifts first; `otherwise`, or where it was seen: a cache's sums at the end."""
    token, name = _token(row, ratios, span), row.point.name
    if token is not None:
        slot = span.past + token if has_slots(name) else None
        return At(span.step_of(token), row.point, slot, token)
    if otherwise is not None:
        return At(span.step_of(otherwise), row.point, token=otherwise)
    return At(span.steps if is_of_cache(name) else 0, row.point)


def _by_slots(first: At | None, slots: Sequence[At]) -> Found:
    """The cache is to blame, and no layer was: the first that keeps something wrong is named."""
    kept = min(slots, key=_step) if slots else None
    if kept is None or first is None or kept.step > first.step:
        return Found("cache", first, "")
    return Found("cache", kept, _held(kept, "is not what the layer computed"))


def cause_of(decoded: Report, whole: Report | None, evidence: Evidence, span: Span) -> Found:
    """From the two reports, and the rest of the evidence."""
    ratios, introduced = evidence.ratios, evidence.introduced
    if decoded.verdict != "drift":
        return Found()
    slots = [
        _at(row, ratios, span)
        for row in decoded.layers
        if not row.ok and is_of_cache(row.point.name)
    ]
    guilty = decoded.root_cause
    if whole is None:
        at_once = any(_at(row, ratios, span).step == 0 for row in _wrong(decoded))
    else:
        at_once = any(_is_of(row, decoded.at_fault) for row in _wrong(whole))
    if guilty is None:
        if slots and not _wrong(decoded):
            words = _held(slots[0], "is wrong, though no state shows it yet")
            return Found("cache", slots[0], words)
        first = first_divergence(decoded, ratios, span)
        return Found("backend", first, "") if at_once else _by_slots(first, slots)
    root = _root(guilty, ratios, introduced, span)
    wrong_length = _wrong_length(decoded, guilty, root)
    if wrong_length is not None and not at_once:
        return wrong_length
    if is_shared(guilty.point.name):
        first = first_divergence(decoded, ratios, span)
        if first is not None:
            root = replace(root, step=first.step, token=first.token)
        return Found("shared", root, _shared(guilty.point.name, root, at_once))
    if at_once:
        return Found("backend", root, "")
    place = place_of(guilty.point.name)
    if place is not None and place.end == EMBED:
        return Found("shared", root, _shared("positions", root, False))
    layer = layer_of(guilty.point.name)
    held = [at for at in slots if layer_of(at.point.name) == layer]
    if held:
        first = min(held, key=lambda at: at.slot if at.slot is not None else -1)
        root = At(root.step, root.point, first.slot, root.token)
        # What was kept before any state was wrong cannot be wrong by another layer's doing.
        known = [at for at in slots if at.slot is not None and at.step < root.step]
        early = {layer_of(at.point.name) for at in known}
        mixed = [at for at in held if at.point.name in evidence.mixed]
        what = "is what another row should have" if mixed else "is not what the layer computed"
        what += f" (and so it is in {len(early)} layers)" if len(early) > 1 else ""
        if mixed and evidence.beams > 1:
            what += ": it was not reordered as the beams were"
        return Found("cache", root, _held((mixed or [first])[0], what))
    words = (
        f"{guilty.point.name}: decoding goes wrong in step {root.step}, though what its cache "
        "holds is within its allowance: it reads other slots, or masks them otherwise"
    )
    return Found("cache", root, words)


def _wrong_length(decoded: Report, guilty: LayerDrift, root: At) -> Found | None:
    """A cache that is too long or too short, where that explains the layer that is guilty.

    Positions and masks are counted from its length: then what all layers are handed is wrong, too.
    """
    names = [
        r.point.name for r in decoded.layers if r.verdict == "shape" and has_slots(r.point.name)
    ]
    layers = list(dict.fromkeys(layer for name in names if (layer := layer_of(name))))
    place = place_of(guilty.point.name)
    follows = is_shared(guilty.point.name) or (place is not None and place.end == EMBED)
    if not layers or (layer_of(guilty.point.name) not in layers and not follows):
        return None
    layer = layers[0] if follows else layer_of(guilty.point.name)
    point = next((row.point for row in decoded.layers if row.point.name == layer), root.point)
    others = f" (and so it is in {len(layers)} layers)" if len(layers) > 1 else ""
    words = f"{layer}: its cache does not hold one slot for each token{others}"
    return Found("cache", At(root.step, point, token=root.token), words)


def _wrong(report: Report) -> list[LayerDrift]:
    """The states that are off; not what a cache holds."""
    return [row for row in report.layers if not row.ok and not is_of_cache(row.point.name)]


def _is_of(row: LayerDrift, side: AtFault | None) -> bool:
    """Whether a point is off by the doing of a side, as far as that is known."""
    return not row.sides_at_fault or side in (None, "both", *row.sides_at_fault)


def _root(
    row: LayerDrift, ratios: Mapping[str, Array], introduced: Mapping[str, Array], span: Span
) -> At:
    """The step in which a guilty layer first made more error of its own than it may."""
    name = row.point.name
    own, total = introduced.get(name), ratios.get(name)
    # Nothing came in before: where all of its error is beyond, its own is.
    if own is None or (not row.ok and total is not None and (total > 1).any()):
        return _at(row, ratios, span)
    along = places((*own.shape, 1), name, span)
    if along is None:
        return At(0, row.point)
    worst = own.max(0)
    beyond = [int(at) for at in (worst > 1).nonzero()[0]] or [int(worst.argmax())]
    token = along[beyond[0]]
    return At(span.step_of(token), row.point, token=token)


def _held(at: At, what: str) -> str:
    layer, _, kind = at.point.name.rpartition(".")
    slot = "" if at.slot is None else f" in slot {at.slot}"
    return f"{layer}: what its cache holds as {kind}{slot}, of step {at.step}, {what}"


def _shared(which: str, root: At, at_once: bool) -> str:
    since = f"step {root.step}" if root.step or root.token is None else f"token {root.token}"
    when = "in every run" if at_once else f"from {since} on, and not in one whole run"
    return f"{which}, which all layers are handed: wrong {when}"
