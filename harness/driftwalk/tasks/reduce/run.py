"""`driftwalk reduce MODEL --candidate S`: from a drift to a script that shows it by itself.

The candidate is verified first, or a stored result says where it drifts. What makes that point is
taken out of the candidate and made smaller for as long as it is the same drift: at the same place,
in the same direction, of the same size. What is left is written down and run by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...adapter import Backend
from ...api import verify
from ...environment import head
from ...errors import BackendError, UsageError
from ...progress import Progress
from ...registry import create
from ...result import Report
from ...stage import Setting, is_graph, open_stage
from ...states import Probe
from ..bounds import check_bounds
from ..bundles.extraction import aside, reopened
from ..constants import REDUCED_POINTS, WHOLE_CAUSE_SHARE
from ..resuming import earlier as earlier_result
from .folder import free_place, keep_answers, refuse_another
from .result import Example, Extent, Fault, Reducing, Reduction
from .search import Allowance, Search

if TYPE_CHECKING:
    from driftwalk_backends.reducing.graphs import GraphSubject
    from driftwalk_backends.reducing.states import State

Found = TypeVar("Found")
MOST_EXAMPLES = 6
WHOSE: dict[Fault, str] = {
    "runtime": "The runtime computes something else than its graph says",
    "graph": "The graph computes something else than the model",
    "module": "The module computes something else than the model",
}


def reduce(
    model: object,
    candidate: object = None,
    folder: str | Path | None = "driftwalk-repro",
    probe: object = None,
    *,
    point: str | None = None,
    minutes: float | None = None,
    runs: int | None = None,
    resume: object = None,
    model_again: object = None,
    command: str = "",
    progress: Progress | None = None,
    **options: Any,
) -> Reduction:
    """The smallest graph, or module, that still shows the drift of a candidate; as a script.

    `model` is what `verify` takes, or the report of a run that drifted; `model_again` is the model
    of a report that cannot name it. `folder` is where `repro.py` is written, and for a graph
    `repro.onnx`; None writes nothing. `point` is the root cause, if not said. The search ends after
    `minutes`, or after `runs` of what it makes smaller, or when it is stopped; what it has by then
    is kept, and another search goes on from there: `resume` is an earlier result, its file or
    folder. All other options are those of `stage.Setting` (`batch`, `length`, `seed`, `blocks`,
    `trust_remote_code`).
    """
    show = progress or Progress()
    target = None if folder is None else free_place(Path(folder))
    check_bounds(runs, minutes, least=0)
    allowance = Allowance(runs, minutes)
    earlier = earlier_result(Reduction, resume)
    report: Report | None = None
    if isinstance(model, Report):
        report = model
        if report.verdict == "pass" and point is None:
            raise UsageError("The report says pass: there is no drift to be reduced.")
        model, candidate, probe = _of_report(report, model_again, candidate, probe, options)
    elif candidate is None:
        raise UsageError("Which backend drifts? Name it: candidate= (--candidate).")
    setting = Setting.asked(model, probe, **options)
    loaded = setting.open_model()
    setting = replace(setting, model=loaded, probe=setting.make_probe(loaded))
    with open_stage(setting, [candidate], show=show) as stage:
        (side,) = stage.backends
        about = loaded.describe()
        notes = (*stage.model.notes, *stage.probe.notes)
        empty = Reduction(
            **head(command, about, notes), candidate=side.info, probe=stage.probe.sha256
        )
        if earlier is not None:
            refuse_another(empty, earlier, point)
            point = earlier.point or point
        points = [] if point is None else [point]
        if not points and report is None:
            with show.stage("verifying", extra=True):
                report = verify(loaded, side, probe=stage.probe)
            if report.verdict == "pass":
                return replace(empty, candidate=report.candidate, notes=report.notes)
        if report is not None:
            _refuse_other_shape(report, point, side, loaded, stage.probe)
            points = points or _guilty(report)

        def searched(point: str) -> tuple[GraphSubject, Search[State], Reduction]:
            with show.stage(f"what makes {point}"), _truth(stage.model) as truth:
                subject, state = _subject(side, stage.probe, point, truth)
            begun = replace(empty, candidate=side.info, point=point, before=_extent(state))
            search = _searched(subject, state, allowance, begun, earlier, target, show)
            return subject, search, _made(begun, subject.whose, search)

        subject, search, made = _first_shown(searched, points)
        if target is None:
            return made
        with show.stage("writing the reproduction"):
            return _written(made, subject, search.state, target)


def _searched(
    subject: GraphSubject,
    state: State,
    allowance: Allowance,
    empty: Reduction,
    earlier: Reduction | None,
    target: Path | None,
    show: Progress,
) -> Search[State]:
    """The search, run; what an earlier one was answered is not asked again."""
    same = earlier is not None and earlier.before == empty.before
    answers = earlier.answers if earlier is not None and same else ""
    search = Search(subject, state, allowance, answers=answers)

    def kept(text: str, now: State) -> None:
        search.steps.append((text, now))
        keep_answers(replace(empty, answers=search.asked, finished=False), target)
        with show.stage(f"{text}: {len(now.cut.nodes)} nodes", extra=True):
            pass

    search.taken = kept
    search.run()
    if not search.state.shown.shows_whole:
        raise BackendError(_shows_nothing(empty.point, search.finished))
    return search


def _of_report(
    report: Report,
    model: object,
    candidate: object,
    probe: object,
    options: dict[str, Any],
) -> tuple[object, object, object]:
    """Model, candidate and probe of a stored run."""
    given = {name: options.pop(name, None) or None for name in ("batch", "length", "seed")}
    return reopened(
        report,
        model=model,
        candidate=candidate,
        probe=probe,
        blocks=options.get("blocks"),
        trust_remote_code=options.get("trust_remote_code", False),
        **given,
    )


def _guilty(report: Report) -> list[str]:
    """The root cause, then all other points that drift, those that are furthest off first."""
    if report.verdict == "unverified":
        raise BackendError(f"There is nothing to reduce, the run is unverified: {report.reason}")
    if report.at_fault == "reference":
        raise BackendError(
            "It is the reference that drifts. Name it as the candidate to reduce its drift."
        )
    first = report.first_divergence
    name = report.cause or (first.point.name if first is not None else None)
    if name is None:
        raise BackendError("The report names no point that drifts.")
    sides = {one.point.name: one.sides.get("candidate") for one in report.layers}
    used = {n: side.needed for n, side in sides.items() if side is not None and side.needed > 1}
    return [name, *sorted(used.keys() - {name}, key=lambda one: -used[one])[: REDUCED_POINTS - 1]]


def _refuse_other_shape(
    report: Report, point: str | None, side: Backend, model: Any, probe: Probe
) -> None:
    """Where a state has another shape there are no numbers to compare; why it has is said."""
    unlike = [one for one in report.layers if one.verdict == "shape"]
    asked = (
        point or report.cause or (report.first_divergence and report.first_divergence.point.name)
    )
    row = next((one for one in unlike if one.point.name == asked), None)
    if row is None and not report.coverage.compared:
        row = next(iter(unlike), None)
    if row is None:
        return
    from driftwalk_backends.reducing.opening import why_another_shape

    why = why_another_shape(side, model, probe)
    raise BackendError(
        f"At {row.point.name} the candidate's state has another shape than the reference's: "
        f"{row.note or 'see the report'}. That is no drift of numbers: there is nothing to be "
        f"made smaller. {why}".rstrip()
    )


@contextmanager
def _truth(model: Any) -> Iterator[Backend | None]:
    if is_graph(model):
        yield None
        return
    with create("truth", model) as truth:
        yield truth


def _subject(side: Backend, probe: Probe, point: str, truth: Backend | None) -> Any:
    from driftwalk_backends.reducing.opening import subject_of

    return subject_of(side, probe, point, truth)


def _first_shown(search: Callable[[str], Found], points: Sequence[str]) -> Found:
    """Of the first of the points at which a part that is taken out drifts by itself.

    A drift that is close to its allowance may be the root cause, and take the whole model to show.
    """
    refused: BackendError | None = None
    for point in points:
        try:
            return search(point)
        except BackendError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _shows_nothing(point: str, finished: bool) -> str:
    """What to say where nothing that was looked at drifts by itself."""
    from driftwalk_backends.reducing.regions import no_drift

    if finished:
        return no_drift(point)
    return (
        f"The search was stopped before anything was found that shows the drift at {point} by "
        "itself. Give it more: --minutes, --runs."
    )


def _extent(state: State) -> Extent:
    return Extent(*state.size, state.ratio)


def _made(empty: Reduction, fault: Fault, search: Search[State]) -> Reduction:
    state = search.state
    shown, cut = state.shown, state.cut
    return replace(
        empty,
        fault=fault,
        after=_extent(state),
        error=shown.size,
        honest=shown.honest,
        as_written=shown.as_written,
        share=state.share,
        operations=cut.operations,
        steps=tuple(Reducing(text, _extent(one)) for text, one in search.steps),
        examples=_examples(shown.found, shown.truth, shown.error),
        own=cut.own,
        answers=search.asked,
        runs=len(search.asked),
        finished=search.finished,
        notes=(*empty.notes, *_told(state)),
    )


def _told(state: State) -> Iterator[str]:
    """What to say beside the numbers."""
    if state.right is not None and state.share < WHOLE_CAUSE_SHARE:
        yield (
            "It is wrong in more than one place; this is the first of them, and by itself "
            f"it is the cause of {100 * state.share:.0f} % of the drift."
        )


def _examples(found: Any, truth: Any, error: Any) -> tuple[Example, ...]:
    """The largest errors."""
    order = np.argsort(-np.abs(error).ravel(), kind="stable")[:MOST_EXAMPLES]
    places = [tuple(map(int, np.unravel_index(at, error.shape))) for at in order]
    return tuple(
        Example(place, float(truth[place]), float(found[place]))
        for place in places
        if error[place] != 0
    )


def headline(made: Reduction) -> str:
    """The drift in a sentence."""
    assert made.fault is not None
    ops = ", ".join(made.operations[:6]) + (" ..." if len(made.operations) > 6 else "")
    ratio = "not finite" if math.isinf(made.error) else f"{made.error / made.honest:.3g} times"
    off = ratio if math.isinf(made.error) else f"{ratio} as far off as honest arithmetic"
    return f"{WHOSE[made.fault]}: {ops}: {off}"


def _written(made: Reduction, subject: GraphSubject, state: State, target: Path) -> Reduction:
    from driftwalk_backends.reducing.writing import rehearse

    versions = ", ".join(f"{name} {text}" for name, text in made.candidate.versions.items())
    about = (
        f"Found with {versions}. `expected` was computed in float64. Exits with 1 where the\n"
        "drift shows, with 0 where it does not."
    )
    if made.fault == "module":
        about += (
            "\nThe operations are those that torch's tracer saw in the module that was verified:"
            "\nits own code is not in here. To try the module itself, call it with `inputs`."
        )
    with aside(target) as scratch:
        script = subject.write(state, scratch, made.candidate.flags, headline(made), about)
        printed = rehearse(scratch, state.ratio)
        files = tuple(sorted(file.name for file in scratch.iterdir()))
        lines, output = tuple(script.splitlines()), tuple(printed.splitlines())
        made = replace(made, files=files, script=lines, printed=output)
        made.save(scratch)
    return made
