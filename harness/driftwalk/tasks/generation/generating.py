"""One generation under way: both sides decode, are judged, and the report is put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace

from ...adapter import BringsSteps, Prepares, Rewinds
from ...decoding import Decoding
from ...dtypes import Array
from ...environment import head
from ...errors import DriftwalkError, UsageError
from ...judge.accusation import accuse
from ...judge.walk import Walk
from ...judge.witness import Witness, witness_device
from ...layer_drift import Side
from ...make_report import Terms, assemble
from ...names import is_of_cache, is_output
from ...progress import Progress
from ...result import Report
from ...stage import Stage
from ...states import Probe, State, Trace
from .cause import Evidence, cause_of, first_divergence
from .cells import KEPT, Span, introduced_ratios, of_other_rows, ratios_of, step_rows
from .choices import chosen, parted
from .feeding import How, in_beams
from .invariance import Judge, Matrix, Sequences, with_invariance
from .patching import patched
from .paths import cache_path, check_causal, check_shapes, differ
from .prompt import (
    MASKS,
    TOLD,
    begun,
    cut_to,
    left_padded,
    positions_of,
    tokens_of,
    told_positions,
)
from .result import Generation, Invariance, Parted, Step
from .sides import (
    CLOSED,
    DecodedSide,
    DecodingBackend,
    decoding_side,
    is_closed,
    refuse_closed,
)

ROUNDED = (
    "Both sides round what they keep: the allowance is that of plain eager PyTorch on such a cache."
)


class _CountsFromZeroError(Exception):
    """The model must be told its positions."""


class Generating:
    """One generation under way."""

    def __init__(self, stage: Stage, given: object, terms: Terms, how: How, show: Progress) -> None:
        self._stage, self._terms, self._how, self._show = stage, terms, how, show
        self._model = stage.torch_model
        feeding = how.feeding
        self._backends = tuple(decoding_side(one, feeding.rewinds) for one in stage.backends)
        from driftwalk_backends.caches import given_past
        from driftwalk_backends.vocabulary import Vocabulary, max_positions, taken_by

        recorded = None
        if given is None:  # what a recording brings is the whole sequence
            brought = (one.own_steps for one in stage.backends if isinstance(one, BringsSteps))
            recorded = next(filter(None, brought), None)
        if recorded is None:
            prompt = begun(stage.probe, given)
        else:
            prompt = cut_to(stage.probe, recorded.chunks[0])
        name = tokens_of(prompt)
        self._takes = taken_by(self._model)
        takes = positions_of(name) in self._takes
        prompt = left_padded(prompt, takes)
        self._vocabulary, self._most = Vocabulary(self._model), max_positions(self._model, name)
        length = prompt.inputs[name].shape[1]
        past = given_past(self._model, prompt, name, MASKS[name])
        if past and (feeding.cache == "none" or feeding.rewinds):
            raise UsageError(
                "The tokens of a given cache are not known, so that they cannot be fed again: "
                "neither cache='none' nor beams nor drafts go on from one."
            )
        if recorded is not None and how.any_steps:
            feeding = replace(feeding, steps=len(recorded.chunks) - 1)
            self._how = replace(how, feeding=feeding)
        self._check_room(past + length)
        self._notes: tuple[str, ...] = ()
        self._may_tell = takes and not past and positions_of(name) not in prompt.inputs
        self._span = Span(length, feeding.steps, past)
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
        try:
            return self._reports()
        except _CountsFromZeroError:
            self._may_tell, self._prompt = False, told_positions(self._prompt)
            self._notes = (TOLD,)
            return self._reports()

    def _reports(self) -> list[Generation]:
        first, *others = self._backends
        with ExitStack() as opened:
            opened.callback(self._restore)
            for backend in self._backends:
                backend.decode(self._plan)  # refuses now what it cannot do
            refuse_closed(first)
            with self._show.stage(f"reference: {first.spec}"):
                decoded = self._generated(first)
            self._model.decoding = Decoding()
            probe = decoded.probe
            reference = DecodedSide(first, self._at_once(first, probe), decoded)
            if reference.whole is not None:
                check_shapes(reference.whole, decoded)
                self._model.evidence.offer(first, reference.whole)
            place = witness_device(self._how.witness, self._stage.backends)
            given = self._model, probe, self._how.stored, self._show, "block", place, "", True
            witness = Witness(*given)
            opened.callback(witness.close)
            # What sides round on purpose when they keep it, their yardstick rounds as well.
            rounds = self._how.feeding.cache == "quantized"
            of_steps = witness.rounding(self._plan) if rounds else witness
            self._notes += (ROUNDED,) if rounds else ()
            return [self._report(reference, one, witness, of_steps) for one in others]

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
            made = self._traced(backend, whole, self._plan)
            return replace(made, decoding=self._plan)
        return Trace(tuple(states), whole, backend.info, decoding=self._plan)

    def _words(self, probe: Probe) -> tuple[tuple[str, ...], ...]:
        rows = probe.inputs[self._tokens].tolist()
        return tuple(self._vocabulary.texts(row) for row in rows)

    def recorded(self) -> Trace:
        """What the only side gives, by its own choices."""
        with ExitStack() as opened:
            opened.callback(self._restore)
            return self._generated(self._backends[0])

    def _at_once(self, backend: DecodingBackend, probe: Probe) -> Trace | None:
        """A run on the whole sequence; None of a recording that has none."""
        if isinstance(backend, BringsSteps) and not backend.has_whole:
            return None
        return self._traced(backend, probe, Decoding())

    def _traced(self, backend: DecodingBackend, probe: Probe, plan: Decoding) -> Trace:
        backend.decode(plan)
        return backend.trace(probe)

    def _report(
        self, reference: DecodedSide, backend: DecodingBackend, witness: Witness, of_steps: Witness
    ) -> Generation:
        probe = reference.decoded.probe
        if isinstance(backend, Prepares):
            backend.prepare(probe)
        with self._show.stage(f"candidate, all at once: {backend.spec}"):
            whole = self._at_once(backend, probe)
        with self._show.stage(f"candidate, step by step: {backend.spec}"):
            candidate = DecodedSide(backend, whole, self._traced(backend, probe, self._plan))
        made = self._judged(reference.decoded, candidate.decoded, reference, candidate, of_steps)
        at_once = None
        if reference.whole is not None or candidate.whole is not None:
            # The states of all steps, joined, are those of one run: they stand in for it.
            ours, theirs = (side.whole or side.decoded for side in (reference, candidate))
            at_once = self._judged(ours, theirs, reference, candidate, witness)
        if made.verdict == "drift" and made.at_fault != "candidate":
            self._check_reference(reference, made)
        wanted = self._how.blame is True or (self._how.blame == "auto" and made.verdict == "drift")
        if wanted and not is_closed(backend):
            reference.backend.decode(self._plan)
            made = accuse(
                made, {"candidate": (backend, of_steps), "reference": (reference.backend, of_steps)}
            )
        found = self._assembled(reference, candidate, made, at_once, of_steps)
        if not self._how.invariance:
            return found
        with self._show.stage(f"invariance: {backend.spec}", extra=True):
            return with_invariance(found, self._invariance(found, reference, candidate, witness))

    def _check_reference(self, reference: DecodedSide, made: Report) -> None:
        """Where the reference is at fault: is it the model itself, and not its decoding?"""
        backend, probe = reference.backend, reference.decoded.probe
        if reference.whole is None or isinstance(backend, BringsSteps) or self._span.past:
            return
        path = cache_path(reference.whole, reference.decoded, made.layers, "reference")
        if self._may_tell and path.agreement == "broken":
            told = self._traced(backend, told_positions(probe), self._plan)
            if differ(told, reference.decoded):
                raise _CountsFromZeroError
        bare = self._traced(backend, probe, Decoding(cache="none"))
        check_causal(reference.whole, bare, made.layers)

    def _judged(
        self,
        ours: Trace,
        theirs: Trace,
        reference: DecodedSide,
        candidate: DecodedSide,
        witness: Witness,
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
        missing = self._how.missing
        missing += tuple(f"*.{kind}" for kind in KEPT) if self._how.feeding.cache == "none" else ()
        closed: tuple[str, ...] = ()
        if is_closed(candidate.backend):
            closed = (CLOSED.format(candidate.backend.spec),)
            missing += tuple(n for n in ours.names if not is_output(n) and not is_of_cache(n))
        walk = Walk(ours, theirs.backend, policy, missing, mine, judged)
        walk.meet_all(theirs, reference.backend)
        notes = (*self._stage.model.notes, *self._prompt.notes, *self._notes, *closed)
        terms = replace(terms, model=self._stage.model.describe(), notes=notes)
        return assemble(walk, ours, theirs.backend, terms, {})

    def _assembled(
        self,
        reference: DecodedSide,
        candidate: DecodedSide,
        made: Report,
        at_once: Report | None,
        witness: Witness,
    ) -> Generation:
        span, info = self._span, candidate.backend.info
        calibration = witness.calibration(info) if self._terms.policy.calibrated else None
        at_fault = reference if made.at_fault == "reference" else candidate
        sides = reference.decoded, candidate.decoded
        ratios = ratios_of(sides, at_fault.decoded, calibration, made.layers)
        introduced: dict[str, Array] = {}
        if made.root_cause is not None:
            blaming = witness.calibration(at_fault.backend.info)
            if blaming is not None:
                given = witness.truth, at_fault.decoded, blaming, made.layers
                introduced = introduced_ratios(*given)
        known = at_once if at_fault.whole is not None else None
        mixed: frozenset[str] = frozenset()
        if calibration is not None:
            mixed = of_other_rows(at_fault.decoded, calibration.truth, made.layers)
        feeding = self._how.feeding
        found = cause_of(made, known, Evidence(ratios, introduced, mixed, feeding.beams), span)
        true = calibration.truth if calibration is not None else None
        allowed = made.layer("logits").tolerance
        where = parted(sides, true, span, allowed, self._vocabulary.texts)
        unpatched: tuple[str, ...] = ()
        if where is not None and not where.tie and self._how.patch:
            where, unpatched = self._patched(where, reference, candidate)
        told = *self._search_notes, *witness.notes(info), *witness.caution(info)
        notes = (*made.notes, *told, *unpatched)
        if found.cause is not None and known is None:
            notes += (
                f"{at_fault.backend.spec} has no run on the whole sequence, so that the cause is "
                "told by the prompt: wrong there is the backend, later the cache. `whole=FOLDER` "
                "in its spec names a trace of one.",
            )
        return Generation(
            **head(made.command, made.model, dict.fromkeys(notes)),
            probe=made.probe,
            prompt=span.prompt,
            ids=tuple(map(tuple, reference.decoded.probe.inputs[self._tokens].tolist())),
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
            parted=where,
            steps=tuple(self._step(n, sides, made, ratios) for n in range(span.steps + 1)),
            layers=made.layers,
            whole=at_once.layers if at_once is not None and candidate.whole is not None else (),
            cache_paths={
                name: cache_path(side.whole, side.decoded, made.layers, name)
                for name, side in self._named(reference, candidate)
                if side.whole is not None
            },
            timings={
                "reference": dict(reference.backend.seconds),
                "candidate": dict(candidate.backend.seconds),
                "calibration": dict(witness.seconds),
            },
        )

    def _invariance(
        self, found: Generation, reference: DecodedSide, candidate: DecodedSide, witness: Witness
    ) -> Iterator[Invariance]:
        """Of both sides: the reference's once; a recording cannot be run in another way."""
        probe, feeding, span = reference.decoded.probe, self._how.feeding, self._span
        of_input = self._tokens, span.prompt, feeding.cache, feeding.chunk, self._takes
        calibrated = self._terms.policy.calibrated
        matrix = Matrix(Sequences(probe, *of_input), witness.truth if calibrated else None)
        shape = probe.inputs[self._tokens].shape
        for name, side in self._named(reference, candidate):
            if side.whole is None or isinstance(side.backend, BringsSteps):
                continue
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

    def _patched(
        self, where: Parted, reference: DecodedSide, candidate: DecodedSide
    ) -> tuple[Parted, tuple[str, ...]]:
        """Which layer's drift it was; what cannot be done costs a note, not the report."""
        end = self._span.prompt + where.step
        given = reference.decoded, candidate.backend, self._plan, end, self._show
        try:
            return replace(where, patching=patched(*given)), ()
        except (DriftwalkError, MemoryError) as error:
            return where, (f"Patching was not possible: {error}",)

    @staticmethod
    def _named(
        reference: DecodedSide, candidate: DecodedSide
    ) -> tuple[tuple[Side, DecodedSide], ...]:
        return ("reference", reference), ("candidate", candidate)

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
            choice.theirs,
            self._vocabulary.texts(choice.theirs),
        )
