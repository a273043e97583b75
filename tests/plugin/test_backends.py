"""The mark `drift_backends`, and `--drift-require`: what is not here is skipped, or fails."""

from __future__ import annotations

import pytest

from plugin.conftest import Run

NOWHERE = "torch:mps"
"""A device that no machine of ours has; its reason names it."""

TEST = f"""
import pytest
from model import Tiny


@pytest.mark.drift_backends("torch:cpu:fp64", "emulated:fp16", "{NOWHERE}")
def test_each(drift, drift_backend):
    assert drift.backend == drift_backend
    report = drift.verify(Tiny())
    assert report.candidate.spec == drift_backend
"""


@pytest.fixture(autouse=True)
def no_mps() -> None:
    import torch

    if torch.backends.mps.is_available():
        pytest.skip("this machine has what the test takes for missing")


def test_a_test_runs_once_for_each(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(TEST)
    result = run("-v", "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*test_each?torch:cpu:fp64? PASSED*", "*emulated:fp16? PASSED*"])
    result.stdout.fnmatch_lines([f"SKIPPED*driftwalk: {NOWHERE}: *"])


def test_what_is_required_fails(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(TEST)
    result = run("--drift-require")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines([f"*driftwalk: --drift-require: {NOWHERE}: *"])


def test_without_the_mark_too(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(
        f"""
        from model import Tiny

        def test_port(drift):
            drift.verify(Tiny(), "{NOWHERE}")
        """
    )
    result = run("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*driftwalk: *mps*"])
    run("--drift-require").assert_outcomes(failed=1)


def test_the_closest_mark_counts(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.drift_backends("torch", "emulated:fp16")

        def test_all(drift_backend):
            assert drift_backend in ("torch", "emulated:fp16")

        @pytest.mark.drift_backends("torch:cpu:fp64")
        def test_one(drift_backend):
            assert drift_backend == "torch:cpu:fp64"
        """
    )
    run().assert_outcomes(passed=3)


def test_a_typo_fails_and_is_not_skipped(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(
        """
        import pytest

        @pytest.mark.drift_backends("torhc")
        def test_port(drift):
            pass
        """
    )
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*Unknown backend 'torhc'. Did you mean 'torch'?*"])


@pytest.mark.parametrize("mark", ["drift_backends", "drift_backends()", "drift_backends(3)"])
def test_a_mark_without_backends_is_no_pass(project: pytest.Pytester, run: Run, mark: str) -> None:
    project.makepyfile(f"import pytest\n\n@pytest.mark.{mark}\ndef test_port(drift): pass\n")
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the mark drift_backends takes backend specs*"])
