"""The stage of every task: a model, the backends that run it and a probe, opened and closed once.

The one module that opens what backends/ keeps: models, probes, and modules given as backends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .adapter import Backend, BringsProbe
from .budget import Needs
from .errors import BudgetError, DriftwalkError, UsageError
from .judge.drill import looking
from .progress import Progress
from .registry import backend_class, create
from .spec import Spec
from .states import Probe

if TYPE_CHECKING:
    from driftwalk_backends.sources import AnyModel, LoadedModel


T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """What a user says of the model and of the probe. None stands for the default in each case."""

    model: object
    probe: object = None
    batch: int | None = None
    """Rows of the default probe; `length` is its tokens, `seed` what it is made from."""
    length: int | None = None
    seed: int = 0
    input_shapes: Mapping[str, Sequence[int]] | None = None
    """Of made-up inputs of a graph, by name."""
    blocks: str | None = None
    """Where the stack of blocks is, where it is named by hand."""
    trust_remote_code: bool = False
    stream: bool = False
    """Whether backends of torch read, cast and move weights as they need them, large or not."""
    mapped: bool = False
    """Whether the weights of a folder stay in its files, large or not."""

    @classmethod
    def asked(cls, model: object, probe: object = None, **options: Any) -> Setting:
        """From options as a user types them: one that there is not is said to be none."""
        known = [field.name for field in fields(cls) if field.name not in ("model", "probe")]
        for name in options:
            if name not in known:
                there = f"Of model and probe there are {', '.join(known)}."
                raise UsageError(f"There is no option {name!r}. {there}")
        return cls(model, probe, **options)

    def open_model(self) -> AnyModel:
        """The model, loaded: one that torch runs, or a graph."""
        options = {"trust_remote_code": self.trust_remote_code, "mapped": self.mapped}
        return open_model(self.model, blocks=self.blocks, **options)

    def make_probe(self, model: AnyModel) -> Probe:
        """The probe, checked against the model."""
        return make_probe(model, self.probe, self.batch, self.length, self.seed, self.input_shapes)


@dataclass(frozen=True, eq=False)
class Sides:
    """A model, and the backends that run it."""

    model: AnyModel
    sides: tuple[Backend | DriftwalkError, ...]
    """One for each that was asked for: open, or why it could not be made."""

    @property
    def backends(self) -> tuple[Backend, ...]:
        """Those that are open."""
        return tuple(side for side in self.sides if isinstance(side, Backend))

    @property
    def torch_model(self) -> LoadedModel:
        """The model, for what only torch can do; a graph is refused."""
        return torch_model(self.model)


@dataclass(frozen=True, eq=False)
class Stage(Sides):
    """All that must be there before anything runs."""

    probe: Probe


@contextmanager
def open_sides(
    setting: Setting,
    sides: Sequence[object],
    depth: str = "block",
    show: Progress | None = None,
    several: bool = False,
) -> Iterator[Sides]:
    """Load the model and make the backends; each mistake is found as early as can be.

    Of `several` candidates, which stand behind the first side, one that cannot be made here is left
    out.
    """
    for number, side in enumerate(sides):
        or_why_not(partial(check_names, [side]), several and number > 0)
    with (show or Progress()).stage("loading the model"):
        model = setting.open_model()
    with ExitStack() as opened:
        if not is_graph(model):
            torch_model(model).begin()
            torch_model(model).weights.any_size = setting.mapped
            opened.callback(torch_model(model).forget)
        # All backends are made, and refuse what they cannot do, before anything slow runs.
        if setting.stream:
            sides = [streamed(side) for side in sides]
        made = (partial(open_backend, side, model, opened) for side in sides)
        all_sides = tuple(or_why_not(one, several and n > 0) for n, one in enumerate(made))
        found = Sides(model, all_sides)
        for backend in found.backends:
            backend.progress = show or backend.progress
            opened.enter_context(looking(backend, depth))
        yield found
        if not is_graph(model):
            torch_model(model).end()


@contextmanager
def open_stage(
    setting: Setting,
    sides: Sequence[object],
    depth: str = "block",
    show: Progress | None = None,
    several: bool = False,
) -> Iterator[Stage]:
    """The same, and the probe: if none is given, that of a side that brings one (a recording)."""
    show = show or Progress()
    with open_sides(setting, sides, depth, show, several) as opened:
        if setting.probe is None:
            brought = (one.own_probe for one in opened.backends if isinstance(one, BringsProbe))
            setting = replace(setting, probe=next(filter(None, brought), None))
        with show.stage("making the probe"):
            probe = setting.make_probe(opened.model)
        yield Stage(opened.model, opened.sides, probe)


def or_why_not(make: Callable[[], T], several: bool) -> T | DriftwalkError:
    """What is made; or, where there are `several` candidates, the error that kept one from it.

    What is asked for wrongly (a typo in a spec), or takes too much memory, ends the whole run.
    """
    try:
        return make()
    except (UsageError, BudgetError):
        raise
    except DriftwalkError as error:
        if not several:
            raise
        return error


def is_graph(model: object) -> bool:
    """Whether what a user calls a model is an ONNX graph."""
    if isinstance(model, str | Path):
        return str(model).endswith(".onnx")
    return getattr(model, "source", "") == "ONNX graph"


def open_model(model: object, **options: Any) -> AnyModel:
    """A model by its name or as an object: `driftwalk_backends.sources.open_model`."""
    from driftwalk_backends import sources

    return sources.open_model(model, **options)


def torch_model(model: object, **options: Any) -> LoadedModel:
    """The same for what torch must be able to run; a graph is refused."""
    from driftwalk_backends import sources

    return sources.torch_model(model, **options)


def make_probe(
    model: AnyModel,
    given: object = None,
    batch: int | None = None,
    length: int | None = None,
    seed: int = 0,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Probe:
    """A probe for a model from whatever a user may give; the default one from nothing."""
    from driftwalk_backends import probes

    rows, tokens = default_shape()
    shape = {"batch": batch or rows, "length": length or tokens}
    probe = probes.make_probe(model, given, **shape, seed=seed, shapes=input_shapes)
    ids = probe.inputs.get("input_ids")
    if given is None and length and ids is not None and ids.ndim == 2 and ids.shape[1] < length:
        most = f"was cut to {ids.shape[1]}, the limit of a default probe for this model"
        cut = f"The length that was asked for, {length}, {most}."
        probe = replace(probe, remarks=(*probe.remarks, cut))
    return probe


def default_shape() -> tuple[int, int]:
    """Rows and tokens of the default probe."""
    from driftwalk_backends.probes import BATCH, LENGTH

    return BATCH, LENGTH


def needs_of(stage: Stage, depth: str) -> Needs:
    """What runs of the model take on the probe: `driftwalk_backends.metering.needs_of`."""
    from driftwalk_backends import metering

    return metering.needs_of(stage.torch_model, stage.probe, depth)


def check_names(sides: Sequence[object]) -> None:
    """A typo in a spec is found before a model is loaded."""
    for spec in sides:
        if isinstance(spec, str):
            backend_class(Spec.parse(spec).name)


def streamed(side: object) -> object:
    """A spec of a backend that can stream weights, with that option; anything else as it is."""
    if not isinstance(side, str):
        return side
    spec = Spec.parse(side)
    can = "stream" in backend_class(spec.name).options and "stream" not in spec.options
    return f"{side},stream=on" if can else side


def open_backend(given: object, model: AnyModel, opened: ExitStack) -> Backend:
    """A backend that is closed with the task, unless the caller made it."""
    made = as_backend(given, model)
    return made if made is given else opened.enter_context(made)


def as_backend(given: object, model: AnyModel) -> Backend:
    """A backend from a spec, a Backend, or a module or function: another implementation."""
    from driftwalk_backends.functions import as_module, name_of
    from driftwalk_backends.loaded import LoadedModel
    from driftwalk_backends.programs.backend import opened as opened_program
    from driftwalk_backends.torch_eager import TorchEager

    if isinstance(given, Backend):
        return given
    if isinstance(given, str):
        return create(given, model)
    if callable(given) and not isinstance(given, type):
        like = model if isinstance(model, LoadedModel) else None
        if (program := opened_program(given, like)) is not None:
            return program
        return TorchEager.around(as_module(given), name_of(given), like)
    raise UsageError(
        f"Cannot take {given!r} for a backend; give a spec, a Backend, an nn.Module or a function."
    )
