"""`verify --fail-on`: what exit code 1 is for, where drift alone is too strict, or not all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from ..errors import UsageError, nearest
from .console import say
from .options import option

if TYPE_CHECKING:
    from ..result import Report
    from ..tasks.bench.timing_stats import Ratio

DRIFT, FLIPS, SLOWER, NOTHING = WHAT = ("drift", "flips", "slower", "nothing")

FailOnOption = Annotated[
    list[str] | None,
    option(
        "--fail-on WHAT",
        "What exit code 1 is for: drift (if not said), flips (of decisions that are no ties), "
        "slower (with --bench), nothing; may be given several times.",
    ),
]
SlowdownOption = Annotated[
    float, option("--max-slowdown", "How many times as slow --fail-on slower allows.", min=0.0)
]


def check_failing(
    on: Sequence[str] | None, model: str | None, bench: bool, expected: bool
) -> tuple[str, ...]:
    """What was asked for; a contradiction is found before anything runs."""
    if on and model is None:
        raise UsageError(
            "--fail-on is for one model. What may drift in a configuration stands in its file of "
            "expected drift."
        )
    wanted = tuple(on or (DRIFT,))
    for word in wanted:
        if word not in WHAT:
            raise UsageError(f"--fail-on {word}: {nearest(word, WHAT)}")
    if NOTHING in wanted and len(wanted) > 1:
        raise UsageError(f"--fail-on nothing, and on {wanted[wanted[0] == NOTHING]}: choose one.")
    if SLOWER in wanted and not bench:
        raise UsageError("--fail-on slower needs timings: add --bench.")
    if expected and DRIFT not in wanted:
        raise UsageError("--expected says which drift is no failure: it goes with --fail-on drift.")
    return wanted


def failing(reports: Sequence[Report], code: int, on: Sequence[str], most: float) -> int:
    """The exit code, from the one that verdicts come to; what failed is said."""
    if code == 1 and DRIFT not in on:
        code = 3 if any(report.verdict == "unverified" for report in reports) else 0
    ran = [report for report in reports if report.layers]  # what could not run is in the code
    flips = [line for line in map(_flips, ran) if line] if FLIPS in on else []
    for line in flips:
        say(f"driftwalk: {line}")
    slow = [_timed_slower(report, most) for report in ran] if SLOWER in on else []
    return 1 if flips or any(slow) else code


def _flips(report: Report) -> str:
    """Decisions that changed; or whatever keeps one from telling, which is no better."""
    spec, decided, told = report.candidate.spec, report.outputs, report.probe_set
    if told is not None and told.flips is not None and told.flips.largest > 0:
        row = next((row for row in report.probes if row.flips), None)
        where = f", {row.name} for one" if row is not None else ""
        return f"flips: {spec} decides otherwise for some probes{where}, and these are no ties."
    bad = [row for row in report.layers if not row.ok and row.verdict not in ("drift", "unknown")]
    if bad:
        return f"{spec}: {bad[0].point.name} is {bad[0].verdict}, whatever it decides."
    if decided is None and any(one.compared for one in report.embeddings):
        moved = [(one, one.moved - one.ties) for one in report.embeddings]
        rows = ", ".join(f"{n} of {one.rows} rows of {one.output}" for one, n in moved if n)
        what = f"flips: {spec} has other nearest neighbours for"
        return f"{what} {rows}, which are no ties." if rows else ""
    if decided is None:
        return f"{spec}: the model decides nothing that could be compared."
    changed = f"{decided.flips - decided.ties} of {decided.positions} positions"
    words = f"flips: {spec} decides otherwise at {changed}, which are no ties."
    return words if decided.flips > decided.ties else ""


def _timed_slower(report: Report, most: float) -> bool:
    from ..tasks.bench.timing_stats import compare_laps

    spec, timed = report.candidate.spec, report.benchmarks
    theirs, ours = timed["reference"].samples, timed["candidate"].samples
    if not (theirs and ours):
        say(f"driftwalk: {spec}: there are no timings to compare.")
        return True
    return slower(spec, compare_laps(theirs, ours), most)


def slower(what: str, ratio: Ratio, most: float) -> bool:
    """Whether an interval says that it is slower than allowed; doubt is told, never hidden."""
    above, allowed = ratio.above(most), f"times as slow ({most:.2f} is allowed)"
    if above:
        say(f"driftwalk: slower: {what} is at least {ratio.low:.2f} {allowed}.")
    elif above is None:
        more = "`driftwalk bench` with more --rounds would tell"
        say(f"driftwalk: undecided: {what} may be up to {ratio.high:.2f} {allowed}; {more}.")
    return bool(above)


def parse_share(text: str | None) -> float | None:
    """A share as one writes it: 80%, 80 % or 0.8; None where none is given."""
    if text is None:
        return None
    number = text.strip().removesuffix("%").strip()
    try:
        value = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise UsageError(f"--min-coverage {text!r}: write a share, 80% or 0.8.")
    return value


def uncovered(reports: Sequence[Report], code: int, least: float | None) -> int:
    """The exit code, 1 where the probes covered less of the model than was asked for."""
    if least is None:
        return code
    short = list(dict.fromkeys(filter(None, (_uncovered(report, least) for report in reports))))
    for line in short:
        say(f"driftwalk: {line}")
    return 1 if short else code


def _uncovered(report: Report, least: float) -> str:
    """What is not covered, in words; empty where enough is."""
    told = report.probe_set
    known = report.coverage.exercised if told is None else told.exercised
    who = "The probe covers" if told is None else "The probes cover"
    asked = f"--min-coverage asks for {100 * least:.3g} %"
    if known is None or known.covered is None:
        return f"coverage: what of the model was covered is not known, and {asked}."
    if known.covered >= least:
        return ""
    parts = sorted(known.shares.items(), key=lambda item: item[1])
    words = ", ".join(f"{100 * part:.3g} % of {what}" for what, part in parts if part < 1)
    return f"coverage: {who} {100 * known.covered:.3g} % of what can be covered; {asked}: {words}."
