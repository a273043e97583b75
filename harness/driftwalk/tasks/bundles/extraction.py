"""A layer taken out of a run, as a bundle that reproduces its number: what a bug report needs.

    introduced = | c_n - X_n(c_{n-1}) |        as in blame.py

The report says which model, probe and candidate; they are opened again, and refused where they are
not those of the report. The bundle is run once before it is handed over.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...adapter import Backend
from ...dtypes import Array
from ...environment import now, this_tool
from ...errors import BackendError, ModelError, ProbeError, UsageError, nearest
from ...jsonable import encode
from ...judge.drill import look
from ...judge.replay import replay_trace
from ...layer_drift import LayerDrift
from ...measure.norms import Norms, distance
from ...names import layer_of
from ...progress import Progress
from ...registry import BUILT_IN, create
from ...result import Report
from ...spec import Spec
from ...stage import make_probe, open_backend, torch_model
from ...states import Probe, State, Trace
from ..constants import SAME_INTRODUCED

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel

BUNDLE, REPLAY = "bundle.json", "replay.py"
"""What makes a folder a bundle, and what its reader runs."""

_REOPENED = ("built in", "folder", "hub")
"""Sources of models that are opened by their names alone, without running code of their own."""


_SEEDED = re.compile(r"seeded default \(seed (\d+)\)\Z")


@dataclass(frozen=True)
class Extracted:
    """Where the bundle is, and the number it reproduces."""

    folder: Path
    point: str
    introduced: Norms
    reported: Norms | None
    replay: str
    """What `replay.py` printed."""


def extract(
    report: Report,
    point: str | None = None,
    folder: str | Path = "driftwalk-bundle",
    *,
    model: object = None,
    candidate: object = None,
    probe: object = None,
    batch: int | None = None,
    length: int | None = None,
    seed: int | None = None,
    blocks: str | None = None,
    trust_remote_code: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Extracted:
    """Write one layer of a report's run into a folder that stands alone.

    `point` is the root cause, if not said. What the report cannot name (a module or a backend that
    was an object, arrays) is given again: `model`, `candidate`, `probe`.
    """
    from driftwalk_backends.bundles.bundle import Subject, write_bundle, write_readme

    layer = _layer(report, point)
    name = layer.point.name
    target = free_place(Path(folder), force)
    show = progress or Progress()
    show.expect(4)
    with show.stage("loading the model"):
        loaded = _model(report, model, blocks, trust_remote_code)
    fixed = _probe(report, loaded, probe, batch, length, seed)
    with ExitStack() as opened:
        made = open_backend(_spec(report) if candidate is None else candidate, loaded, opened)
        truth = opened.enter_context(create("truth", loaded))
        with show.stage(f"candidate: {made.spec}"):
            trace = _traced(made, truth, fixed, report, opened)
        with show.stage("replaying the candidate's states"):
            replayed = _replayed(truth, trace, name)
        own = trace[name]
        introduced = distance(own, replayed, fixed.keep(name, own.shape))
        reported = layer.blame.norms["introduced"] if layer.blame else None
        _check_number(report, name, introduced, reported)
        subject = Subject(trace, name, replayed)
        with show.stage("writing the bundle"), aside(target) as scratch:
            write_bundle(scratch, subject, truth, made, _facts(report, layer, introduced, reported))
            printed = rehearse(scratch)
            write_readme(scratch, printed)
    return Extracted(target, name, introduced, reported, printed)


def reopened(
    report: Report,
    *,
    model: object = None,
    candidate: object = None,
    probe: object = None,
    batch: int | None = None,
    length: int | None = None,
    seed: int | None = None,
    blocks: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[LoadedModel, object, Probe]:
    """The model, the candidate and the probe of a report, or what was given in their place."""
    loaded = _model(report, model, blocks, trust_remote_code)
    fixed = _probe(report, loaded, probe, batch, length, seed)
    return loaded, _spec(report) if candidate is None else candidate, fixed


def _layer(report: Report, point: str | None) -> LayerDrift:
    names = [layer.point.name for layer in report.layers]
    if point is None and report.cause is None:
        raise UsageError(
            f"The report names no root cause ({report.verdict}); say which layer: "
            f"{', '.join(names)}."
        )
    wanted = point if point is not None else report.cause
    if wanted not in names:
        raise UsageError(f"The report has no point {wanted!r}. {nearest(str(wanted), names)}")
    return report.layer(str(wanted))


def _model(
    report: Report, given: object, blocks: str | None, trust_remote_code: bool
) -> LoadedModel:
    """The model of the report, by its fingerprint."""
    label, source = report.model.get("label", ""), report.model.get("source", "")
    if given is None and source not in _REOPENED:
        # A report is data: whoever sent it does not choose what code runs here.
        origins = {"factory": "made by code", "nn.Module": "an object in a program"}
        raise UsageError(
            f"The report's model, {label!r}, was {origins.get(source, 'not a model with a name')}; "
            "a report does not bring that back. Name it yourself, as a folder or "
            "package.module:factory: --model (model=)."
        )
    asked = label if given is None else given
    try:
        loaded = torch_model(asked, blocks=blocks, trust_remote_code=trust_remote_code)
    except ModelError as error:
        hint = "" if given is not None else " Name it with --model, if it lies elsewhere now."
        raise ModelError(f"{error}{hint}") from error
    if loaded.fingerprint != report.model.get("fingerprint"):
        raise ModelError(
            f"{loaded.label} is not the model of the report: its weights, its config or the "
            f"version of its code differ (fingerprint {loaded.fingerprint[:12]}, the report's is "
            f"{report.model.get('fingerprint', 'missing')[:12]}). Verify again, or name the model "
            "that was verified: --model."
        )
    return loaded


def _spec(report: Report) -> str:
    """The candidate's spec, if naming it is all it takes: a report starts no program here."""
    name = Spec.parse(report.candidate.spec).name
    if name not in BUILT_IN or name == "command":
        raise UsageError(
            f"The report's candidate is {report.candidate.spec!r}, which is not started on a "
            "report's word. If that is what you want, name it: --candidate (candidate=)."
        )
    return report.candidate.spec


def _probe(
    report: Report,
    model: LoadedModel,
    given: object,
    batch: int | None,
    length: int | None,
    seed: int | None,
) -> Probe:
    """The probe of the report, by its hash."""
    reported = report.probe
    seeded = _SEEDED.match(reported.origin)
    if given is None and reported.texts:
        given = list(reported.texts)
    elif given is None and not seeded:
        raise UsageError(
            f"The report does not hold its probe ({reported.origin}), only its hash. Give it "
            "again, as it was given to verify: --ids, --probe (probe=)."
        )
    shape = next(iter(reported.inputs.values())).shape if reported.inputs else ()
    made = make_probe(
        model,
        given,
        batch=batch or (shape[0] if shape else None),
        length=length or (shape[1] if len(shape) == 2 else None),
        seed=seed if seed is not None else int(seeded[1]) if seeded else 0,
    )
    if made.sha256 != reported.sha256:
        raise ProbeError(
            f"This is not the probe of the report: its hash is {made.sha256[:12]}, the report's is "
            f"{reported.sha256[:12]}. Give what was given to verify: --prompt, --ids or --probe, "
            "--batch, --length, --seed."
        )
    return made


def _traced(
    made: Backend, truth: Backend, probe: Probe, report: Report, opened: ExitStack
) -> Trace:
    """The candidate's states at the depth of the report, which its names tell."""
    names = {layer.point.name for layer in report.layers if layer.verdict != "missing"}
    inside = any(layer_of(name) not in (None, name) for name in names)
    trace = made.trace(probe)
    for depth in ("sublayer", "module") if inside and not names <= set(trace.names) else ():
        opened.callback(look, made, *look(made, depth))
        trace = made.trace(probe)
        if names <= set(trace.names):
            look(truth, depth)
            break
    return trace


def _replayed(truth: Backend, trace: Trace, point: str) -> Array:
    """What the truth makes at a point of the candidate's states before it."""
    replayed: dict[str, Array] = {}

    def meet(state: State) -> None:
        if state.point.name == point:
            replayed[point] = state.array

    replay_trace(truth, trace, meet)
    own = trace.state(point)
    if own is None or point not in replayed or own.array.shape != replayed[point].shape:
        raise BackendError(
            f"{trace.backend.spec} has no state at {point} that could be held against the truth's; "
            f"it has {', '.join(trace.names)}."
        )
    return replayed[point]


def _check_number(report: Report, point: str, introduced: Norms, reported: Norms | None) -> None:
    """A candidate that computes something else now would make a bundle that shows nothing."""
    if reported is None or introduced.l2 == reported.l2:
        return
    if not abs(introduced.l2 - reported.l2) <= SAME_INTRODUCED * reported.l2:
        versions = ", ".join(f"{name} {text}" for name, text in report.candidate.versions.items())
        raise BackendError(
            f"{report.candidate.spec} introduces {introduced.l2:.6g} at {point} here; in the "
            f"report it was {reported.l2:.6g}. Either the candidate was an object in a program: "
            "give it again, from Python, driftwalk.extract(..., candidate=...). Or versions or "
            f"hardware differ: it ran under {versions} on "
            f"{report.environment.get('platform', 'another machine')}."
        )


def _plain(norms: Norms) -> list[Any]:
    """Those of the norms that a reader can recompute in a line each."""
    return [encode(value) for value in (norms.l2, norms.max_abs)]


def _facts(
    report: Report, layer: LayerDrift, introduced: Norms, reported: Norms | None
) -> dict[str, Any]:
    return {
        "bundle_version": 1,
        "tool": encode(this_tool()),
        "created": now(),
        "model": report.model.get("label", ""),
        "fingerprint": report.model.get("fingerprint", ""),
        "point": layer.point.name,
        "module": layer.point.module,
        "candidate": report.candidate.spec,
        "backend": encode(report.candidate),
        "probe": report.probe.sha256,
        "environment": encode(report.environment),
        "introduced": _plain(introduced),
        "reported": None if reported is None else _plain(reported),
    }


# ---- the folder: made aside, run once, and only then put in its place ----


def free_place(folder: Path, force: bool) -> Path:
    """Where the bundle is to be; only an earlier bundle is ever replaced, and only if asked."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{str(folder)!r} is no folder; name another with -o.")
    if not folder.exists() or not any(folder.iterdir()):
        return folder
    if not (folder / BUNDLE).is_file():
        raise UsageError(
            f"{str(folder)!r} holds files and is no bundle; nothing is written over it. "
            "Name another folder with -o."
        )
    if not force:
        raise UsageError(f"There is a bundle in {str(folder)!r} already; --force replaces it.")
    return folder


@contextmanager
def aside(target: Path) -> Iterator[Path]:
    """A folder beside the target that takes its place when all is well, and is gone otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}."
    with tempfile.TemporaryDirectory("", prefix, target.parent, ignore_cleanup_errors=True) as at:
        new, old = Path(at, "new"), Path(at, "old")
        new.mkdir()
        yield new
        if target.exists():
            os.replace(target, old)
        try:
            os.replace(new, target)
        except OSError:
            if old.exists():
                os.replace(old, target)
            raise


def rehearse(folder: Path) -> str:
    """Run the script as its reader will; a bundle that shows another number is not handed over."""
    done = subprocess.run(
        [sys.executable, REPLAY],
        cwd=folder,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise BackendError(f"The bundle does not reproduce its number: {lines[-1][:400]}")
    return done.stdout
