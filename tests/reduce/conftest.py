"""What a file's own `model` is asked, and its export in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import driftwalk
from driftwalk.adapter import Backend
from driftwalk.states import Probe
from driftwalk_backends.loaded import LoadedModel
from driftwalk_backends.probes import make_probe


@pytest.fixture(scope="module")
def probe(model: LoadedModel) -> Probe:
    return make_probe(model)


@pytest.fixture(scope="module")
def clean(model: LoadedModel) -> Iterator[Backend]:
    with driftwalk.backend("onnxruntime", model) as made:
        yield made
