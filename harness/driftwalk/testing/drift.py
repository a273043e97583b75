"""The `drift` fixture: what `driftwalk` does, as assertions."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from ..api import verify
from ..comparison import compare
from ..errors import BackendUnavailable, DriftwalkError, UsageError
from ..project.config import Common
from ..project.expected import judge
from ..result import Report
from ..states import Trace
from ..tolerance import PolicyLike
from ..verification import record
from .backends import Case, unavailable
from .golden import golden_at, golden_policy, probe_of
from .outcome import Outcome, failure, folder_for, outcome, save
from .settings import Settings, settings

P = ParamSpec("P")
R = TypeVar("R")


def _quietly(method: Callable[P, R]) -> Callable[P, R]:
    """What a user did wrong, or lacks, is said in a sentence, without a look at our own code."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        told = ""
        try:
            return method(*args, **kwargs)
        except BackendUnavailable as error:
            told, missing = str(error), True
        except DriftwalkError as error:
            told, missing = f"driftwalk: {error}", False
        if missing:
            unavailable(told, args[0]._request.config)  # type: ignore[attr-defined]
        raise AssertionError(told)

    return run


class Drift:
    """Each method asserts, and returns the report of what it did."""

    def __init__(
        self, request: pytest.FixtureRequest, backend: str | None, tell: Callable[[str], None]
    ) -> None:
        self._request = request
        self._tell = tell
        """Hands an outcome on, as text, to where the session collects them."""
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
        common = self._common
        known = {
            "reference": common.reference,
            "policy": common.policy,
            "depth": common.depth,
            "allow_missing": common.allow_missing,
        }
        chosen = self._candidate() if candidate is None else candidate
        report = verify(model, chosen, **(known | options))
        return self._gate(self._titled(report), common.expected)

    @_quietly
    def run(self, case: Case) -> Report:
        """One case of the configuration: the argument `drift_case`."""
        __tracebackhide__ = True
        if not isinstance(case, Case):
            raise UsageError(f"drift.run takes what the argument drift_case has, not {case!r}.")
        with self._settings.config.at_home():
            report = verify(case.run.model, case.candidate, **case.run.arguments)
        report = replace(report, model=case.run.named(report.model))
        return self._gate(self._titled(report), case.run.common.expected)

    @_quietly
    def check(self, report: Report) -> Report:
        """Assert on a report that was made in another way: `driftwalk.compare`, `load` …"""
        __tracebackhide__ = True
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
        found = golden_at(self._golden_folder(), name, signature)
        again = f"To store what it is now: pytest {self._typed()} --drift-update"
        if self._settings.update:
            written = found.write(self._traced(model, backend, options))
            words = "written" if written else "unchanged"
            self._tell(Outcome("golden", name, "", f"GOLDEN {words}: {found.path}").told())
            return None
        if not found.exists:
            raise UsageError(f"There is no golden trace {str(found.path)!r}. {again}")
        stored = found.load()
        if not isinstance(model, Trace):
            options.setdefault("probe", probe_of(stored))
        fresh = self._traced(model, backend, options)
        judged = golden_policy(self._common.policy) if policy is None else policy
        try:
            report = compare(stored, fresh, judged, allow_missing or self._common.allow_missing)
        except UsageError as error:
            raise UsageError(f"{error} {again}") from None
        told = replace(report, model={**report.model, "golden": name}, command="")
        return self._gate(self._titled(told), self._common.expected, again)

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

    def _golden_folder(self) -> Path:
        """Beside the test's own file."""
        return self._request.path.parent / self._settings.config.golden

    def _typed(self) -> str:
        return shlex.quote(self._request.node.nodeid)

    def _titled(self, report: Report) -> Report:
        return replace(report, command=f"pytest {self._typed()}")

    def _gate(self, report: Report, expected: Path | None, advice: str = "") -> Report:
        """Hold it against what is expected, keep its report, and fail where it does."""
        __tracebackhide__ = True
        file = self._settings.expected or expected
        gate = judge(report, self._settings.known(file))
        folder = None
        if self._settings.report is not None or not gate.ok:
            folder = save(gate.report, self._folder())
        self._tell(outcome(gate, folder, file).told())
        if not gate.ok:
            raise AssertionError(failure(gate, folder, advice))
        return gate.report

    def _folder(self) -> Path:
        """Below `--drift-report`; else among pytest's temporary folders, which it keeps a while."""
        self._count += 1
        root = self._settings.report
        if root is None:
            factory: pytest.TempPathFactory = self._request.getfixturevalue("tmp_path_factory")
            root = factory.getbasetemp() / "driftwalk"
        return folder_for(root, self._request.node.nodeid, self._count)
