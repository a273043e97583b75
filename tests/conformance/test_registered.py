"""The conformance suite, stamped out for every registered backend."""

from __future__ import annotations

import pytest

from driftwalk.conformance import BackendConformance
from driftwalk.registry import known_backends

SPECS: dict[str, tuple[str, ...]] = {
    "torch": ("torch", "torch:cpu:bf16", "torch:cpu:fp64", "torch:cuda", "torch:cuda:fp16"),
    "onnxruntime": ("onnxruntime", "onnxruntime:cuda"),
}
"""Which specs of a backend are tested; of one not named here, its bare name."""


def _stamp(spec: str) -> type[BackendConformance]:
    name = "Test" + "".join(word.capitalize() for word in spec.split(":"))
    made = type(name, (BackendConformance,), {"spec": spec, "__module__": __name__})
    return pytest.mark.cuda(made) if ":cuda" in spec else made


for _name in known_backends():
    for _spec in SPECS.get(_name, (_name,)):
        _made = _stamp(_spec)
        globals()[_made.__name__] = _made


def test_every_registered_backend_is_stamped_out() -> None:
    stamped = {
        made.spec.partition(":")[0]
        for made in globals().values()
        if isinstance(made, type) and issubclass(made, BackendConformance) and made.spec
    }
    assert stamped == set(known_backends())
    assert set(SPECS) <= set(known_backends())
