"""From what is to be checked to jobs: one for each device, or for each run and candidate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ...errors import UsageError
from ...project.config import Run
from ...spec import Spec
from ...tolerance import Policy, Tolerance
from .job import DEVICE, GOLDEN, Device, Job, Place


def hwcheck_jobs(
    places: Sequence[Place], options: Sequence[str] = (), golden: str = ""
) -> list[Job]:
    """One check for every device; `golden` is the hash of what all are held against."""
    held = ("--golden", GOLDEN) if golden else ()
    words = ("--device", DEVICE, *options, *held, "--json")
    return [
        Job("hwcheck", words, place.name, place.name, place.kind, golden)
        for place in places
        if place.slot == 0
    ]


def verify_jobs(runs: Iterable[Run], home: Path | None = None) -> list[Job]:
    """Every model on every probe with every candidate; `home` is where paths are seen from."""
    folder = str(home.resolve()) if home is not None else ""
    return [
        Job(
            "verify",
            (run.model, "--candidate", candidate, *_words(run), "--json"),
            f"{run.title} on {candidate}",
            needs=_needs(candidate, run.common.reference),
            folder=folder,
        )
        for run in runs
        for candidate in run.common.candidates
    ]


def _needs(*specs: str | None) -> Device:
    devices = [Spec.parse(spec).device or "" for spec in specs if spec]
    return "cuda" if any(device.startswith("cuda") for device in devices) else "cpu"


def _words(run: Run) -> Iterator[str]:
    """A run's options, as they are typed."""
    common, inputs = run.common, run.inputs
    if common.reference is not None:
        yield from ("--reference", common.reference)
    yield from policy_words(common.policy)
    for glob in common.allow_missing:
        yield from ("--allow-missing", glob)
    if common.depth != "block":
        yield from ("--depth", common.depth)
    if common.expected is not None:
        yield from ("--expected", str(common.expected))
    yield from _probe(run.title, inputs.given)
    for name in ("batch", "length", "seed"):
        if value := getattr(inputs, name):
            yield from (f"--{name}", str(value))
    if run.blocks is not None:
        yield from ("--blocks", run.blocks)
    if run.trust_remote_code:
        yield "--trust-remote-code"


def _probe(title: str, given: object) -> Iterator[str]:
    match given:
        case None:
            return
        case Path():
            yield from ("--probe", str(given))
        case [[*_]] as rows if isinstance(rows, list):
            yield from ("--ids", " ".join(map(str, rows[0])))
        case [str(), *_] as texts if isinstance(texts, list):
            for text in texts:
                yield f"--prompt={text}"  # in one word: a text may begin with a dash
        case _:
            raise UsageError(
                f"{title}: several rows of ids cannot be sent to another machine as words. "
                "Put them into a safetensors file and name it with 'file'."
            )


def policy_words(policy: Policy) -> Iterator[str]:
    """The options that make this very policy again."""
    yield from ("--policy", "calibrated" if policy.calibrated else "dtype")
    for rule in policy.rules:
        yield from ("--rule", f"{rule.glob}={_tolerance(rule.tolerance)}")


def _tolerance(given: Tolerance | None) -> str:
    return "dtype" if given is None else f"{given.atol!r},{given.rtol!r}"
