"""The third witness at work: calibration for a candidate, and blame when something drifted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from ..adapter import (
    Backend,
    BackendInfo,
    BreaksTies,
    BringsModel,
    BringsTruth,
    Decodes,
    LooksInside,
)
from ..decoding import Decoding
from ..dtypes import FORMATS
from ..errors import BackendError, DriftwalkError, UsageError
from ..formats import Declared, HonestSides
from ..measure.norms import Norms
from ..mixture import Mixture
from ..progress import Progress
from ..registry import create
from ..states import Probe, Trace
from .calibrate import Calibration, Keep, calibrate, open_yardstick
from .calibration_cache import stored_calibration
from .cautions import cautions
from .conditioning import EXAMINED_AT
from .constants import FINE_ROUNDOFF
from .drill import clearly_wrong, look, looking
from .exact import ByChance
from .parts import by_parts, used_by_parts
from .pooling import pooled
from .replay import introduced_errors
from .sides import JudgedSide, errors_of

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel

CACHE_VERSION = "27"

KEPT_CASTS = ",casts=kept"
"""What makes a truth a plain float64 copy."""
PLAIN_NOTE = (
    "The truth is a plain float64 copy of the model, which keeps the model's own casts to float32"
)

OWN_MODEL = (
    "The candidate is quantised: its allowance is that of the same model, quantised alike by "
    "driftwalk; all other numbers are differences to the reference."
)

ComputesIn = str | BackendInfo | Mixture
"""A dtype, or the dtypes of a side, point by point."""


def witness_device(asked: str, sides: Iterable[Backend]) -> str:
    """Where truth and yardsticks run: where it was said, or, for `auto`, on the GPU of a side."""
    kind = asked.partition(":")[0]
    if kind not in ("auto", "cpu", "cuda"):
        raise UsageError(f"witness={asked!r}: expected cpu, cuda, or auto (where a side runs).")
    if kind != "auto":
        return asked
    devices = (side.info.device for side in sides)
    return next((device for device in devices if device.startswith("cuda")), "cpu")


class Witness:
    """Makes calibrations for one model and probe, each once, and keeps an account of the cost.

    It runs on a `device`; what a GPU fails at is done on the CPU. `ranges` are options that have
    truth and yardsticks run on several machines, as a side does.
    """

    def __init__(
        self,
        model: LoadedModel,
        probe: Probe,
        use_cache: bool,
        show: Progress,
        depth: str = "block",
        device: str = "cpu",
        ranges: str = "",
        looks_inside: bool = True,
    ) -> None:
        self._model = model
        # A GPU draws other random numbers than the CPU, and in float64 others than in float32.
        self._device = "cpu" if model.drawing else device
        self._ranges = ranges if self._device == "cpu" else ""
        self.probe = probe
        self._use_cache = use_cache
        self._show = show
        self._depth = depth
        self.looks_inside = looks_inside
        """Whether memory has room for what the modules of all layers give, at once."""
        self._calibrations: dict[str, Calibration | None] = {}
        self._truth: Backend | None = None
        self._notes: dict[str, list[str]] = {}
        self._others: list[Witness] = []
        self._judged: tuple[Trace, JudgedSide] | None = None
        self.has_own_model = False
        """Whether it speaks for what one candidate computes on purpose, not for the reference."""
        self.sides: HonestSides | None = None
        self.declared: Declared | None = None
        """What that candidate declares of its weights, where it is quantised."""
        self.seconds: dict[str, float] = {}
        self._rounding: Decoding | None = None
        self._exact_witness: Witness | None = None

    def rounding(self, plan: Decoding) -> Witness:
        """The witness for sides that round what they keep on purpose, as the plan declares.

        The truth is the same; the yardstick decodes by the plan, so that its error has the rounding
        in it. Whether the truth is to be trusted is for this witness to say, without the rounding.
        """
        made = Witness(self._model, self.probe, False, self._show, self._depth, self._device)
        made._rounding, made._exact_witness = plan, self
        self._others.append(made)
        return made

    def of(self, candidate: Backend) -> Witness:
        """The witness for a candidate: one of its own where it computes another model."""
        own = candidate.honest_model() if isinstance(candidate, BringsModel) else None
        given = self.probe, self._use_cache, self._show, self._depth, self._device
        if own is not None:
            made = Witness(own, *given, looks_inside=self.looks_inside)
            made.declared = own.declared
        elif isinstance(candidate, BringsTruth) and (sides := candidate.honest_sides()):
            made = Witness(self._model, *given, looks_inside=self.looks_inside)
            made.sides, made._use_cache = sides, False
            made.declared = sides.declared
        else:
            return self
        made.has_own_model = True
        made.note(candidate.info, OWN_MODEL)
        self._others.append(made)
        return made

    @property
    def tips(self) -> bool:
        """Whether a roundoff may tip a whole step over in what it speaks for."""
        return self.has_own_model and (self.declared is None or self.declared.tips)

    @property
    def many_tip(self) -> bool:
        """Whether that may happen to many numbers of one part, so that no limit of few holds."""
        declared = self.declared
        return self.tips and (declared is None or declared.many_tip) and not self._both_ways

    @property
    def _both_ways(self) -> bool:
        return bool(self.declared and self.declared.half_way) and isinstance(self.truth, BreaksTies)

    def calibration(self, computes_in: ComputesIn) -> Calibration | None:
        """The calibration for a side that computes in a dtype, or in the dtypes of a backend.

        None where there is none that can be trusted: then `doubt` says why, or, where none could be
        made at all, a note does.
        """
        calibration = self._calibration_for(computes_in)
        return calibration if calibration is not None and not self.doubt(computes_in) else None

    def judged(self, reference: Trace) -> JudgedSide | None:
        """The reference, held against the truth; None where it has no calibration.

        The run that is the evidence for a stored calibration was measured when it was stored.
        """
        calibration = self.calibration(reference.backend)
        if calibration is None:
            return None
        if self._judged is None or self._judged[0] is not reference:
            made = JudgedSide("reference", calibration)
            evidence = self._evidence(calibration.dtype)
            if evidence is reference and calibration.model_errors and not calibration.tied:
                made.errors.update(calibration.model_errors)
            else:
                made.meet_all(reference)
            self._judged = reference, made
        return self._judged[1]

    def by_chance(self, computes_in: ComputesIn) -> ByChance:
        """What honest arithmetic changes in one jump, be the rest in doubt or not."""
        made = self._calibration_for(computes_in)
        return made.by_chance if made is not None else ByChance()

    def doubt(self, computes_in: ComputesIn) -> str:
        """Why the truth cannot be trusted for such a side; empty where it can."""
        if self.tips:
            return ""
        if self._exact_witness is not None:
            return self._exact_witness.doubt(computes_in)
        both = self._calibration_for(EXAMINED_AT), self._calibration_for(computes_in)
        return next((one.doubt for one in both if one is not None and one.doubt), "")

    def _calibration_for(self, computes_in: ComputesIn) -> Calibration | None:
        mixture = Mixture.of(computes_in)
        key = str(mixture)
        if key != EXAMINED_AT and not self.tips and self._rounding is None:
            self._calibration_for(EXAMINED_AT)  # the examination may find another truth
        if key not in self._calibrations:
            start = time.perf_counter()
            self._calibrations[key] = self._tried(mixture)
            self.seconds[key] = time.perf_counter() - start
            self._keep_to(self._calibrations[key])
            if (made := self._calibrations[key]) is not None and made.ties:
                self.note(key, made.ties)
        return self._calibrations[key]

    def _tried(self, mixture: Mixture) -> Calibration | None:
        """A calibration made here, or on the CPU; None, and a note, where neither can."""
        try:
            return self._calibrate(mixture)
        except (DriftwalkError, MemoryError) as error:
            if self._device == "cpu":
                text = f"No calibration was possible, so the dtype table decided: {error}"
                self.note(mixture, text)
                return None
            self.note(mixture, f"Truth and yardstick ran on the CPU: on {self._device}, {error}")
        self.close()
        self._truth, self._judged, self._device = None, None, "cpu"
        self._calibrations.clear()  # of one run, all from one device
        return self._calibration_for(mixture)

    def _keep_to(self, calibration: Calibration | None) -> None:
        """Where a stored calibration has a plain truth, blame and other dtypes have it, too."""
        if calibration is None or not calibration.truth.backend.spec.endswith(KEPT_CASTS):
            return
        if self._truth is None or not str(self._truth.spec).endswith(KEPT_CASTS):
            if self._truth is not None:
                self._truth.close()
            self._truth = self._open_truth(KEPT_CASTS)

    def introduced(self, candidate: Backend, calibration: Calibration) -> dict[str, Norms]:
        """By how much the parts of each layer are off, each given what the candidate gave it.

        In units in which the limit of a layer is what one of its parts may be off (parts.py). Where
        nothing is rounded while it runs, layers are judged whole, as ever.
        """
        if not self.tips:
            return introduced_errors(self.truth, candidate.trace(self.probe), calibration.own_error)
        found, own = by_parts(self.truth, candidate, self.probe, self._both_ways), {}
        if self.many_tip or calibration.roundoff > FINE_ROUNDOFF:
            with self.stage("the parts of layers"), self.yardstick(calibration) as yardstick:
                if isinstance(yardstick, LooksInside):
                    own = by_parts(self.truth, yardstick, self.probe, self._both_ways)
        products = self.declared.saved if self.declared is not None else ()
        used = used_by_parts(found, calibration.roundoff, not self.many_tip, own, products)
        return {name: calibration.allowed_own(name).scaled(times) for name, times in used.items()}

    def clearly_wrong(self, candidate: Backend, points: Iterable[str]) -> dict[str, float]:
        """Points inside whose layer the candidate has a module that is clearly wrong."""
        calibration = self.calibration(candidate.info)
        sides = candidate, self.truth
        if calibration is None or not all(isinstance(side, LooksInside) for side in sides):
            return {}
        try:
            with (
                self.stage("a closer look at layers that differ"),
                self.yardstick(calibration) as yardstick,
            ):
                both = self.truth, yardstick
                return clearly_wrong(*both, candidate, self.probe, calibration, points)
        except Exception as error:  # a backend may raise anything when asked for more
            self.note(calibration.mixture, f"Could not look inside layers that differ: {error}")
            return {}

    def notes(self, computes_in: ComputesIn) -> tuple[str, ...]:
        """What is to be said about candidates of these dtypes, and of no other."""
        return tuple(self._notes.get(str(Mixture.of(computes_in)), ()))

    def caution(self, candidate: BackendInfo) -> tuple[str, ...]:
        """What is to be said about one candidate alone."""
        return cautions(candidate, self.has_own_model)

    def note(self, computes_in: ComputesIn, text: str) -> None:
        """Have something said in reports about sides of these dtypes."""
        self._notes.setdefault(str(Mixture.of(computes_in)), []).append(text)

    def _calibrate(self, mixture: Mixture) -> Calibration:
        if mixture.dtype not in FORMATS:
            raise BackendError(f"there is no yardstick for dtype {mixture.dtype!r}.")
        dtype = str(mixture)

        spent: list[str] = []

        def make(keep: Keep | None = None) -> Calibration:
            yardstick = self._open_yardstick(mixture)
            stage = self._show.stage(f"calibrating: truth and {yardstick.spec}", extra=True)
            with stage, yardstick, looking(yardstick, self._depth):
                given = self.truth, yardstick, self.probe, self._exact, keep, self.tips
                made = self._second_opinion(yardstick, calibrate(*given))
            if self.tips:
                made = pooled(made, everywhere=self.sides is not None)
            if (evidence := self._evidence(dtype)) is not None:
                made = replace(made, model_errors=errors_of(evidence, made))
            seconds = {"truth": self.truth.seconds, "yardstick": yardstick.seconds}
            spent.extend(f"{name} {sum(s.values()):.2g} s" for name, s in seconds.items())
            return made

        calibration, kept = self._stored(dtype, make)
        if spent:
            self.note(dtype, f"Calibration for {dtype} was computed: {', '.join(spent)}; {kept}.")
        return calibration

    def _stored(
        self, dtype: str, make: Callable[[Keep | None], Calibration]
    ) -> tuple[Calibration, str]:
        """The calibration, stored or made now, and what became of one that was made."""
        model, probe = self._model, self.probe
        # Code of unknown version can change under an unchanged name.
        stores = self._use_cache and model.has_known_code
        if stores and self._device != "cpu":
            self._run_for_evidence(dtype)
        evidence = model.evidence.of(probe, dtype, self._device) if stores else ""
        if not evidence:
            return make(None), "not stored"
        named = model.blocks or "", "" if model.decoding is None else str(model.decoding)
        of_model = model.arithmetic_on(self._device), str(model.versions), *named
        question = CACHE_VERSION, model.fingerprint, probe.sha256, self._depth, *of_model
        return stored_calibration(question, dtype, probe, evidence, self._exact, make)

    def _evidence(self, dtype: str) -> Trace | None:
        return self._model.evidence.trace(self.probe, dtype, self._device)

    def _run_for_evidence(self, dtype: str) -> None:
        """Have the model itself run on a GPU, unless the reference was just that."""
        plain = "fp64" if dtype == "fp64" else EXAMINED_AT
        if self._evidence(plain) is None:
            with self._open_yardstick(Mixture(plain)) as model:
                self._model.evidence.offer(model, model.trace(self.probe))

    @property
    def _exact(self) -> Trace | None:
        """What the truth gave, where it was asked before."""
        made = (one for one in self._calibrations.values() if one is not None)
        return next((one.all_states for one in made), None)

    def _second_opinion(self, yardstick: Backend, made: Calibration) -> Calibration:
        """Where the widened truth computes something else, a plain float64 copy may not."""
        alone = self._rounding is not None or self.sides is not None
        if not made.doubt or made.dtype != EXAMINED_AT or alone:
            return made
        plain = self._open_truth(KEPT_CASTS)
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
            self._truth = self._open_truth()
        return self._truth

    def _open_truth(self, options: str = "") -> Backend:
        where = "" if self._device == "cpu" else f":{self._device}"
        if self.sides is not None:
            made = self.sides.truth()
        else:
            made = create(f"truth{where}{self._ranges}{options}", self._model)
        made.progress = self._show
        look(made, self._depth)
        return made

    def _open_yardstick(self, mixture: Mixture) -> Backend:
        if self.sides is not None:
            made = self.sides.yardstick()
        else:
            made = open_yardstick(mixture, self._model, self._device, self._ranges)
        made.progress = self._show
        if self._rounding is not None and isinstance(made, Decodes):
            made.decode(self._rounding)
        return made

    def yardstick(self, calibration: Calibration) -> Backend:
        """Plain eager PyTorch in the dtypes of a calibration, to look closer with."""
        return self._open_yardstick(calibration.mixture)

    def stage(self, text: str) -> AbstractContextManager[None]:
        """Show that something is being done that was not counted on."""
        return self._show.stage(text, extra=True)

    def close(self) -> None:
        for other in self._others:
            other.close()
        if self._truth is not None:
            self._truth.close()
