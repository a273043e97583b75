"""The pytest plugin. Nothing happens, and no framework is imported, until a fixture is used."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from .adapter import Lap
    from .testing.drift import Drift

MARK = "drift_backends(*specs): run the test once for each backend, as `drift_backend`"
PROPERTY = "driftwalk"
"""The name under which a test's outcomes travel: between processes, and into JUnit files."""
SESSION = "driftwalk-session"


def _update(text: str) -> str:
    if text not in ("yes", "force"):  # "yes" stands for the bare option
        raise argparse.ArgumentTypeError(
            f"expected nothing or 'force', found {text!r}; put --drift-update behind the paths"
        )
    return text


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("driftwalk", "cross-backend numerical verification")
    group.addoption("--drift-report", metavar="DIR", help="Write all reports here, with an index.")
    group.addoption(
        "--drift-update",
        nargs="?",
        const="yes",
        type=_update,
        metavar="force",
        help="Write golden traces instead of comparing; where CI is set, only if forced.",
    )
    group.addoption(
        "--drift-require",
        action="store_true",
        help="What is not there fails: backends, and runs that expected drift speaks of.",
    )
    group.addoption("--drift-expected", metavar="FILE", help="Known deviations, in TOML.")
    group.addoption("--drift-config", metavar="FILE", help="driftwalk.toml or pyproject.toml.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)
    config.pluginmanager.register(Session(config), SESSION)
    if config.option.drift_update == "yes" and os.environ.get("CI"):
        raise pytest.UsageError(
            "--drift-update: CI is set, and what a build writes for itself proves nothing. "
            "Update golden traces where you can look at them, or give --drift-update=force."
        )
    # Workers of pytest-xdist get these as they stand here, and may have another folder.
    for name in ("drift_report", "drift_expected", "drift_config"):
        if given := getattr(config.option, name):
            setattr(config.option, name, os.path.join(config.invocation_params.dir, given))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("drift_backends")
    if "drift_case" in metafunc.fixturenames:
        from .testing.settings import configured_cases

        cases = configured_cases(metafunc.config)
        metafunc.parametrize("drift_case", cases, ids=str, indirect=True)
    if mark is not None and "drift_backend" in metafunc.fixturenames:
        from .testing.settings import marked_specs

        metafunc.parametrize("drift_backend", marked_specs(mark), ids=str, indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The line of the short summary begins with what was found: the layer, where one drifts."""
    report = yield
    crash = getattr(report.longrepr, "reprcrash", None)
    if report.failed and crash is not None and "drift" in getattr(item, "fixturenames", ()):
        crash.message = crash.message.removeprefix("AssertionError: ")
    return report


class Session:
    """Collects what tests tell, in the process that sees them all, and ends the session with it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.told: list[tuple[str, str]] = []
        self.lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":  # it has what all phases told
            own = [str(value) for name, value in report.user_properties if name == PROPERTY]
            self.told += [(report.nodeid, value) for value in own]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.told or hasattr(self._config, "workerinput"):
            return
        from .testing.summary import finish

        self.lines, failed = finish(self._config, self.told)
        if failed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.lines:
            terminalreporter.section("driftwalk")
            for line in self.lines:
                terminalreporter.write_line(line)


@pytest.fixture
def drift_backend(request: pytest.FixtureRequest) -> str | None:
    """The spec that the mark `drift_backends` names for this run; None without one."""
    spec: str | None = getattr(request, "param", None)
    if spec is not None:
        from .testing.settings import skip_unless_usable

        skip_unless_usable(spec, request.config)
    return spec


@pytest.fixture
def drift_case(request: pytest.FixtureRequest) -> Any:
    """One model, probe and candidate of the configuration; the test runs once for each."""
    return request.param


@pytest.fixture
def drift(request: pytest.FixtureRequest, drift_backend: str | None) -> Drift:
    """Verify models, compare with golden traces, check reports: each asserts."""
    from .testing.drift import Drift

    told = request.node.user_properties
    return Drift(request, drift_backend, lambda outcome: told.append((PROPERTY, outcome)))


@pytest.fixture
def drift_benchmark(benchmark: Any) -> Iterator[Callable[..., Lap]]:
    """Time a backend under pytest-benchmark: `drift_benchmark("onnxruntime", model)`.

    Takes a spec, a model, a probe (the default one, if none is given), and options of
    `driftwalk.backend`. The backend is loaded and has run once before the first timed run.
    """
    with ExitStack() as opened:

        def run(spec: str, model: object, probe: object = None, **options: Any) -> Lap:
            from .stage import make_probe, open_model
            from .verification import backend

            loaded = open_model(model, **options)
            made = opened.enter_context(backend(spec, loaded))
            fixed = make_probe(loaded, probe)
            made.lap(fixed)
            benchmark.extra_info["backend"] = spec
            return cast("Lap", benchmark(made.lap, fixed))

        yield run
