"""Is it the versions? The same `driftwalk verify` in two environments, each in its own interpreter.

The driftwalk that judges is this one in both: its folders come first on the path of the others.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...children import Child
from ...document import read
from ...environment import head
from ...errors import BackendError, UsageError
from ...progress import Progress
from ...result import Report
from ..bounds import check_bounds
from .oracle import is_bad
from .oracle import read as read_rows
from .result import Bisection, Environment, Outcome

_PACKAGES = """
import importlib.metadata, json, platform
found = {"python": platform.python_version()}
for one in importlib.metadata.distributions():
    if one.metadata["Name"]:
        found.setdefault(one.metadata["Name"].lower().replace("_", "-"), one.version)
print(json.dumps(found))
"""


def bisect_environments(
    good: str | Path,
    bad: str | Path,
    words: Sequence[str],
    *,
    minutes: float | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> Bisection:
    """Whether drift comes with an environment, and which packages differ between the two.

    `good` and `bad` are interpreters, `words` what follows `driftwalk verify`.
    """
    check_bounds(None, minutes, least=1)
    show = progress or Progress()
    reports: dict[str, Report] = {}
    packages: dict[str, Mapping[str, str]] = {}
    for name, python in (("good", good), ("bad", bad)):
        if not Path(python).is_file():
            raise UsageError(f"--{name}-env {python}: there is no such interpreter.")
        with show.stage(f"the {name} environment", extra=True):
            packages[name] = _packages(str(python))
            reports[name] = _verified(str(python), words, minutes)
    differing = [
        name
        for name in sorted({*packages["good"], *packages["bad"]})
        if packages["good"].get(name) != packages["bad"].get(name)
    ]
    fine, drifting = reports["good"], reports["bad"]
    outcome, reason = _outcome(fine, drifting, len(differing))
    root = drifting.root_cause or drifting.first_divergence
    point = root.point.name if root is not None and is_bad(root) else ""
    environments = tuple(
        _environment(name, reports[name], packages[name], differing, point)
        for name in ("good", "bad")
    )
    return Bisection(
        **head(command, drifting.model, drifting.notes),
        reference=drifting.reference,
        candidate=drifting.candidate,
        probe=drifting.probe,
        verdict=drifting.verdict,
        outcome=outcome,
        reason=reason,
        point=point,
        environments=environments,
    )


def _outcome(good: Report, bad: Report, differing: int) -> tuple[Outcome, str]:
    if "unverified" in (good.verdict, bad.verdict):
        return "unverified", good.reason or bad.reason
    if bad.verdict == "pass":
        both = "both environments are" if good.verdict == "pass" else "the bad one is"
        return "nothing", f"{both} within what is allowed"
    if good.verdict == "drift":
        return "none", "it is there in the good environment, too"
    return "found", f"{differing} packages differ between the two"


def _environment(
    name: str, report: Report, packages: Mapping[str, str], differing: Sequence[str], point: str
) -> Environment:
    there = any(row.point.name == point for row in report.layers)
    reading = read_rows(report.layers, point)[0] if report.layers and there else None
    own = {package: packages.get(package, "") for package in differing}
    return Environment(name, report.verdict, own, reading)


def _packages(python: str) -> Mapping[str, str]:
    found: Mapping[str, str] = json.loads(_output([python, "-c", _PACKAGES], None))
    return found


def _verified(python: str, words: Sequence[str], minutes: float | None) -> Report:
    text = _output([python, "-m", "driftwalk", "verify", *words, "--json"], minutes)
    try:
        return read(Report, json.loads(text))
    except json.JSONDecodeError:
        raise BackendError(f"{python} -m driftwalk verify printed no result.") from None


def _output(words: Sequence[str], minutes: float | None) -> str:
    """What a program prints; drift is no failure."""
    own = os.pathsep.join(_roots())
    path = os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH", ""))))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        child = Child(words, env={**os.environ, "PYTHONPATH": path}, text=True, **pipes)
    except OSError as error:
        raise UsageError(f"Cannot run {words[0]}: {error.strerror or error}.") from None
    try:
        out, said = child.communicate(timeout=None if minutes is None else 60 * minutes)
    except BaseException as error:
        child.end()
        if isinstance(error, subprocess.TimeoutExpired):
            raise BackendError(f"{words[0]} took more than {minutes:g} minutes.") from None
        raise
    if child.returncode not in (0, 1, 3) or not out.strip():
        last = (said.strip().splitlines() or ["nothing was printed"])[-1]
        raise BackendError(f"{words[0]} failed: {last[:400]}")
    return out


def _roots() -> list[str]:
    """The folders in which the packages of driftwalk lie."""
    from importlib.util import find_spec

    found = []
    for name in ("driftwalk", "driftwalk_backends", "driftwalk_reports"):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            found.append(str(Path(spec.origin).parent.parent))
    return list(dict.fromkeys(found))
