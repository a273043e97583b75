"""A report for each shape and candidate.

Model and backends are opened once: a graph with open axes, or a compiled model, meets shapes that
it was not made at, as it does where it is deployed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ...adapter import Backend
from ...errors import DriftwalkError, UsageError
from ...progress import Progress
from ...registry import backend_class
from ...result import Report
from ...spec import Spec
from ...stage import (
    Setting,
    check_names,
    default_shape,
    is_graph,
    make_probe,
    open_backend,
    or_why_not,
    streamed,
)
from ...states import Probe
from .shape import AUTO, Shape, shapes_of

Verify = Callable[..., list[Report]]
"""`api.verify_all`."""


def verify_shapes(
    verify: Verify,
    model: object,
    candidates: Sequence[object],
    reference: object,
    shapes: object,
    *,
    probe: object = None,
    batch: int | None = None,
    length: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> list[Report]:
    """What `verify` says at each shape, all candidates at the first, then at the next.

    A shape that the model itself does not take is an error, or, of `auto`, left out with a note.
    """
    if probe is not None or batch or length:
        raise UsageError("Shapes are those of default probes: leave probe, batch and length out.")
    asked, show = shapes_of(shapes, Shape(*default_shape())), progress or Progress()
    of_model = {n: options[n] for n in ("blocks", "trust_remote_code") if n in options}
    mapped = options.get("budget") is not None
    if options.get("stream"):
        reference, *candidates = map(
            streamed, ("torch" if reference is None else reference, *candidates)
        )
    check_names([one for one in (reference, *candidates) if one is not None])
    with show.stage("loading the model"):
        opened = Setting.asked(model, mapped=mapped, **of_model).open_model()
    reports: list[Report] = []
    notes: list[str] = []
    with open_for_all(opened, reference, candidates) as (first, others):
        for shape, given in _probes(opened, asked, seed, shapes == AUTO, notes):
            for side in (first, *others):
                if isinstance(side, Backend):
                    side.restart_clock()
            said = {"progress": _At(shape, show), "keep_going": True, **options}
            one = partial(verify, opened, others, first, given, **said)
            made = or_why_not(one, shapes == AUTO)
            if isinstance(made, DriftwalkError):
                notes.append(f"At {shape} nothing could be compared: {made}")
            else:
                reports += made
    if not reports:
        raise UsageError(f"The model could not be run at any shape. {' '.join(notes)}")
    return _noted(reports, len(candidates), notes)


class _At(Progress):
    """The progress of what is done at one shape."""

    def __init__(self, shape: Shape, show: Progress) -> None:
        self._shape, self._show = shape, show

    def expect(self, stages: int) -> None:
        self._show.expect(stages)

    @contextmanager
    def stage(self, text: str, extra: bool = False) -> Iterator[None]:
        with self._show.stage(f"{self._shape}: {text}", extra):
            yield


@contextmanager
def open_for_all(
    model: Any, reference: object, candidates: Sequence[object]
) -> Iterator[tuple[object, list[object]]]:
    """Reference and candidates, as backends that live for all runs; a graph's are made anew.

    A candidate that cannot be made stays as it was named, and says why in each run. A spec of a
    backend that makes a graph gets open axes.
    """
    if is_graph(model):
        yield reference, list(candidates)
        return
    with ExitStack() as opened:
        first = open_backend("torch" if reference is None else reference, model, opened)
        others: list[object] = []
        for one in candidates:
            made = or_why_not(partial(open_backend, _open_axes(one), model, opened), True)
            others.append(one if isinstance(made, DriftwalkError) else made)
        yield first, others


def _open_axes(side: object) -> object:
    """A spec of a backend that makes a graph, with open axes; anything else as it is."""
    if not isinstance(side, str):
        return side
    spec = Spec.parse(side)
    can = "dynamic" in backend_class(spec.name).options and "file" not in spec.options
    return f"{side},dynamic=on" if can and "dynamic" not in spec.options else side


def _probes(
    model: Any, shapes: Sequence[Shape], seed: int, some: bool, notes: list[str]
) -> Iterator[tuple[Shape, Probe]]:
    """Those that differ: a model may have no length, or fewer positions.

    Of only `some` that need be taken, one that the model does not take is noted.
    """
    seen: set[tuple[str, ...]] = set()
    for shape in shapes:
        try:
            probe = make_probe(model, None, shape.rows, shape.length, seed)
        except DriftwalkError as error:
            if not some:
                raise
            notes.append(f"There is no probe of shape {shape}: {error}")
            continue
        forms = tuple(probe.forms())
        if forms not in seen:
            seen.add(forms)
            yield shape, probe


def _noted(reports: list[Report], candidates: int, notes: Sequence[str]) -> list[Report]:
    """The same, each with what it was at the other shapes."""
    made = []
    for number, report in enumerate(reports):
        alike = reports[number % candidates :: candidates]
        told = (*report.notes, *_others(report, alike), *notes)
        made.append(replace(report, notes=told))
    return made


def _others(report: Report, alike: Sequence[Report]) -> Iterator[str]:
    if len(alike) < 2:
        return
    by_verdict: dict[str, list[str]] = {}
    for one in alike:
        by_verdict.setdefault(one.verdict, []).append(one.probe.shape)
    told = "; ".join(f"{word} at {', '.join(at)}" for word, at in by_verdict.items())
    if len(by_verdict) > 1 and report.verdict != "pass":
        yield (
            f"It depends on the shape: {told}. What was fixed at the shape that a graph was made "
            "at, or is chosen by shape, is where to look."
        )
    else:
        yield f"One of {len(alike)} shapes of one run: {told}."
