"""`driftwalk.generate`: a prompt, the steps after it, two sides, one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...adapter import Backend, Decodes, Prepares
from ...decoding import CACHES, Decoding
from ...dtypes import Array, Float64
from ...errors import BackendError, UsageError
from ...judge.accusation import accuse
from ...judge.walk import Walk
from ...judge.witness import Witness, witness_device
from ...make_report import Terms, assemble
from ...measure.halves import widened
from ...progress import Progress
from ...result import Report
from ...stage import Setting, Stage, is_graph, open_stage
from ...states import Probe, State, Trace
from ...tolerance import DEFAULT_POLICY, PolicyLike, make_policy
from .cause import cause_of, first_divergence
from .cells import Span, is_of_cache, ratios_of, step_rows
from .prompt import begun, left_padded, positions_of, tokens_of
from .result import CachePath, Generation, Parted, Step

STEPS = 32


def generate(
    model: object,
    candidate: object = "onnxruntime",
    reference: object = None,
    prompt: object = None,
    steps: int = STEPS,
    policy: PolicyLike = DEFAULT_POLICY,
    cache: str = "dynamic",
    blame: bool | str = "auto",
    **options: Any,
) -> Generation:
    """Decode on two backends step by step, and say where, in which layer and why they part.

    The prompt is what `verify` takes as a probe. Both sides are fed the tokens that the reference
    chooses, the likeliest in each of `steps` steps. See `generate_all` for options.
    """
    sides = [candidate], reference, prompt, steps, policy, cache, blame
    return generate_all(model, *sides, **options)[0]


def generate_all(
    model: object,
    candidates: Sequence[object],
    reference: object = None,
    prompt: object = None,
    steps: int = STEPS,
    policy: PolicyLike = DEFAULT_POLICY,
    cache: str = "dynamic",
    blame: bool | str = "auto",
    *,
    stored: bool = True,
    witness: str = "auto",
    command: str = "",
    progress: Progress | None = None,
    **setting: Any,
) -> list[Generation]:
    """The same for several candidates: the reference decodes once.

    `cache` is what each side keeps between steps: `dynamic`, `static`, or `none`, where all tokens
    so far are fed again. `stored=False` calibrates afresh; `witness` is where truth and yardsticks
    run. The `setting` is what `stage.Setting` takes: `blocks`, `trust_remote_code`, `batch`,
    `length` and `seed`.
    """
    if steps < 1:
        raise UsageError(f"steps={steps}: at least one token must be generated.")
    if cache not in CACHES:
        raise UsageError(f"cache={cache!r}: one of {', '.join(CACHES)}.")
    if blame not in ("auto", True, False):
        raise UsageError(f"blame={blame!r}: expected 'auto', True or False.")
    if not candidates:
        raise UsageError("No candidate to decode with; name at least one backend.")
    if is_graph(model):
        raise UsageError("A graph keeps no cache of its own; give the model that it was made of.")
    show, sides = progress or Progress(), ("torch" if reference is None else reference, *candidates)
    show.expect(4 + 2 * len(candidates))
    terms = Terms(make_policy(policy), command=command)
    with open_stage(Setting(model, prompt, **setting), sides, "block", show) as stage:
        how = _How(steps, cache, blame, stored, witness)
        return _Generating(stage, prompt, terms, how, show).reports()


@dataclass(frozen=True)
class _How:
    steps: int
    cache: str
    blame: bool | str
    stored: bool
    witness: str


@dataclass(frozen=True, eq=False)
class _Side:
    """A backend, and what it gave: on the whole sequence at once, and step by step."""

    backend: Backend
    whole: Trace
    decoded: Trace


class _Generating:
    """One generation under way."""

    def __init__(
        self, stage: Stage, given: object, terms: Terms, how: _How, show: Progress
    ) -> None:
        self._stage, self._terms, self._how, self._show = stage, terms, how, show
        self._model = stage.torch_model
        for backend in stage.backends:
            if not isinstance(backend, Decodes):
                raise BackendError(
                    f"Backend {backend.spec} cannot decode step by step: it keeps no cache. torch, "
                    "emulated and modules do."
                )
        from driftwalk_backends.vocabulary import Vocabulary, max_positions, takes_positions

        prompt = begun(stage.probe, given)
        name = tokens_of(prompt)
        prompt = left_padded(prompt, takes_positions(self._model, positions_of(name)))
        self._vocabulary, self._most = Vocabulary(self._model), max_positions(self._model, name)
        length = prompt.inputs[name].shape[1]
        self._check_room(length)
        self._span = Span(length, how.steps)
        self._plan = Decoding((length,) + (1,) * how.steps, how.cache)
        self._prompt, self._tokens = prompt, name

    def _check_room(self, length: int) -> None:
        """An error where the model has no positions for so many tokens."""
        most = self._most
        if most is not None and length + self._how.steps > most:
            raise UsageError(
                f"{length} tokens of prompt and {self._how.steps} steps are more than the {most} "
                f"positions that the model has; at most {max(0, most - length)} steps fit."
            )

    def reports(self) -> list[Generation]:
        first, *others = self._stage.backends
        with ExitStack() as opened:
            opened.callback(self._restore)
            with self._show.stage(f"reference: {first.spec}"):
                decoded = self._generated(first)
            self._model.decoding = Decoding()
            probe = decoded.probe
            reference = _Side(first, self._traced(first, probe, Decoding()), decoded)
            self._model.evidence.offer(first, reference.whole)
            place = witness_device(self._how.witness, self._stage.backends)
            given = self._model, probe, self._how.stored, self._show, "block", place, "", True
            witness = Witness(*given)
            opened.callback(witness.close)
            return [self._report(reference, one, witness) for one in others]

    def _restore(self) -> None:
        self._model.decoding = None
        for backend in self._stage.backends:
            if isinstance(backend, Decodes):
                backend.decode(None)

    def _generated(self, backend: Backend) -> Trace:
        """The reference's own decoding, and the sequence that it chose."""
        assert isinstance(backend, Decodes)
        states: list[State] = []
        inputs = backend.generate(self._prompt, self._plan, states.append)
        whole = Probe(inputs, self._prompt.origin, self._prompt.texts, others=self._prompt.others)
        whole = replace(whole, tokens=self._words(whole), kept=None)
        return Trace(tuple(states), whole, backend.info)

    def _words(self, probe: Probe) -> tuple[tuple[str, ...], ...]:
        rows = probe.inputs[self._tokens].tolist()
        return tuple(self._vocabulary.texts(row) for row in rows)

    def _traced(self, backend: Backend, probe: Probe, plan: Decoding) -> Trace:
        assert isinstance(backend, Decodes)
        backend.decode(plan)
        return backend.trace(probe)

    def _report(self, reference: _Side, candidate: Backend, witness: Witness) -> Generation:
        probe = reference.decoded.probe
        if isinstance(candidate, Prepares):
            candidate.prepare(probe)
        with self._show.stage(f"candidate, all at once: {candidate.spec}"):
            whole = self._traced(candidate, probe, Decoding())
        with self._show.stage(f"candidate, step by step: {candidate.spec}"):
            other = _Side(candidate, whole, self._traced(candidate, probe, self._plan))
        at_once, _ = self._judged(reference.whole, other.whole, reference, other, witness, False)
        made, walk = self._judged(
            reference.decoded, other.decoded, reference, other, witness, self._how.blame
        )
        return self._assembled(reference, other, made, at_once, walk, witness)

    def _judged(
        self,
        ours: Trace,
        theirs: Trace,
        reference: _Side,
        other: _Side,
        witness: Witness,
        blame: bool | str,
    ) -> tuple[Report, Walk]:
        """One pair of traces, compared and judged as `verify` does."""
        candidate, policy, terms = other.backend, self._terms.policy, self._terms
        mine = judged = None
        if policy.calibrated:
            mine, judged = witness.calibration(candidate.info), witness.judged(ours)
            doubt = witness.doubt(candidate.info) or witness.doubt(ours.backend)
            terms = replace(terms, doubt=doubt)
        if mine is None or judged is None:
            mine = judged = None
        none = ("*.key", "*.value") if self._how.cache == "none" else ()
        walk = Walk(ours, theirs.backend, policy, none, mine, judged)
        walk.meet_all(theirs, reference.backend)
        notes = (*self._stage.model.notes, *ours.probe.notes)
        terms = replace(terms, model=self._stage.model.describe(), notes=notes, allow_missing=none)
        report = assemble(walk, ours, theirs.backend, terms, {})
        if blame is True or (blame == "auto" and report.verdict == "drift"):
            sides = {
                "candidate": (candidate, witness),
                "reference": (reference.backend, witness),
            }
            for side in (reference.backend, candidate):
                assert isinstance(side, Decodes)
                side.decode(self._plan)
            report = accuse(report, sides)  # type: ignore[arg-type]
        return report, walk

    def _assembled(
        self,
        reference: _Side,
        other: _Side,
        made: Report,
        at_once: Report,
        walk: Walk,
        witness: Witness,
    ) -> Generation:
        calibration = witness.calibration(other.backend.info) if made.layers else None
        ratios: Mapping[str, Array] = {}
        introduced: Mapping[str, Array] = {}
        blamed = "reference" if made.at_fault == "reference" else "candidate"
        trace = reference.decoded if blamed == "reference" else other.decoded
        if calibration is not None and self._terms.policy.calibrated:
            room = {row.point.name: _worst(row) for row in made.layers if row.truth is not None}
            ratios = ratios_of(trace, calibration, room)
            introduced = _introduced(made, calibration)
        found = cause_of(made, at_once, ratios, introduced, self._span)
        sides = reference.decoded, other.decoded
        rows = made.layers
        true = calibration.truth if calibration is not None else None
        steps = tuple(
            self._step(number, sides, step_rows(number, self._span, sides, rows, ratios))
            for number in range(self._how.steps + 1)
        )
        notes = (
            *made.notes,
            *witness.notes(other.backend.info),
            *witness.caution(other.backend.info),
        )
        return Generation(
            tool=made.tool,
            created=made.created,
            command=made.command,
            model=made.model,
            environment=made.environment,
            notes=tuple(dict.fromkeys(notes)),
            probe=made.probe,
            prompt=self._span.prompt,
            cache=self._how.cache,
            reference=made.reference,
            candidate=made.candidate,
            policy=made.policy,
            verdict=made.verdict,
            reason=made.reason,
            cause=found.cause,
            at_fault=made.at_fault,
            first_divergence=first_divergence(made, ratios, self._span),
            root_cause=found.root,
            culprit=made.culprit,
            explanation=found.sentence,
            parted=self._parted(sides, true, made),
            steps=steps,
            layers=made.layers,
            whole=at_once.layers,
            cache_paths={
                "reference": _cache_path(reference, made),
                "candidate": _cache_path(other, made),
            },
            timings={
                "reference": dict(reference.backend.seconds),
                "candidate": dict(other.backend.seconds),
            },
        )

    def _step(self, number: int, sides: tuple[Trace, Trace], rows: tuple[Any, ...]) -> Step:
        ours, theirs = (self._logits(side, number) for side in sides)
        best = ours.argmax(-1)
        top = np.sort(ours, -1)[:, -2:]
        tokens = tuple(int(token) for token in best)
        return Step(
            number,
            tokens,
            self._vocabulary.texts(tokens),
            tuple(float(margin) for margin in top[:, 1] - top[:, 0]),
            int((theirs.argmax(-1) != best).sum()),
            rows,
        )

    def _logits(self, trace: Trace, step: int) -> Float64:
        """What a side gives for the next token, row by row."""
        state = trace.state("logits")
        if state is None or state.array.ndim != 3:
            raise BackendError("The model gives no logits by token, so nothing can be generated.")
        return widened(state.array[:, self._span.prompt - 1 + step]).astype(np.float64)

    def _parted(
        self, sides: tuple[Trace, Trace], true: Trace | None, made: Report
    ) -> Parted | None:
        """The first step in which the sides would have chosen different tokens."""
        for step in range(self._how.steps + 1):
            ours, theirs = (self._logits(side, step) for side in sides)
            rows = np.flatnonzero(ours.argmax(-1) != theirs.argmax(-1))
            if not len(rows):
                continue
            row = int(rows[0])
            a, b = int(ours[row].argmax()), int(theirs[row].argmax())
            known = (
                ours if true is None or true.state("logits") is None else self._logits(true, step)
            )
            margin = float(known[row, a] - known[row, b])
            allowed = made.layer("logits").tolerance
            room = allowed.atol + allowed.rtol * allowed.scale if allowed else 0.0
            tie = bool(abs(margin) <= 2 * room)
            one, other = self._vocabulary.texts((a, b))
            return Parted(step, row, (a, b), (one, other), margin, tie)
        return None


def _worst(row: Any) -> float:
    """What the worst token of a point may be off."""
    allowed = row.truth.norms.get("allowed") if row.truth else None
    return float(allowed.token_worst) if allowed is not None else 0.0


def _introduced(made: Report, calibration: Any) -> dict[str, Array]:
    """What each layer made itself, by token, in units of what the worst token may be off."""
    found: dict[str, Array] = {}
    for row in made.layers:
        own = calibration.own.get(row.point.name)
        if row.blame is None or not row.blame.tokens or own is None:
            continue
        tokens = np.array(
            [[0.0 if one is None else one for one in line] for line in row.blame.tokens]
        )
        keep = np.array([[one is not None for one in line] for line in row.blame.tokens])
        most = row.blame.norms["allowed"].token_worst
        if int(keep.sum()) != len(own.weights.tokens) or not most > 0:
            continue
        weights = np.zeros(tokens.shape)
        weights[keep] = own.weights.tokens
        typical = float(np.sqrt(np.mean(np.square(own.weights.channels))))
        found[row.point.name] = tokens * weights * typical / most
    return found


def _cache_path(side: _Side, made: Report) -> CachePath:
    """One side's decoding against its own run on the whole sequence."""
    worst, where, equal = 0.0, "", True
    for row in made.layers:
        name = row.point.name
        a, b = side.whole.state(name), side.decoded.state(name)
        if a is None or b is None or a.shape != b.shape or is_of_cache(name):
            continue
        keep = side.whole.probe.keep(name, a.shape)
        x, y = (widened(one.array).astype(np.float64) for one in (a, b))
        off = np.abs(x - y) if keep is None else np.abs(x - y)[keep]
        equal = equal and not off.any()
        room = row.tolerance.atol + row.tolerance.rtol * row.tolerance.scale if row.tolerance else 0
        used = float(off.max(initial=0.0)) / room if room else 0.0
        if used > worst or not where:
            worst, where = used, name
    # Each of the two runs may be as far from the truth as is allowed.
    agreement = "bit-exact" if equal else "within noise" if worst <= 2 else "broken"
    return CachePath(agreement, worst, where)  # type: ignore[arg-type]
