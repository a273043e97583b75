"""The third witness at work: calibration for a candidate, and blame when something drifted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from ..adapter import Backend, BackendInfo, BringsModel
from ..cache import key_of
from ..dtypes import FORMATS
from ..errors import BackendError, DriftwalkError
from ..measure.norms import Norms, ratio
from ..mixture import Mixture
from ..names import layer_of
from ..progress import Progress
from ..registry import create
from ..states import Probe, Trace
from .calibrate import Calibration, calibrate, open_yardstick
from .calibration_cache import stored_calibration
from .conditioning import EXAMINED_AT
from .drill import introduced, look, looking
from .honest import Honest
from .sides import JudgedSide

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel

CACHE_VERSION = "9"

PART_LIMIT = 0.01
"""How far, relatively, a part of a quantised model may be off what its whole numbers give."""

PLAIN_TRUTH = "truth,casts=kept"
PLAIN_NOTE = (
    "The truth is a plain float64 copy of the model, which keeps the model's own casts to float32"
)

OWN_MODEL = (
    "The candidate is quantised: its allowance is that of the same model, quantised alike by "
    "driftwalk; all other numbers are differences to the reference."
)

NO_YARDSTICK = (
    "The candidate is quantised in a way that driftwalk cannot repeat, and so without a yardstick: "
    "it was held to what its float dtype allows. See docs/onnx.md."
)


ComputesIn = str | BackendInfo | Mixture
"""A dtype, or the dtypes of a side, point by point."""


class Witness:
    """Makes calibrations for one model and probe, each once, and keeps an account of the cost."""

    def __init__(
        self,
        model: LoadedModel,
        probe: Probe,
        use_cache: bool,
        show: Progress,
        depth: str = "block",
    ) -> None:
        self._model = model
        self.probe = probe
        self._use_cache = use_cache
        self._show = show
        self._depth = depth
        self._known: dict[str, Calibration | None] = {}
        self._truth: Backend | None = None
        self._notes: dict[str, list[str]] = {}
        self._others: list[Witness] = []
        self._judged: tuple[Trace, JudgedSide] | None = None
        self.has_own_model = False
        """Whether it speaks for what one candidate computes on purpose, not for the reference."""
        self.seconds: dict[str, float] = {}

    def of(self, candidate: Backend) -> Witness:
        """The witness for a candidate: one of its own where it computes another model."""
        own = candidate.honest_model() if isinstance(candidate, BringsModel) else None
        if own is None:
            return self
        made = Witness(own, self.probe, self._use_cache, self._show, self._depth)
        made.has_own_model = True
        made.note(candidate.info, OWN_MODEL)
        self._others.append(made)
        return made

    def calibration(self, computes_in: ComputesIn) -> Calibration | None:
        """The calibration for a side that computes in a dtype, or in the dtypes of a backend.

        None where there is none that can be trusted: then `doubt` says why, or, where none could be
        made at all, a note does.
        """
        known = self._known_for(computes_in)
        return known if known is not None and not self.doubt(computes_in) else None

    def judged(self, reference: Trace) -> JudgedSide | None:
        """The reference, held against the truth; None where it has no calibration.

        The run that is the evidence for a stored calibration was measured when it was stored.
        """
        known = self.calibration(reference.backend)
        if known is None:
            return None
        if self._judged is None or self._judged[0] is not reference:
            made = JudgedSide("reference", known)
            evidence = self._model.evidence.trace(self.probe, known.dtype)
            if evidence is reference and known.model_errors and not known.tied:
                made.errors.update(known.model_errors)
            else:
                made.meet_all(reference)
            self._judged = reference, made
        return self._judged[1]

    def doubt(self, computes_in: ComputesIn) -> str:
        """Why the truth cannot be trusted for such a side; empty where it can."""
        if self.has_own_model:  # in whole numbers a roundoff may tip a whole step over
            return ""
        both = self._known_for(EXAMINED_AT), self._known_for(computes_in)
        return next((known.doubt for known in both if known is not None and known.doubt), "")

    def _known_for(self, computes_in: ComputesIn) -> Calibration | None:
        mixture = Mixture.of(computes_in)
        key = str(mixture)
        if key != EXAMINED_AT and not self.has_own_model:
            self._known_for(EXAMINED_AT)  # the examination may find another truth
        if key not in self._known:
            start = time.perf_counter()
            try:
                self._known[key] = self._calibrate(mixture)
            except (DriftwalkError, MemoryError) as error:
                self._known[key] = None
                self.note(key, f"No calibration was possible, so the dtype table decided: {error}")
            self.seconds[key] = time.perf_counter() - start
            self._keep_to(self._known[key])
            if (made := self._known[key]) is not None and made.ties:
                self.note(key, made.ties)
        return self._known[key]

    def _keep_to(self, known: Calibration | None) -> None:
        """Where a stored calibration has a plain truth, blame and other dtypes have it, too."""
        plain = known is not None and known.truth.backend.spec == PLAIN_TRUTH
        if plain and (self._truth is None or str(self._truth.spec) != PLAIN_TRUTH):
            if self._truth is not None:
                self._truth.close()
            self._truth = create(PLAIN_TRUTH, self._model)
            look(self._truth, self._depth)

    def introduced(self, candidate: Backend, known: Calibration) -> dict[str, Norms]:
        """By how much the parts of each layer are off, each given what the candidate gave it.

        In units in which the limit of a layer is what one of its parts may be off: between the
        parts a rounding may tip over, inside one there is nothing to tip.
        """
        with looking(candidate, "module"), looking(self.truth, "module"):
            found = introduced(self.truth, candidate.trace(self.probe))
        worst: dict[str, float] = {}
        for name, part in found.items():
            layer = layer_of(name)
            if layer is not None:
                off = ratio(part.error.l2, part.scale.l2)
                worst[layer] = max(worst.get(layer, 0.0), off)
        return {
            layer: known.allowed_own(layer).scaled(off / PART_LIMIT) for layer, off in worst.items()
        }

    def notes(self, computes_in: ComputesIn) -> tuple[str, ...]:
        """What is to be said about candidates of these dtypes, and of no other."""
        return tuple(self._notes.get(str(Mixture.of(computes_in)), ()))

    def caution(self, candidate: BackendInfo) -> tuple[str, ...]:
        """What is to be said about one candidate alone."""
        alone = "quantised" in candidate.flags and not self.has_own_model
        return (NO_YARDSTICK,) if alone else ()

    def note(self, computes_in: ComputesIn, text: str) -> None:
        """Have something said in reports about sides of these dtypes."""
        self._notes.setdefault(str(Mixture.of(computes_in)), []).append(text)

    def _calibrate(self, mixture: Mixture) -> Calibration:
        if mixture.dtype not in FORMATS:
            raise BackendError(f"there is no yardstick for dtype {mixture.dtype!r}.")
        dtype = str(mixture)

        spent: list[str] = []

        def make() -> Calibration:
            yardstick = open_yardstick(mixture, self._model)
            stage = self._show.stage(f"calibrating: truth and {yardstick.spec}", extra=True)
            with stage, yardstick, looking(yardstick, self._depth):
                made = self._second_opinion(
                    yardstick, calibrate(self.truth, yardstick, self.probe, self._exact)
                )
            if self.has_own_model:
                made = _pooled(made)
            if (evidence := self._model.evidence.trace(self.probe, dtype)) is not None:
                made = replace(made, model_errors=_errors(evidence, made))
            seconds = {"truth": self.truth.seconds, "yardstick": yardstick.seconds}
            spent.extend(f"{name} {sum(s.values()):.2g} s" for name, s in seconds.items())
            return made

        known, kept = self._stored(dtype, make)
        if spent:
            self.note(dtype, f"Calibration for {dtype} was computed: {', '.join(spent)}; {kept}.")
        return known

    def _stored(self, dtype: str, make: Callable[[], Calibration]) -> tuple[Calibration, str]:
        """The calibration, stored or made now, and what became of one that was made."""
        model, probe = self._model, self.probe
        evidence = model.evidence.of(probe, dtype) if self._stores else ""
        if not evidence:
            return make(), "not stored"
        key = key_of(
            CACHE_VERSION,
            model.fingerprint,
            probe.sha256,
            dtype,
            self._depth,
            model.arithmetic,
            str(model.versions),
            model.blocks or "",
        )
        return stored_calibration(key, probe, evidence, make)

    @property
    def _exact(self) -> Trace | None:
        """What the truth gave, where it was asked before."""
        known = (known for known in self._known.values() if known is not None)
        return next((one.truth for one in known), None)

    @property
    def _stores(self) -> bool:
        # Code of unknown version can change under an unchanged name.
        return self._use_cache and self._model.has_known_code

    def _second_opinion(self, yardstick: Backend, made: Calibration) -> Calibration:
        """Where the widened truth computes something else, a plain float64 copy may not."""
        if not made.doubt or made.dtype != EXAMINED_AT:
            return made
        plain = create(PLAIN_TRUTH, self._model)
        look(plain, self._depth)
        try:
            other = calibrate(plain, yardstick, self.probe)
        except DriftwalkError:
            other = made
        if other.doubt:
            plain.close()
            return made
        self.note(made.mixture, f"{PLAIN_NOTE}: otherwise {made.doubt}.")
        self.truth.close()
        self._truth = plain
        return other

    @property
    def truth(self) -> Backend:
        """The float64 model, made when first needed."""
        if self._truth is None:
            self._truth = create("truth", self._model)
            look(self._truth, self._depth)
        return self._truth

    def yardstick(self, known: Calibration) -> Backend:
        """Plain eager PyTorch in the dtypes of a calibration, to look closer with."""
        return open_yardstick(known.mixture, self._model)

    def stage(self, text: str) -> AbstractContextManager[None]:
        """Show that something is being done that was not counted on."""
        return self._show.stage(text, extra=True)

    def close(self) -> None:
        for other in self._others:
            other.close()
        if self._truth is not None:
            self._truth.close()


def _errors(trace: Trace, known: Calibration) -> dict[str, Norms]:
    side = JudgedSide("reference", known)
    side.meet_all(trace)
    return side.errors


def _pooled(known: Calibration) -> Calibration:
    """Every layer allowed, for its size, what the noisiest is.

    In a quantised model a rounding tips over by chance, here or there: that none did in a layer of
    the yardstick does not mean that none may.
    """

    names = [f.name for f in fields(Norms)]

    def pooled(points: Mapping[str, Honest]) -> dict[str, Honest]:
        layers = [point for point in points if layer_of(point)]

        def worst(name: str) -> float:
            found = (points[p] for p in layers)
            shares = (ratio(getattr(h.noise, name), getattr(h.size, name)) for h in found)
            return max(shares, default=0.0)

        share = Norms(**{name: worst(name) for name in names})

        def at_least(one: Honest) -> Honest:
            floor = share.times(one.size)
            most = {n: max(getattr(one.noise, n), getattr(floor, n)) for n in names}
            return replace(one, noise=Norms(**most))

        return {p: at_least(one) if p in layers else one for p, one in points.items()}

    return replace(known, total=pooled(known.total), own=pooled(known.own))
