"""`verify` without a model: all that the configuration names, one after the other."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import DriftwalkError, UsageError, nearest
from .console import say, show, show_json
from .options import option
from .rendering import make_document

if TYPE_CHECKING:
    from ..project.config import Config, Run
    from ..project.expected import Known
    from ..result import Report

ConfigOption = Annotated[
    Path | None, option("--config FILE", "Without MODEL: driftwalk.toml or pyproject.toml.")
]
ListOption = Annotated[
    bool, option("--list", "Without MODEL: show what would run, and run nothing.")
]
OnlyOption = Annotated[
    str | None, option("--only GLOB", "Without MODEL: only what has such a name.")
]
ExpectedOption = Annotated[
    Path | None, option("--expected FILE", "Known deviations: a TOML file of bounds.")
]

FOR_ALL = (
    "config",
    "list_only",
    "only",
    "cache",
    "spill",
    "stream",
    "witness",
    "budget",
    "report",
    "as_json",
)
"""Parameters of `verify` that say nothing of a single model."""

Outcome = tuple[list["Report"], int]
"""What ran, and the exit code of it all."""


def check_options(context: typer.Context, model: str | None) -> None:
    """One model from the command line, or all from the file: not a little of both."""
    given = [p for p in context.command.params if p.name and _typed(context, p.name)]
    for parameter in given:
        option = parameter.opts[0]
        if model is None and parameter.name not in FOR_ALL:
            raise UsageError(
                f"{option} is for one model, and no MODEL is named. Name it, or write this into "
                "the configuration, which `driftwalk verify` runs as a whole."
            )
        if model is not None and parameter.name in ("config", "list_only", "only"):
            raise UsageError(f"{option} is for running the configuration; leave out {model!r}.")


def _typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def the_config(path: Path | None) -> Config:
    """The file that was named, or the nearest one."""
    from ..project.config import OWN, SHARED, find_config, load_config

    file = path or find_config(Path.cwd())
    if file is None:
        raise UsageError(
            f"No MODEL is named, and there is no {OWN} and no [tool.driftwalk] in a {SHARED} here "
            "or above. `driftwalk verify demo:decoder` needs neither."
        )
    config = load_config(file)
    if not config.runs:
        raise UsageError(f'{file}: names no models. Write [[models]] with model = "...".')
    return config


def chosen(config: Config, only: str | None) -> tuple[Run, ...]:
    """The runs whose name a glob matches; a glob that matches none is a mistake."""
    if only is None:
        return config.runs
    runs = tuple(run for run in config.runs if fnmatchcase(run.title, only))
    if not runs:
        names = [run.title for run in config.runs]
        raise UsageError(f"--only {only!r} matches no model. {nearest(only, names)}")
    return runs


def show_runs(runs: Sequence[Run], as_json: bool) -> None:
    """What would run."""
    rows = [_row(run) for run in runs]
    if as_json:
        return show_json(rows)
    for row in rows:
        show(str(row.pop("name")))
        show("\n".join(f"  {key:<10} {_words(value)}" for key, value in row.items() if value))


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _row(run: Run) -> dict[str, Any]:
    common, inputs = run.common, run.inputs
    probe = "default" if inputs.given is None else _words(inputs.given)
    probe = probe if inputs.set is None else f"the set {inputs.set}"
    rules = [rule.glob for rule in common.policy.rules if rule.glob != "*"]
    return {
        "name": run.title,
        "model": run.model,
        "reference": common.reference or "the default",
        "candidates": list(common.candidates),
        "probe": f"{inputs.name}: {probe}" if inputs.name else probe,
        "policy": common.policy.name + (f" ({', '.join(rules)})" if rules else ""),
        "depth": common.depth,
        "missing": list(common.allow_missing),
        "format": list(common.format_limits),
        "expected": str(common.expected or ""),
    }


def run_all(
    config: Config,
    runs: Sequence[Run],
    whole: bool,
    named_file: Path | None,
    options: Mapping[str, Any],
) -> Outcome:
    """Every run, to the end: one that cannot be verified does not keep the others from it.

    `whole`: nothing was left out, so an entry of expected drift that meets no run is a mistake.
    `named_file` is the configuration as it was typed, if it was.
    """
    from ..project.expected import load_expected

    # Each file of expected drift is read before anything slow runs.
    files = {run.common.expected for run in runs if run.common.expected}
    known = {file: load_expected(file) for file in sorted(files)}
    reports: list[tuple[Path | None, Report]] = []
    codes = set()
    for run in runs:
        more = {**run.arguments, **options, "command": again(run, named_file)}
        try:
            with config.at_home():
                made = verified(run.model, run.common.candidates, **more)
        except DriftwalkError as error:
            say(f"driftwalk: {run.title}: {error}")
            codes.add(error.exit_code)
            continue
        titled = [replace(report, model=run.named(report.model)) for report in made]
        reports += [(run.common.expected, report) for report in titled]
    # One that could not be run may be the one an entry speaks of.
    return gated(reports, known, whole and not codes, codes)


def again(run: Run, file: Path | None) -> str:
    """What runs this one again, from where the whole was run."""
    where = ["--config", str(file)] if file is not None else []
    return shlex.join(["driftwalk", "verify", *where, "--only", escape(run.title)])


def verified(
    model: str, candidates: Sequence[object], folder: Path | None = None, **options: Any
) -> list[Report]:
    """`verify_all` with a bar; `folder` is where reports are to be written."""
    from ..api import verify_all

    return make_document(verify_all, folder, model, candidates, **options)


def gated(
    reports: Sequence[tuple[Path | None, Report]],
    known: Mapping[Path, Sequence[Known]],
    whole: bool = False,
    codes: Iterable[int] = (),
) -> Outcome:
    """Reports, each compared with what its file of expected drift says of such runs.

    What the gates say goes to stderr, and all of it into one exit code: drift outweighs a mistake,
    a mistake what could not be verified; no run at all is none.
    """
    from ..project.expected import judge, named, unmet

    gates = [judge(report, known[file] if file else ()) for file, report in reports]
    failures = [line for gate in gates for line in gate.failures]
    for file, entries in known.items():
        seen = [named(report) for used, report in reports if used == file]
        failures += unmet(entries, seen, whole)
    for gate in gates:
        if gate.verdict == "expected":
            label, spec = gate.report.model.get("label", "a model"), gate.report.candidate.spec
            say(f"driftwalk: {label} on {spec}: drift, as expected; the notes say why.")
    for line in failures:
        say(f"driftwalk: {line}")
    ends = {*codes, *(gate.exit_code for gate in gates), *((1,) if failures else ())}
    code = next((code for code in (1, 2, 3, 0) if code in ends), 3)
    return [gate.report for gate in gates], code
