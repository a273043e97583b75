"""`driftwalk.generate`: a prompt, the steps after it, two sides, one report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, cast

from ...adapter import Backend, Decodes, Prepares, Rewinds
from ...decoding import Decoding
from ...dtypes import Array
from ...environment import head
from ...errors import BackendError, UsageError
from ...judge.accusation import accuse
from ...judge.walk import Walk
from ...judge.witness import Witness, witness_device
from ...layer_drift import Side
from ...make_report import Terms, assemble
from ...progress import Progress
from ...result import Report
from ...stage import Setting, Stage, is_graph, open_stage
from ...states import Probe, State, Trace
from ...tolerance import DEFAULT_POLICY, PolicyLike, make_policy
from .cause import Evidence, cause_of, first_divergence
from .cells import KEPT, Span, introduced_ratios, of_other_rows, ratios_of, step_rows
from .choices import chosen, parted
from .feeding import Feeding, in_beams
from .invariance import Judge, Matrix, Sequences, with_invariance
from .paths import cache_path
from .prompt import begun, left_padded, positions_of, tokens_of
from .result import Generation, Invariance, Step

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
    beams: int = 1,
    chunk: int = 0,
    draft: int = 0,
    invariance: bool = False,
    stored: bool = True,
    witness: str = "auto",
    command: str = "",
    progress: Progress | None = None,
    **setting: Any,
) -> list[Generation]:
    """The same for several candidates: the reference decodes once.

    `cache` is what each side keeps between steps: `dynamic`, `static`, or `none`, where all tokens
    so far are fed again. `beams` rows of a beam search, `chunk` tokens of the prompt at once, and
    `draft` tokens of an assistant are fed as feeding.py says; `invariance` also compares runs that
    should agree (invariance.py), and calls it drift where they do not. `stored=False` calibrates
    afresh; `witness` is where truth and yardsticks run. The `setting` is what `stage.Setting`
    takes: `blocks`, `trust_remote_code`, `batch`, `length` and `seed`.
    """
    feeding = Feeding(steps, cache, beams, chunk, draft)
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
        how = _How(feeding, blame, invariance, stored, witness)
        return _Generating(stage, prompt, terms, how, show).reports()


class DecodingBackend(Backend, Decodes):
    """A backend that can decode."""


def _decoding(backend: Backend, rewinds: bool) -> DecodingBackend:
    if not isinstance(backend, Decodes):
        raise BackendError(
            f"Backend {backend.spec} cannot decode step by step: it keeps no cache. torch, "
            "emulated and modules can."
        )
    if rewinds and not isinstance(backend, Rewinds):
        raise BackendError(
            f"Backend {backend.spec} can neither reorder nor cut what it keeps between steps, as "
            "beam search and drafted tokens need."
        )
    return cast(DecodingBackend, backend)


@dataclass(frozen=True)
class _How:
    feeding: Feeding
    blame: bool | str
    invariance: bool
    stored: bool
    witness: str


@dataclass(frozen=True, eq=False)
class _Side:
    """A backend, and what it gave: on the whole sequence at once, and step by step."""

    backend: DecodingBackend
    whole: Trace
    decoded: Trace


class _Generating:
    """One generation under way."""

    def __init__(
        self, stage: Stage, given: object, terms: Terms, how: _How, show: Progress
    ) -> None:
        self._stage, self._terms, self._how, self._show = stage, terms, how, show
        self._model = stage.torch_model
        feeding = how.feeding
        self._backends = tuple(_decoding(one, feeding.rewinds) for one in stage.backends)
        from driftwalk_backends.vocabulary import Vocabulary, max_positions, taken_by

        prompt = begun(stage.probe, given)
        name = tokens_of(prompt)
        self._takes = taken_by(self._model)
        prompt = left_padded(prompt, positions_of(name) in self._takes)
        self._vocabulary, self._most = Vocabulary(self._model), max_positions(self._model, name)
        length = prompt.inputs[name].shape[1]
        self._check_room(length)
        self._span = Span(length, feeding.steps)
        self._plan = feeding.plan(length)
        self._lines: dict[Side, list[Invariance]] = {}
        self._prompt, self._tokens = in_beams(prompt, feeding.beams), name

    def _check_room(self, length: int) -> None:
        """An error where the model has no positions for so many tokens."""
        most, steps = self._most, self._how.feeding.steps
        if most is not None and length + steps > most:
            raise UsageError(
                f"{length} tokens of prompt and {steps} steps are more than the {most} "
                f"positions that the model has; at most {max(0, most - length)} steps fit."
            )

    def reports(self) -> list[Generation]:
        first, *others = self._backends
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
        for backend in self._backends:
            backend.decode(None)

    def _generated(self, backend: DecodingBackend) -> Trace:
        """The reference's own decoding, and the sequence that it chose."""
        states: list[State] = []
        feeding, plan = self._how.feeding, self._plan
        if feeding.beams > 1 and isinstance(backend, Rewinds):
            inputs, beams = backend.search(self._prompt, plan, feeding.beams)
            self._plan = replace(plan, beams=beams)
        else:
            inputs = backend.generate(self._prompt, plan, states.append)
            if feeding.draft:
                self._plan = feeding.drafted(self._span.prompt, inputs[self._tokens])
        whole = Probe(inputs, self._prompt.origin, self._prompt.texts, others=self._prompt.others)
        whole = replace(whole, tokens=self._words(whole), kept=None)
        if feeding.rewinds:
            return self._traced(backend, whole, self._plan)
        return Trace(tuple(states), whole, backend.info)

    def _words(self, probe: Probe) -> tuple[tuple[str, ...], ...]:
        rows = probe.inputs[self._tokens].tolist()
        return tuple(self._vocabulary.texts(row) for row in rows)

    def _traced(self, backend: DecodingBackend, probe: Probe, plan: Decoding) -> Trace:
        backend.decode(plan)
        return backend.trace(probe)

    def _report(self, reference: _Side, backend: DecodingBackend, witness: Witness) -> Generation:
        probe = reference.decoded.probe
        if isinstance(backend, Prepares):
            backend.prepare(probe)
        with self._show.stage(f"candidate, all at once: {backend.spec}"):
            whole = self._traced(backend, probe, Decoding())
        with self._show.stage(f"candidate, step by step: {backend.spec}"):
            candidate = _Side(backend, whole, self._traced(backend, probe, self._plan))
        at_once = self._judged(reference.whole, candidate.whole, reference, candidate, witness)
        made = self._judged(reference.decoded, candidate.decoded, reference, candidate, witness)
        if self._how.blame is True or (self._how.blame == "auto" and made.verdict == "drift"):
            reference.backend.decode(self._plan)
            made = accuse(
                made, {"candidate": (backend, witness), "reference": (reference.backend, witness)}
            )
        found = self._assembled(reference, candidate, made, at_once, witness)
        if not self._how.invariance:
            return found
        with self._show.stage(f"invariance: {backend.spec}", extra=True):
            return with_invariance(found, self._invariance(found, reference, candidate, witness))

    def _judged(
        self, ours: Trace, theirs: Trace, reference: _Side, candidate: _Side, witness: Witness
    ) -> Report:
        """One pair of traces, compared and judged as `verify` does."""
        policy, terms, mine, judged = self._terms.policy, self._terms, None, None
        if policy.calibrated:
            mine, judged = witness.calibration(candidate.backend.info), witness.judged(ours)
            doubt = witness.doubt(candidate.backend.info) or witness.doubt(ours.backend)
            terms = replace(terms, doubt=doubt)
        if mine is None or judged is None:
            mine = judged = None
        # A side that feeds all tokens again in each step keeps nothing to compare.
        missing = tuple(f"*.{kind}" for kind in KEPT) if self._how.feeding.cache == "none" else ()
        walk = Walk(ours, theirs.backend, policy, missing, mine, judged)
        walk.meet_all(theirs, reference.backend)
        notes = (*self._stage.model.notes, *self._prompt.notes)
        terms = replace(terms, model=self._stage.model.describe(), notes=notes)
        return assemble(walk, ours, theirs.backend, terms, {})

    def _assembled(
        self, reference: _Side, candidate: _Side, made: Report, at_once: Report, witness: Witness
    ) -> Generation:
        span, info = self._span, candidate.backend.info
        calibration = witness.calibration(info) if self._terms.policy.calibrated else None
        at_fault = reference if made.at_fault == "reference" else candidate
        feeding, evidence = self._how.feeding, Evidence()
        if calibration is not None:
            evidence = Evidence(
                ratios_of(at_fault.decoded, calibration, made.layers),
                introduced_ratios(calibration, made.layers),
                of_other_rows(at_fault.decoded, calibration.truth, made.layers),
                feeding.beams,
            )
        ratios = evidence.ratios
        found = cause_of(made, at_once, evidence, span)
        sides = reference.decoded, candidate.decoded
        true = calibration.truth if calibration is not None else None
        allowed = made.layer("logits").tolerance
        notes = (*made.notes, *self._search_notes, *witness.notes(info), *witness.caution(info))
        return Generation(
            **head(made.command, made.model, dict.fromkeys(notes)),
            probe=made.probe,
            prompt=span.prompt,
            cache=feeding.cache,
            beams=feeding.beams,
            chunk=feeding.chunk,
            draft=feeding.draft,
            reference=made.reference,
            candidate=made.candidate,
            policy=made.policy,
            verdict=made.verdict,
            reason=made.reason,
            cause=found.cause,
            at_fault=made.at_fault,
            first_divergence=first_divergence(made, ratios, span),
            root_cause=found.root,
            culprit=made.culprit,
            explanation=found.sentence,
            parted=parted(sides, true, span, allowed, self._vocabulary.texts),
            steps=tuple(self._step(n, sides, made, ratios) for n in range(span.steps + 1)),
            layers=made.layers,
            whole=at_once.layers,
            cache_paths={
                "reference": cache_path(
                    reference.whole, reference.decoded, made.layers, "reference"
                ),
                "candidate": cache_path(
                    candidate.whole, candidate.decoded, made.layers, "candidate"
                ),
            },
            timings={
                "reference": dict(reference.backend.seconds),
                "candidate": dict(candidate.backend.seconds),
                "calibration": dict(witness.seconds),
            },
        )

    def _invariance(
        self, found: Generation, reference: _Side, candidate: _Side, witness: Witness
    ) -> Iterator[Invariance]:
        """Of both sides: the reference's once."""
        probe, feeding, span = reference.decoded.probe, self._how.feeding, self._span
        of_input = self._tokens, span.prompt, feeding.cache, feeding.chunk, self._takes
        calibrated = self._terms.policy.calibrated
        matrix = Matrix(Sequences(probe, *of_input), witness.truth if calibrated else None)
        shape = probe.inputs[self._tokens].shape
        sides: tuple[tuple[Side, _Side], ...] = (
            ("reference", reference),
            ("candidate", candidate),
        )
        for name, side in sides:
            if name not in self._lines or name == "candidate":
                known = witness.calibration(side.backend.info) if calibrated else None
                judge = Judge(name, found.layers, known, (shape[0], shape[1]))
                ready = {Decoding(): side.whole, self._plan: side.decoded}
                self._lines[name] = list(matrix.lines(side.backend, judge, ready))
            yield from self._lines[name]

    @property
    def _search_notes(self) -> tuple[str, ...]:
        """What a beam search did not show."""
        beams = self._plan.beams
        if beams is None or beams.reorders:
            return ()
        return ("No beam ever went on from another: whether caches are reordered was not seen.",)

    def _step(
        self, number: int, sides: tuple[Trace, Trace], made: Report, ratios: Mapping[str, Array]
    ) -> Step:
        choice = chosen(sides, number, self._span, sides[0].probe.inputs[self._tokens])
        return Step(
            number,
            choice.tokens,
            self._vocabulary.texts(choice.tokens),
            choice.margins,
            choice.flips,
            step_rows(number, self._span, sides, made.layers, ratios),
        )
