"""Somebody else's backend: found, tested by the same suite, unable to shadow a built-in one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import driftwalk
from driftwalk.conformance.suite import BackendConformance
from driftwalk.errors import BackendUnavailable
from driftwalk.registry import BUILT_IN, backend_class, known_backends

HERE = Path(__file__).parent
ENTRY_POINTS = """\
[driftwalk.backends]
numpy_port = numpy_port:NumpyPort
torch = numpy_port:NumpyPort
half_gone = a_module_that_was_deleted:Backend
"""


def install(site: Path) -> Path:
    """What pip would leave behind: a module, and a dist-info folder that registers it."""
    shutil.copy(HERE / "numpy_port.py", site)
    info = site / "numpy_port-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy-port\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return site


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    site = install(tmp_path_factory.mktemp("site"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        known_backends.cache_clear()
        yield site
    known_backends.cache_clear()
    sys.modules.pop("numpy_port", None)


class TestNumpyPort(BackendConformance):
    spec = "numpy_port"
    models = ("demo:decoder",)


def test_it_is_found_through_its_entry_point() -> None:
    assert known_backends()["numpy_port"] == "numpy_port:NumpyPort"
    assert backend_class("numpy_port").__name__ == "NumpyPort"


def test_it_verifies_like_a_built_in_one() -> None:
    report = driftwalk.verify(
        "demo:decoder", candidate="numpy_port", reference="torch:cpu:fp64", policy="dtype"
    )
    assert report.ok, report
    assert report.coverage.compared == 9
    assert report.candidate.name == "numpy_port"


def test_it_cannot_shadow_a_built_in_name() -> None:
    assert known_backends()["torch"] == BUILT_IN["torch"]
    assert backend_class("torch").__name__ == "TorchEager"


def test_a_registered_backend_that_cannot_be_imported_says_so() -> None:
    with pytest.raises(BackendUnavailable, match=r"'half_gone' cannot be imported.*was_deleted"):
        backend_class("half_gone")


SUITE = """\
from driftwalk.conformance import BackendConformance

class TestMine(BackendConformance):
    spec = "numpy_port"
    models = ("demo:decoder",)

    def test_fails(self, model):
        assert model == "demo:encoder"
"""
LISTED = """\
# a known failure, and one that is long mended
numpy_port::test_fails[demo:decoder]
numpy_port::test_can_be_closed_twice[demo:decoder]  # passes
"""
PYTEST = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider"]


@pytest.mark.slow
def test_a_third_party_runs_the_suite_with_known_failures_of_its_own(tmp_path: Path) -> None:
    install(tmp_path)
    shutil.copy(HERE / "conftest.py", tmp_path)
    (tmp_path / "test_mine.py").write_text(SUITE)
    (tmp_path / "xfails").mkdir()
    (tmp_path / "xfails" / "numpy_port.txt").write_text(LISTED)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [*PYTEST, "-k", "fails or closed_twice or in_order", "test_mine.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "XFAIL test_mine.py::TestMine::test_fails[demo:decoder]" in done.stdout
    assert "FAILED test_mine.py::TestMine::test_can_be_closed_twice[demo:decoder]" in done.stdout
    assert "[XPASS(strict)] known: xfails/numpy_port.txt" in done.stdout
