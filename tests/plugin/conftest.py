"""Projects in temporary folders, whose pytest runs inside this process: torch is imported once."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from cli.program import SOURCES

MODEL = """
import torch
from cli.factories import Tiny


def faulty():
    model = Tiny()
    with torch.no_grad():
        model.blocks[1].linear.weight[0, 0] += 0.5
    return model
"""

TRACES = '''
import numpy as np
from driftwalk import BackendInfo, Point, Probe, State, Trace


def trace(change=0.0, at=1, name="port"):
    """Four small states, of which one may be changed; no framework is needed for it."""
    rng = np.random.default_rng(0)
    states = []
    for number, point in enumerate(["embed", "layer.0", "layer.1", "logits"]):
        array = rng.standard_normal((2, 3, 8)).astype(np.float32)
        if number == at:
            array = array + np.float32(change)
        states.append(State(Point(point), array))
    probe = Probe({"input_ids": np.arange(6).reshape(2, 3)}, "test")
    return Trace(tuple(states), probe, BackendInfo(name, name, "cpu", "fp32", {}, {}), {})
'''

Run = Callable[..., pytest.RunResult]


@pytest.fixture(scope="session", autouse=True)
def everything_is_imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What pytester finds imported stays imported; torch cannot be imported twice."""
    import driftwalk
    import driftwalk.cli.app
    import driftwalk.publish
    import driftwalk.signatures.make
    import driftwalk.testing.drift
    import driftwalk.testing.summary
    from cli.factories import Tiny

    made = [driftwalk.verify(Tiny(), spec, blame=True) for spec in ("torch", "emulated:fp16")]
    driftwalk.publish.publish(made, tmp_path_factory.mktemp("imports"))
    driftwalk.signatures.data.Signature.of(driftwalk.record(Tiny()))


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty project that has a model and traces, and nothing of where these tests run."""
    for name in ("CI", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(SOURCES))
    monkeypatch.syspath_prepend(str(pytester.path))
    pytester.makepyfile(model=MODEL, traces=TRACES)
    return pytester


@pytest.fixture
def run(project: pytest.Pytester) -> Run:
    """pytest in the project, with our plugin and no other."""

    def go(*arguments: str) -> pytest.RunResult:
        plugins = ("-p", "driftwalk.plugin", "-p", "no:cacheprovider")
        return project.runpytest_inprocess(*plugins, *arguments)

    return go
