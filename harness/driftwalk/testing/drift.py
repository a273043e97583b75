"""The `drift` fixture: what `driftwalk` does, as assertions."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from ..api import verify
from ..comparison import compare, probe_of
from ..errors import BackendUnavailable, DriftwalkError, UsageError
from ..project.config import Common
from ..project.expected import judge, named
from ..registry import load_target
from ..result import Report
from ..states import Trace
from ..tasks.generation.result import Generation
from ..tasks.generation.run import generate
from ..tolerance import PolicyLike
from ..verification import record
from .golden import golden_at, golden_policy
from .settings import DriftCase, Settings, settings, unavailable
from .summary import GateRecord

_TEXTS = "driftwalk_reports.failing_test"

P = ParamSpec("P")
R = TypeVar("R")
Checked = TypeVar("Checked", Report, Generation)


def _quietly(method: Callable[P, R]) -> Callable[P, R]:
    """What a user did wrong, or lacks, is said in a sentence, without a look at our own code."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        try:
            return method(*args, **kwargs)
        except DriftwalkError as error:
            raised = error
        if isinstance(raised, BackendUnavailable):
            unavailable(str(raised), args[0]._request.config)  # type: ignore[attr-defined]
        raise AssertionError(f"driftwalk: {raised}")

    return run


class Drift:
    """Each method asserts, and returns the report of what it did."""

    def __init__(
        self, request: pytest.FixtureRequest, backend: str | None, tell: Callable[[str], None]
    ) -> None:
        self._request = request
        self._tell = tell  # a GateRecord, as text, to where the session collects them
        self.backend = backend
        """What the mark `drift_backends` names for this run."""
        self._count = 0

    @property
    def _settings(self) -> Settings:
        return settings(self._request.config)

    @property
    def _common(self) -> Common:
        return self._settings.config.common

    @_quietly
    def verify(self, model: object, candidate: object = None, **options: Any) -> Report:
        """`driftwalk.verify`, as an assertion; what is not said here, the configuration says.

        No candidate means the one that the mark `drift_backends` names, then the configuration's
        only one, then `onnxruntime`.
        """
        __tracebackhide__ = True
        chosen = self._candidate() if candidate is None else candidate
        report = verify(model, chosen, **(self._common.arguments | options))
        return self._gate(self._titled(report), self._common.expected)

    @_quietly
    def generate(self, model: object, candidate: object = None, **options: Any) -> Generation:
        """`driftwalk.generate`, as an assertion; what is not said here is said as in `verify`."""
        __tracebackhide__ = True
        chosen = self._candidate() if candidate is None else candidate
        known = self._common.arguments
        taken = ("reference", "policy", "allow_missing")
        given = {name: known[name] for name in taken if name in known}
        report = generate(model, chosen, **(given | options))
        titled = replace(report, command=self._command())
        return self._decoded(titled, self._common.expected)

    def _decoded(self, report: Generation, expected: Path | None) -> Generation:
        """As `_gate`, for a generation."""
        __tracebackhide__ = True
        file = self._settings.expected or expected
        gate = judge(report, self._settings.known(file))
        said = gate.report, gate.verdict, gate.failures
        folder = self._folder() if self._settings.report is not None or not gate.ok else None
        if folder is not None:
            gate.report.save(folder)
        line = load_target(f"{_TEXTS}:generation_line")(*said)
        where = str(folder or ""), str(file or "")
        kept = GateRecord(gate.verdict, *named(report), line, gate.ok, *where, kind=report.kind)
        self._tell(kept.to_json())
        if not gate.ok:
            page = str(kept.file("html")) if folder else ""
            raise AssertionError(load_target(f"{_TEXTS}:generation_failure")(*said, page))
        return gate.report

    @_quietly
    def run(self, case: DriftCase) -> Report:
        """One case of the configuration: the argument `drift_case`."""
        __tracebackhide__ = True
        if not isinstance(case, DriftCase):
            raise UsageError(f"drift.run takes what the argument drift_case has, not {case!r}.")
        with self._settings.config.at_home():
            report = verify(case.run.model, case.candidate, **case.run.arguments)
        report = replace(report, model=case.run.named(report.model))
        return self._gate(self._titled(report), case.run.common.expected)

    @_quietly
    def check(self, report: Checked) -> Checked:
        """Assert on a report that was made in another way: `driftwalk.compare`, `load` …"""
        __tracebackhide__ = True
        if isinstance(report, Generation):
            return self._decoded(report, self._common.expected)
        if not isinstance(report, Report):
            raise UsageError(f"drift.check takes a report of verify or generate, not {report!r}.")
        return self._gate(report, self._common.expected)

    @_quietly
    def golden(
        self,
        name: str,
        model: object,
        backend: object = None,
        *,
        policy: PolicyLike | None = None,
        signature: bool | None = None,
        allow_missing: tuple[str, ...] = (),
        **options: Any,
    ) -> Report | None:
        """Compare a model, or a trace, with the golden trace of that name; `--drift-update` writes.

        A model runs on `backend`, with the golden trace's own probe unless another is given;
        `options` are those of `driftwalk.record`. `signature=True` stores kilobytes fit for git.
        Nothing is returned where a golden trace was written.
        """
        __tracebackhide__ = True
        if not isinstance(name, str):
            raise UsageError(f"A golden trace has a name, and {name!r} is none.")
        folder = self._request.path.parent / self._settings.config.golden  # beside the test's file
        golden = golden_at(folder, name, signature)
        again = f"To store what it is now: pytest {self._typed()} --drift-update"
        if self._request.config.option.drift_update:
            written = golden.write(self._traced(model, backend, options))
            line = f"GOLDEN {'written' if written else 'unchanged'}: {golden.path}"
            self._tell(GateRecord("golden", name, "", line).to_json())
            return None
        if not golden.path.exists():
            raise UsageError(f"There is no golden trace {str(golden.path)!r}. {again}")
        stored = golden.load()
        if not isinstance(model, Trace):
            options.setdefault("probe", probe_of(stored))
        fresh = self._traced(model, backend, options)
        judged = golden_policy(self._common.policy) if policy is None else policy
        try:
            report = compare(stored, fresh, judged, allow_missing or self._common.allow_missing)
        except UsageError as error:
            raise UsageError(f"{error} {again}") from None
        named_so = replace(report, model={**report.model, "golden": name})
        return self._gate(self._titled(named_so), self._common.expected, again)

    def _candidate(self) -> str:
        if self.backend is not None:
            return self.backend
        several = self._common.candidates
        if len(several) > 1:
            raise UsageError(
                f"The configuration names {len(several)} candidates. Name one, or run the test on "
                f"each: @pytest.mark.drift_backends({', '.join(map(repr, several))})."
            )
        return several[0]

    def _traced(self, model: object, backend: object, options: dict[str, Any]) -> Trace:
        if isinstance(model, Trace):
            if backend is not None or options:
                raise UsageError("A trace is made already: it takes no backend and no options.")
            return model
        return record(model, (self.backend or "torch") if backend is None else backend, **options)

    def _typed(self) -> str:
        """The name of the test, as it can be given to pytest where this one was started."""
        node, started = self._request.node, self._request.config.invocation_params.dir
        _, colons, inside = node.nodeid.partition("::")
        file = Path(os.path.relpath(node.path, started)).as_posix()
        return shlex.quote(f"{file}{colons}{inside}")

    def _titled(self, report: Report) -> Report:
        return replace(report, command=self._command())

    def _command(self) -> str:
        return f"pytest {self._typed()}"

    def _gate(self, report: Report, expected: Path | None, advice: str = "") -> Report:
        """Compare it with what is expected, keep its report, and fail where it does."""
        __tracebackhide__ = True
        file = self._settings.expected or expected
        gate = judge(report, self._settings.known(file))
        said = gate.report, gate.verdict, gate.failures
        folder = self._folder() if self._settings.report is not None or not gate.ok else None
        if folder is not None:
            gate.report.save(folder)
        line = load_target(f"{_TEXTS}:summary_line")(*said)
        told = GateRecord(
            gate.verdict, *named(report), line, gate.ok, str(folder or ""), str(file or "")
        )
        self._tell(told.to_json())
        if not gate.ok:
            page = str(folder / "report.html") if folder else ""
            raise AssertionError(load_target(f"{_TEXTS}:failure")(*said, page, advice))
        return gate.report

    def _folder(self) -> Path:
        """Below `--drift-report`; else among pytest's temporary folders, which it keeps a while.

        Each gate of each test has a place of its own, the same in whichever process it runs.
        """
        self._count += 1
        nodeid, root = self._request.node.nodeid, self._settings.report
        if root is None:
            factory: pytest.TempPathFactory = self._request.getfixturevalue("tmp_path_factory")
            root = factory.getbasetemp() / "driftwalk"
        key = f"{nodeid}#{self._count}".encode(errors="replace")
        plain = re.sub(r"[^A-Za-z0-9_]+", "-", nodeid.rpartition("/")[2]).strip("-")[:60]
        return root / f"{plain or 'test'}-{hashlib.sha256(key).hexdigest()[:8]}"
