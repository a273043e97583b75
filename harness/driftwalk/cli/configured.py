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
from .console import say, show, show_json, working

if TYPE_CHECKING:
    from ..project.config import Config, Run
    from ..project.expected import Gate, Known
    from ..result import Report

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Without MODEL: driftwalk.toml or pyproject.toml."
    ),
]
ListOption = Annotated[
    bool, typer.Option("--list", help="Without MODEL: show what would run, and run nothing.")
]
OnlyOption = Annotated[
    str | None,
    typer.Option("--only", metavar="GLOB", help="Without MODEL: only what has such a name."),
]
ExpectedOption = Annotated[
    Path | None,
    typer.Option("--expected", metavar="FILE", help="Known deviations: a TOML file of bounds."),
]

FOR_ALL = ("config", "list_only", "only", "cache", "spill", "report", "as_json")
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

    found = path or find_config(Path.cwd())
    if found is None:
        raise UsageError(
            f"No MODEL is named, and there is no {OWN} and no [tool.driftwalk] in a {SHARED} here "
            "or above. `driftwalk verify demo:decoder` needs neither."
        )
    config = load_config(found)
    if not config.runs:
        raise UsageError(f'{found}: names no models. Write [[models]] with model = "...".')
    return config


def chosen(config: Config, only: str | None) -> tuple[Run, ...]:
    """The runs whose name a glob matches; a glob that matches none is a mistake."""
    if only is None:
        return config.runs
    found = tuple(run for run in config.runs if fnmatchcase(run.title, only))
    if not found:
        names = [run.title for run in config.runs]
        raise UsageError(f"--only {only!r} matches no model. {nearest(only, names)}")
    return found


def show_runs(runs: Sequence[Run], as_json: bool) -> None:
    """What would run."""
    rows = [_row(run) for run in runs]
    if as_json:
        import json

        show_json(json.dumps(rows, indent=1))
        return
    for row in rows:
        show(str(row.pop("name")))
        show("\n".join(f"  {key:<10} {_words(value)}" for key, value in row.items() if value))


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _row(run: Run) -> dict[str, Any]:
    common, inputs = run.common, run.inputs
    given = inputs.given
    probe = "default" if given is None else _words(given)
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
    from ..project.expected import judge, named, unmet

    known = _known(runs)
    gates: list[tuple[Path | None, Gate]] = []
    codes = set()
    for run in runs:
        file = run.common.expected
        try:
            with config.at_home():
                made = _verified(run, again(run, named_file), options)
        except DriftwalkError as error:
            say(f"driftwalk: {run.title}: {error}")
            codes.add(error.exit_code)
            continue
        gates += [(file, judge(report, known.get(file, ()))) for report in made]
    whole = whole and not codes  # one that could not be run may be the one an entry speaks of
    alone = [
        line
        for file, entries in known.items()
        for line in unmet(entries, [named(g.report) for used, g in gates if used == file], whole)
    ]
    return _outcome([gate for _, gate in gates], alone, codes)


def again(run: Run, file: Path | None) -> str:
    """What runs this one again, from where the whole was run."""
    where = ["--config", str(file)] if file is not None else []
    return shlex.join(["driftwalk", "verify", *where, "--only", escape(run.title)])


def _verified(run: Run, command: str, options: Mapping[str, Any]) -> list[Report]:
    from ..api import verify_all

    with working() as bar:
        made = verify_all(
            run.model,
            run.common.candidates,
            **run.arguments,
            **options,
            command=command,
            progress=bar,
        )
    return [replace(report, model=run.named(report.model)) for report in made]


def _known(runs: Sequence[Run]) -> dict[Path | None, tuple[Known, ...]]:
    """Each file of expected drift, read before anything slow runs."""
    from ..project.expected import load_expected

    files = {run.common.expected for run in runs if run.common.expected}
    return {file: load_expected(file) for file in sorted(files)}


def judged(reports: Sequence[Report], known: Sequence[Known]) -> Outcome:
    """Reports of one model, held against what is known of such runs."""
    from ..project.expected import judge, named, unmet

    gates = [judge(report, known) for report in reports]
    return _outcome(gates, unmet(known, map(named, reports), whole=False), ())


def _outcome(gates: Sequence[Gate], alone: Iterable[str], codes: Iterable[int]) -> Outcome:
    """What the gates say on stderr, and all of it in one exit code.

    Drift outweighs a mistake, a mistake what could not be verified; no run at all is none.
    """
    for gate in gates:
        if gate.verdict == "expected":
            label, spec = gate.report.model.get("label", "a model"), gate.report.candidate.spec
            say(f"driftwalk: {label} on {spec}: drift, as expected; the notes say why.")
    failures = [*(line for gate in gates for line in gate.failures), *alone]
    for line in failures:
        say(f"driftwalk: {line}")
    found = {*codes, *(gate.exit_code for gate in gates), *((1,) if failures else ())}
    code = next((code for code in (1, 2, 3, 0) if code in found), 3)
    return [gate.report for gate in gates], code
