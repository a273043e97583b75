"""The pytest plugin. Nothing happens, and no framework is imported, until a fixture is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .adapter import Lap


@pytest.fixture
def drift_benchmark(benchmark: Any) -> Iterator[Callable[..., Lap]]:
    """Time a backend under pytest-benchmark: `drift_benchmark("onnxruntime", model)`.

    Takes a spec, a model, a probe (the default one, if none is given), and options of
    `driftwalk.backend`. The backend is loaded and has run once before the first timed run.
    """
    with ExitStack() as opened:

        def run(spec: str, model: object, probe: object = None, **options: Any) -> Lap:
            from driftwalk_backends.probes import make_probe
            from driftwalk_backends.sources import open_model

            from .verification import backend

            loaded = open_model(model, **options)
            made = opened.enter_context(backend(spec, loaded))
            fixed = make_probe(loaded, probe)
            made.lap(fixed)
            benchmark.extra_info["backend"] = spec
            found: Lap = benchmark(made.lap, fixed)
            return found

        yield run
