"""`driftwalk.generate`: a prompt, the steps after it, two sides, one report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

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
from ...stage import Setting, Stage, is_graph, open_stage
from ...states import Probe, State, Trace
from ...tolerance import DEFAULT_POLICY, PolicyLike, make_policy
from .cause import Evidence, cause_of, first_divergence
from .cells import KEPT, Span, introduced_ratios, of_other_rows, ratios_of, step_rows
from .choices import chosen, parted
from .feeding import Feeding, How, in_beams
from .invariance import Judge, Matrix, Sequences, with_invariance
from .patching import patched
from .paths import cache_path
from .prompt import begun, cut_to, left_padded, positions_of, tokens_of
from .result import Generation, Invariance, Parted, Step
from .sides import (
    CLOSED,
    DecodedSide,
    DecodingBackend,
    decoding_side,
    is_closed,
    refuse_closed,
)

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

    `cache` is what each side keeps between steps: `dynamic`, `static`, or `none`, where all tokens
    so far are fed again. `beams` rows of a beam search, `chunk` tokens of the prompt at once, and
    `draft` tokens of an assistant are fed as feeding.py says; `invariance` also compares runs that
    should agree (invariance.py), and calls it drift where they do not. `allow_missing` are patterns
    of points that a candidate need not have: `*.key` of one that does not show its cache. `patch`
    finds the layer whose drift parts the two sides: one more decoding for each point, up to that
    step. `stored=False` calibrates afresh; `witness` is where truth and yardsticks run. The
    `setting` is what `stage.Setting` takes: `blocks`, `trust_remote_code`, `batch`, `length` and
    `seed`.
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
    with open_stage(Setting(model, prompt, **setting), sides, "block", show) as stage:
        missing = tuple(allow_missing)
        how = How(feeding, blame, invariance, stored, witness, missing, patch, steps is None)
        return Generating(stage, prompt, terms, how, show).reports()


class Generating:
    """One generation under way."""

    def __init__(self, stage: Stage, given: object, terms: Terms, how: How, show: Progress) -> None:
        self._stage, self._terms, self._how, self._show = stage, terms, how, show
        self._model = stage.torch_model
        feeding = how.feeding
        self._backends = tuple(decoding_side(one, feeding.rewinds) for one in stage.backends)
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
        prompt = left_padded(prompt, positions_of(name) in self._takes)
        self._vocabulary, self._most = Vocabulary(self._model), max_positions(self._model, name)
        length = prompt.inputs[name].shape[1]
        if recorded is not None and how.any_steps:
            feeding = replace(feeding, steps=len(recorded.chunks) - 1)
            self._how = replace(how, feeding=feeding)
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
            for backend in self._backends:
                backend.decode(self._plan)  # refuses now what it cannot do
            refuse_closed(first)
            with self._show.stage(f"reference: {first.spec}"):
                decoded = self._generated(first)
            self._model.decoding = Decoding()
            probe = decoded.probe
            reference = DecodedSide(first, self._at_once(first, probe), decoded)
            if reference.whole is not None:
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
        self, reference: DecodedSide, backend: DecodingBackend, witness: Witness
    ) -> Generation:
        probe = reference.decoded.probe
        if isinstance(backend, Prepares):
            backend.prepare(probe)
        with self._show.stage(f"candidate, all at once: {backend.spec}"):
            whole = self._at_once(backend, probe)
        with self._show.stage(f"candidate, step by step: {backend.spec}"):
            candidate = DecodedSide(backend, whole, self._traced(backend, probe, self._plan))
        made = self._judged(reference.decoded, candidate.decoded, reference, candidate, witness)
        at_once = None
        if reference.whole is not None or candidate.whole is not None:
            # The states of all steps, joined, are those of one run: they stand in for it.
            ours, theirs = (side.whole or side.decoded for side in (reference, candidate))
            at_once = self._judged(ours, theirs, reference, candidate, witness)
        wanted = self._how.blame is True or (self._how.blame == "auto" and made.verdict == "drift")
        if wanted and not is_closed(backend):
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
        notes = (*self._stage.model.notes, *self._prompt.notes, *closed)
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
