"""How much memory a verification will take at its peak, and how it is made to fit a budget.

What is alive at once is read off the code: judge/calibrate.py while it calibrates (the reference's
trace, the truth's, the yardstick's, the truth's with roundoffs, and what the layers of that
introduce), judge/drill.py where no block alone explains a drift. tests/benchmarks/budget.py
compares the sum with what runs take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .adapter import Backend, BringsModel, CopiesWeights
from .budget import Needs, anonymous_memory, in_words, trim
from .dtypes import FORMATS
from .errors import UsageError
from .judge.calibrate import yardstick_spec
from .judge.conditioning import EXAMINED_AT
from .judge.replay import room_for_waiting
from .progress import Progress
from .registry import create
from .stage import Stage, needs_of
from .workers import workers

_PLAIN, _WIDE = 4, 8
"""Bytes of a number in float32, and in float64."""
_COMPARED = 48
"""Bytes for each number of a state that is being compared: differences, weights, least noise."""
_LOOSE = 0.25
"""The part of what is alive that is freed late: it lies between other things."""
_SLACK = 48 << 20
"""Bytes for what is imported, or made once, on the way."""
_MARGIN = 16 << 20
"""Bytes on top of the smallest budget that is named: two starts of the same run differ a little."""


@dataclass(frozen=True)
class Asked:
    """What of a verification decides how much is alive at once."""

    calibrates: bool
    """Whether a truth may be asked: by the policy, or by blame."""
    spills: bool = False
    """Whether the reference's states are in a file anyway."""
    on_host: bool = True
    """Whether something computes on the CPU."""
    finest: int = _PLAIN
    """Bytes of a number of the sides, at most."""
    own_model: bool = False
    """Whether a candidate computes another model on purpose, and is looked into for that."""


@dataclass(frozen=True)
class Plan:
    """One way to run, and what it takes at its peak, part by part."""

    lent: bool = False
    """Whether weights are lent to copies of the model, whatever its size."""
    spilled: bool = False
    """Whether the reference's states are in a temporary file."""
    looks_inside: bool = True
    """Whether all modules of all layers may be looked at at once, where no block explains drift."""
    parts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What the report says of it."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def choices(self) -> str:
        """What is done otherwise than without a budget, in words."""
        words = (
            (self.lent, "weights are cast as they are needed, and not copied"),
            (self.spilled, "the reference's states are in a temporary file"),
            (not self.looks_inside, "never all modules of all layers are looked at at once"),
        )
        return ", ".join(text for holds, text in words if holds) or "nothing is done otherwise"


NO_BUDGET = Plan()


def planned(
    budget: int,
    stage: Stage,
    depth: str,
    witness_at: str,
    calibrates: bool,
    spills: bool,
    show: Progress,
) -> Plan:
    """How a verification is made to fit a budget; what cannot be is refused.

    The model's weights are lent, or not, from now on. It has run, and its points are known.
    """
    sides, model = stage.backends, stage.torch_model
    with show.stage("finding out how much memory is needed", extra=True):
        needs = needs_of(stage, depth)
    all_of_them = list(sides)
    if calibrates:
        all_of_them += [create(spec, model) for spec in _witness_specs(sides, witness_at)]
    copies = {lent: _copies(all_of_them, lent) for lent in (False, True)}
    formats = [FORMATS[side.info.dtype] for side in sides if side.info.dtype in FORMATS]
    asked = Asked(
        calibrates,
        spills,
        on_host=any(side.info.device == "cpu" for side in all_of_them),
        finest=max((one.dtype.itemsize for one in formats), default=_PLAIN),
        own_model=any(isinstance(side, BringsModel) for side in sides),
    )
    trim()
    remedies = ["a shorter probe (--length, --batch)"]
    if model.files is None:
        remedies.append("a folder of safetensors instead of a model in memory")
    if len(sides) > 2:
        remedies.append("fewer candidates at a time")
    if calibrates:
        remedies.append("--policy dtype --no-blame, without a truth")
    plan = choose(list(plans(needs, anonymous_memory(), copies, asked)), budget, remedies)
    model.weights.any_size = plan.lent
    return _with_notes(plan, budget, sides)


def _with_notes(plan: Plan, budget: int, sides: Iterable[Backend]) -> Plan:
    """The plan, with what the report says of it."""
    notes = [
        f"Budget of {in_words(budget)} of memory: at most {in_words(plan.total)} were expected; "
        f"{plan.choices}."
    ]
    unknown = [str(side.spec) for side in sides if not isinstance(side, CopiesWeights)]
    if unknown:
        notes.append(
            f"What {' and '.join(unknown)} would take was not known beforehand, only watched."
        )
    return Plan(plan.lent, plan.spilled, plan.looks_inside, plan.parts, tuple(notes))


def choose(ways: Sequence[Plan], budget: int, remedies: Sequence[str]) -> Plan:
    """The first that fits; where none does, an error that names the smallest budget that would."""
    fits = next((plan for plan in ways if plan.total <= budget), None)
    if fits is not None:
        return fits
    least = min(ways, key=lambda plan: plan.total)
    parts = "; ".join(f"{who} {in_words(size)}" for who, size in least.parts.items() if size)
    raise UsageError(
        f"A budget of {in_words(budget)} of memory is too small. This run would take up to "
        f"{in_words(least.total)}, if {least.choices}: {parts}. The smallest budget that would do: "
        f"{in_words(least.total + _MARGIN)}. It takes less with {', or '.join(remedies)}."
    )


def plans(
    needs: Needs, now: int, copies: Mapping[bool, Mapping[str, int]], asked: Asked
) -> Iterator[Plan]:
    """All ways to run, those that do most for it first, and of these the fastest.

    `copies` are bytes of weights by who has them, unless weights are lent (False), and if they are.
    """
    ways = dict.fromkeys([(False, asked.spills), (True, asked.spills), (True, True)])
    for inside in (True, False) if asked.calibrates and not asked.own_model else (True,):
        for lent, spilled in ways:
            parts = {"libraries and what is in memory now": now, **copies[lent]}
            if lent:
                parts["the widest weight in float64"] = 2 * _WIDE * needs.widest
            parts |= _of_runs(needs, asked, spilled, inside)
            late = _LOOSE * (sum(parts.values()) - now)
            parts["memory that is freed late"] = int(late) + _SLACK
            yield Plan(lent, spilled, inside, parts)


def _of_runs(needs: Needs, asked: Asked, spilled: bool, inside: bool) -> dict[str, int]:
    """States, and what is made between them, at the worst of times."""
    states, largest = sum(needs.states), max(needs.states, default=0)
    trace = asked.finest * states
    reference = asked.finest * largest if spilled else trace
    compared = _COMPARED * sum(needs.states[: workers()])
    computed = needs.activations if asked.on_host else 0
    if not asked.calibrates:
        kept, more = reference + 2 * asked.finest * largest, computed + compared
    else:
        late = min(room_for_waiting() + _WIDE * largest, _WIDE * states)
        roundoffs, introduced = _WIDE * states, _PLAIN * states
        branches = 2 * _WIDE * states if needs.chooses else 0
        modules = 2 * asked.finest * needs.inside if inside else 0
        kept = reference + _WIDE * states
        kept += max(trace + roundoffs + introduced + branches, modules)
        more = max(computed, compared) + late
    return {"states": kept, "what is computed and compared between them": more}


def _copies(sides: Iterable[Backend], lent: bool) -> dict[str, int]:
    """Bytes of the weights that backends have for themselves, as far as they know."""
    found: dict[str, int] = {}
    for side in sides:
        if isinstance(side, CopiesWeights) and (size := side.weights_taken(lent)):
            who = f"weights of {side.spec}"
            found[who] = found.get(who, 0) + size  # a side, and the yardstick for it
    return found


def _witness_specs(sides: Iterable[Backend], device: str) -> list[str]:
    """The truth, and all yardsticks."""
    where = "" if device == "cpu" else f":{device}"
    dtypes = dict.fromkeys((EXAMINED_AT, *(side.info.dtype for side in sides)))
    known = (dtype for dtype in dtypes if dtype in FORMATS)
    return [f"truth{where}", *(yardstick_spec(dtype, device) for dtype in known)]
