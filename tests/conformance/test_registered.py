"""The conformance suite, stamped out for every registered backend."""

from __future__ import annotations

import pytest

from driftwalk.conformance.suite import BackendConformance
from driftwalk.registry import known_backends
from driftwalk_backends import demo

SPECS: dict[str, tuple[str, ...]] = {
    "torch": (
        "torch",
        "torch:cpu:bf16",
        "torch:cpu:fp64",
        "torch:auto",
        "torch:cuda",
        "torch:cuda:fp16",
    ),
    "emulated": ("emulated:fp16", "emulated:bf16", "emulated:tf32"),
    "onnxruntime": ("onnxruntime", "onnxruntime:cuda"),
    "openvino": ("openvino",),
    "executorch": ("executorch",),
}
"""Which specs of a backend are tested; of one not named here, its bare name."""

RUN_NO_MODEL = {"trace", "command", "gguf", "llamacpp"}
"""They hand on what others computed: tests/cli/test_traces.py, tests/backends/test_command.py; or
run files alone, which have a suite of their own: tests/backends/gguf/test_llamacpp.py."""


@pytest.fixture(autouse=True)
def _few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first, a last and one between: what a backend must keep does not depend on how many."""
    monkeypatch.setattr(demo, "LAYERS", 3)


def _stamp(spec: str) -> type[BackendConformance]:
    name = "Test" + "".join(word.capitalize() for word in spec.split(":"))
    made = type(name, (BackendConformance,), {"spec": spec, "__module__": __name__})
    return pytest.mark.cuda(made) if ":cuda" in spec else made


for _name in sorted({*known_backends()} - RUN_NO_MODEL):
    for _spec in SPECS.get(_name, (_name,)):
        _made = _stamp(_spec)
        globals()[_made.__name__] = _made


def _stamped() -> list[type[BackendConformance]]:
    kinds = [kind for kind in globals().values() if isinstance(kind, type)]
    return [kind for kind in kinds if issubclass(kind, BackendConformance) and kind.spec]


def test_every_registered_backend_is_stamped_out() -> None:
    stamped = {kind.spec.partition(":")[0] for kind in _stamped()}
    assert stamped | RUN_NO_MODEL == set(known_backends())


def test_every_known_failure_names_a_test(known_failures: dict[str, list[str]]) -> None:
    ids = {f"{made.spec}::{case}" for made in _stamped() for case in made.case_ids()}
    stale = [test for tests in known_failures.values() for test in tests if test not in ids]
    assert not stale, f"xfails/ names tests that do not exist: {stale}"
    for backend, tests in known_failures.items():
        assert backend in known_backends(), f"xfails/{backend}.txt: there is no such backend"
        misplaced = [test for test in tests if test.partition("::")[0].split(":")[0] != backend]
        assert not misplaced, f"xfails/{backend}.txt lists tests of another backend: {misplaced}"


def test_case_ids_are_those_pytest_makes(request: pytest.FixtureRequest) -> None:
    made = {
        f"{item.cls.spec}::{item.name}"
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.cls in _stamped()
    }
    assert made <= {f"{kind.spec}::{case}" for kind in _stamped() for case in kind.case_ids()}
