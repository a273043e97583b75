"""Graphs are open for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metamorphic import subjects


@pytest.fixture(scope="package", autouse=True)
def open_graphs() -> Iterator[None]:
    yield
    for spec in (subjects.GRAPH, subjects.GRAPH8):
        subjects.graph_of("llama", spec).close()
    subjects.graph_of.cache_clear()
