"""Known failures of the conformance suite: reviewed lists, one test id a line, never stale.

xfails/<backend>.txt holds lines such as `torch:cpu:bf16::test_masks_are_respected[demo:encoder]`.
A listed test that passes fails the run (strict); an id that names no test fails test_registered.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from driftwalk.conformance.suite import BackendConformance

FOLDER = Path(__file__).parent / "xfails"


def _read(file: Path) -> list[str]:
    lines = [line.partition("#")[0].strip() for line in file.read_text().splitlines()]
    return [line for line in lines if line]


@pytest.fixture(scope="session")
def known_failures() -> dict[str, list[str]]:
    """The listed ids by backend name."""
    return {file.stem: _read(file) for file in sorted(FOLDER.glob("*.txt"))}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    listed = {test: file.name for file in FOLDER.glob("*.txt") for test in _read(file)}
    for item in items:
        kind = getattr(item, "cls", None)
        if kind is None or not issubclass(kind, BackendConformance):
            continue
        if file := listed.get(f"{kind.spec}::{item.name}"):
            item.add_marker(pytest.mark.xfail(strict=True, reason=f"known: xfails/{file}"))
