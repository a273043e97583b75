"""The third witness at work: calibration for a candidate, and blame when something drifted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..adapter import Backend, BackendInfo
from ..cache import key_of
from ..dtypes import FORMATS
from ..errors import BackendError, DriftwalkError
from ..layer_drift import Culprit, LayerDrift
from ..measure.norms import NORM_NAMES, Norms, ratio
from ..progress import Progress
from ..registry import create
from ..states import Probe, Trace
from .blame import blame, root_cause
from .calibrate import Calibration, calibrate, yardstick_spec
from .calibration_cache import stored_calibration
from .drill import drill, introduced, layer_of, look, looking

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel

CACHE_VERSION = "4"

PART_LIMIT = 0.01
"""How far, relatively, a part of a quantised model may be off what its whole numbers give."""

OWN_MODEL = (
    "The candidate is quantised: its allowance is that of the same model, quantised alike by "
    "driftwalk; all other numbers are differences to the reference."
)

NO_YARDSTICK = (
    "The candidate is quantised in a way that driftwalk cannot repeat, and so without a yardstick: "
    "it was held to what its float dtype allows. See docs/onnx.md."
)


@runtime_checkable
class BringsModel(Protocol):
    """A candidate that computes another model on purpose, and can say which: a quantised graph."""

    def honest_model(self) -> LoadedModel | None:
        """What it should compute; None where that is the model itself, or cannot be told."""


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
        self._probe = probe
        self._use_cache = use_cache
        self._show = show
        self._depth = depth
        self._known: dict[str, Calibration | None] = {}
        self._truth: Backend | None = None
        self._notes: dict[str, list[str]] = {}
        self._others: list[Witness] = []
        self.has_own_model = False
        """Whether it speaks for what one candidate computes on purpose, not for the reference."""
        self.seconds: dict[str, float] = {}

    def of(self, candidate: Backend) -> Witness:
        """The witness for a candidate: one of its own where it computes another model."""
        own = candidate.honest_model() if isinstance(candidate, BringsModel) else None
        if own is None:
            return self
        made = Witness(own, self._probe, self._use_cache, self._show, self._depth)
        made.has_own_model = True
        made._note(candidate.info.dtype, OWN_MODEL)
        self._others.append(made)
        return made

    def calibration(self, dtype: str) -> Calibration | None:
        """The calibration for candidates of a dtype; None, with a note, where there can be none."""
        if dtype not in self._known:
            start = time.perf_counter()
            try:
                self._known[dtype] = self._calibrate(dtype)
            except (DriftwalkError, MemoryError) as error:
                self._known[dtype] = None
                self._note(
                    dtype, f"No calibration was possible, so the dtype table decided: {error}"
                )
            self.seconds[dtype] = time.perf_counter() - start
        return self._known[dtype]

    def introduced(self, candidate: Backend, known: Calibration) -> dict[str, Norms]:
        """By how much the parts of each layer are off, each given what the candidate gave it.

        In units in which the limit of a layer is what one of its parts may be off: between the
        parts a rounding may tip over, inside one there is nothing to tip.
        """
        with looking(candidate, "module"), looking(self.truth, "module"):
            found = introduced(self.truth, candidate.trace(self._probe))
        worst: dict[str, float] = {}
        for name, part in found.items():
            layer = layer_of(name)
            if layer is not None:
                off = ratio(part.error.l2, part.scale.l2)
                worst[layer] = max(worst.get(layer, 0.0), off)
        return {
            layer: known.allowed_own(layer).scaled(off / PART_LIMIT) for layer, off in worst.items()
        }

    def notes(self, dtype: str) -> tuple[str, ...]:
        """What is to be said about candidates of a dtype, and of no other."""
        return tuple(self._notes.get(dtype, ()))

    def caution(self, candidate: BackendInfo) -> tuple[str, ...]:
        """What is to be said about one candidate alone."""
        alone = "quantised" in candidate.flags and not self.has_own_model
        return (NO_YARDSTICK,) if alone else ()

    def _note(self, dtype: str, text: str) -> None:
        self._notes.setdefault(dtype, []).append(text)

    def _calibrate(self, dtype: str) -> Calibration:
        if dtype not in FORMATS:
            raise BackendError(f"there is no yardstick for dtype {dtype!r}.")

        spent: list[str] = []

        def make() -> Calibration:
            yardstick = create(yardstick_spec(dtype), self._model)
            stage = self._show.stage(f"calibrating: truth and {yardstick.spec}", extra=True)
            with stage, yardstick, looking(yardstick, self._depth):
                made = calibrate(self.truth, yardstick, self._probe)
            if self.has_own_model:
                made = _pooled(made)
            seconds = {"truth": self.truth.seconds, "yardstick": yardstick.seconds}
            spent.extend(f"{name} {sum(s.values()):.2g} s" for name, s in seconds.items())
            return made

        known, kept = self._stored(dtype, make)
        if spent:
            self._note(dtype, f"Calibration for {dtype} was computed: {', '.join(spent)}; {kept}.")
        return known

    def _stored(self, dtype: str, make: Callable[[], Calibration]) -> tuple[Calibration, str]:
        """The calibration, stored or made now, and what became of one that was made."""
        model, probe = self._model, self._probe
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
        )
        return stored_calibration(key, probe, evidence, make)

    @property
    def _stores(self) -> bool:
        # Code of unknown version can change under an unchanged name.
        return self._use_cache and self._model.has_known_code

    @property
    def truth(self) -> Backend:
        """The float64 model, made when first needed."""
        if self._truth is None:
            self._truth = create("truth", self._model)
            look(self._truth, self._depth)
        return self._truth

    def accuse(
        self, candidate: Backend, layers: tuple[LayerDrift, ...]
    ) -> tuple[tuple[LayerDrift, ...], str | None, Culprit | None]:
        """Run the candidate once more, replay its states, and write the blame into the layers."""
        known = self.calibration(candidate.info.dtype)
        if known is None:
            return layers, None, None
        with self._show.stage("blame: replaying the candidate's states", extra=True):
            trace = candidate.trace(self._probe)
            found = blame(self.truth, known, trace)
        named = tuple(replace(layer, blame=found.get(layer.point.name)) for layer in layers)
        cause = root_cause(found, layers)
        return named, cause, self._drill(candidate, trace, known, cause)

    def _drill(
        self, candidate: Backend, trace: Trace, known: Calibration, cause: str | None
    ) -> Culprit | None:
        """Where inside the root cause; a drill that breaks costs a note, never the report."""
        guilty = None if cause is None else known.truth.state(cause)
        if guilty is None:
            return None
        try:
            with (
                self._show.stage(f"drill: inside {cause}", extra=True),
                create(yardstick_spec(known.dtype), self._model) as yardstick,
            ):
                return drill(self.truth, yardstick, candidate, trace, known, guilty.point)
        except Exception as error:  # a candidate may raise anything when asked for more
            self._note(known.dtype, f"Could not look inside {cause}: {error}")
            return None

    def close(self) -> None:
        for other in self._others:
            other.close()
        if self._truth is not None:
            self._truth.close()


def _pooled(known: Calibration) -> Calibration:
    """Every layer allowed, for its size, what the noisiest is.

    In a quantised model a rounding tips over by chance, here or there: that none did in a layer of
    the yardstick does not mean that none may.
    """

    def pooled(errors: Mapping[str, Norms]) -> dict[str, Norms]:
        layers = [point for point in errors if layer_of(point) and point in known.scale]
        worst = {
            name: max(
                (ratio(getattr(errors[p], name), getattr(known.scale[p], name)) for p in layers),
                default=0.0,
            )
            for name in NORM_NAMES
        }
        floor = {p: Norms(**worst).times(known.scale[p]) for p in layers}
        return {
            point: Norms(
                **{n: max(getattr(error, n), getattr(floor[point], n)) for n in NORM_NAMES}
            )
            if point in floor
            else error
            for point, error in errors.items()
        }

    return replace(known, yardstick=pooled(known.yardstick), introduced=pooled(known.introduced))
