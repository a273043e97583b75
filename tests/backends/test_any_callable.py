"""Whatever can be called: what its forward takes is known, and it is called with just that."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
from driftwalk.errors import ProbeError
from driftwalk_backends.calls import call, check_names, forward_of, inputs_for, quietly
from driftwalk_backends.model_outputs import named_outputs
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from torch_nets import Block

X = np.random.default_rng(0).standard_normal((2, 4, 8)).astype(np.float32)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def encode(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        given: torch.Tensor = self(x)
        return given * scale


class ByPosition(Stack):
    def forward(self, x: torch.Tensor, /) -> torch.Tensor:
        return super().forward(x)


class Anything(Stack):
    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return super().forward(given[0]) * given[1]


class OneAndMore(Stack):
    def forward(self, x: torch.Tensor, *more: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        return super().forward(x) * factor + sum(more)


class ByName(Stack):
    def forward(self, *, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def without_a_trace(function: Any) -> Any:
    """A decorator that says nothing of what it wraps."""

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return wrapper


def with_a_trace(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return wrapper


class Wrapped(Stack):
    @without_a_trace
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class WrappedWell(Stack):
    @with_a_trace
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Both(NamedTuple):
    main: torch.Tensor
    rest: list[torch.Tensor]


class Pairs(Stack):
    def forward(self, x: torch.Tensor) -> Both:
        x = super().forward(x)
        return Both(x * 2, [x.sum(), x.mean(-1)])


class Tuples(Stack):
    def forward(self, x: torch.Tensor) -> Any:
        x = super().forward(x)
        return x.mean(-1), {"a": {"b": [x * 3]}}, [x.sum(-1)]


TWO = {"a": X, "b": np.float32(2)}
MODULES: dict[str, tuple[nn.Module, dict[str, Any]]] = {
    "by position alone": (ByPosition(), {"x": X}),
    "any positions": (Anything(), TWO),
    "one and any more": (OneAndMore(), {"x": X, "y": X, "factor": 0.5}),
    "by name alone": (ByName(), {"x": X}),
    "a decorator that says nothing": (Wrapped(), {"x": X}),
    "a decorator": (WrappedWell(), {"x": X}),
    "a named tuple": (Pairs(), {"x": X}),
    "tuples, dicts and lists": (Tuples(), {"x": X}),
}


RUNS = [(name, "emulated:bf16") for name in MODULES]
RUNS += [(name, "onnxruntime") for name in ("any positions", "a named tuple")]
RUNS += [(name, "torch,compile=aot_eager") for name in ("by position alone", "any positions")]


@pytest.mark.parametrize(("name", "candidate"), RUNS)
def test_modules_of_every_signature_are_verified(name: str, candidate: str) -> None:
    module, given = MODULES[name]
    report = driftwalk.verify(module.eval(), candidate, probe=given, cache=False)
    assert report.ok, report.reason
    assert "layer.1" in {row.point.name for row in report.layers}


def scripted() -> nn.Module:
    class Simple(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
            return self.inner(x) * scale

    torch.manual_seed(0)
    return Simple().eval()


KINDS = ("scripted", "traced", "frozen", "reloaded")


def torchscript(kind: str, folder: Any) -> Any:
    example = torch.from_numpy(X)
    if kind == "traced":
        return torch.jit.trace(Stack().eval(), example)
    made = torch.jit.script(scripted())
    if kind == "frozen":
        return torch.jit.freeze(made)
    if kind == "reloaded":
        made.save(str(folder / "model.pt"))
        return torch.jit.load(str(folder / "model.pt"))
    return made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_torchscript_modules_say_what_they_take_and_are_called(kind: str, tmp_path: Any) -> None:
    model = open_model(torchscript(kind, tmp_path))
    forward = forward_of(model.module)
    assert forward.names[0] == "x"
    assert forward.needed == ("x",)
    with pytest.raises(ProbeError, match="takes no input 'y'"):
        make_probe(model, {"y": X})
    if "scale" in forward.names:
        with pytest.raises(ProbeError, match="lacks input 'x'"):
            make_probe(model, {"scale": 2.0})
    probe = make_probe(model, {"x": X})
    with quietly(model.module):
        inputs = inputs_for(model.module, probe, torch.device("cpu"))
        first, again = (named_outputs(call(model.module, inputs)) for _ in range(2))
    assert torch.equal(first["output"], again["output"])
    if kind != "frozen":  # its weights are constants
        wide = model.at("fp64", "cpu")
        assert call(wide, {"x": torch.ones(1, 4, 8).double()}).dtype == torch.float64


class Headed(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(super().forward(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "point"), [(Stack, "layer.1"), (Headed, "logits")])
def test_torchscript_is_compared_with_the_plain_module_at_its_outputs(
    kind: type[Stack], point: str
) -> None:
    """Of `Stack` the output is a state already: it is compared with that state."""
    plain, faulty = kind().eval(), kind().eval()
    with torch.no_grad():
        faulty.layers[0].inner.weight.mul_(1.05)  # type: ignore[union-attr, operator]
    for module, verdict, said in ((plain, "pass", "ok"), (faulty, "drift", "drift")):
        made = torch.jit.trace(module, torch.from_numpy(X))
        report = driftwalk.verify(plain, made, probe={"x": X}, cache=False)
        assert report.verdict == verdict
        compared = {row.point.name: row.verdict for row in report.layers}
        assert compared.pop(point) == said
        assert set(compared.values()) == {"missing"}
        assert all(row.allowed for row in report.layers if row.verdict == "missing")
        assert any("Nothing inside of the candidate" in note for note in report.notes)
        assert report.root_cause is None  # a layer of the reference is not to blame


@pytest.mark.filterwarnings("ignore")
def test_a_plain_module_is_compared_with_torchscript_at_its_outputs() -> None:
    made = torch.jit.trace(Stack().eval(), torch.from_numpy(X))
    report = driftwalk.verify(made, Stack().eval(), probe={"x": X}, cache=False)
    assert report.verdict == "pass"
    assert [(row.point.name, row.verdict) for row in report.layers] == [("logits", "ok")]
    assert any("No part of the model could be looked at" in note for note in report.notes)


@pytest.mark.filterwarnings("ignore")
def test_what_is_missing_in_a_module_that_can_be_looked_into_is_still_an_alarm() -> None:
    shorter = Headed().eval()
    shorter.layers = shorter.layers[:1]
    report = driftwalk.verify(Headed().eval(), shorter, probe={"x": X}, cache=False)
    assert report.verdict == "drift"
    assert [row.point.name for row in report.layers if row.verdict == "missing"] == ["layer.1"]


@pytest.mark.parametrize("function", [torch.relu, torch.sin, len, print, functools.partial(max)])
def test_what_a_function_takes_is_never_an_error(function: Any) -> None:
    forward_of(function)


def test_compiled_functions_take_their_inputs_in_order() -> None:
    model = open_model(torch.mul)
    probe = make_probe(model, {"a": X, "b": X})
    check_names(model.module, probe)
    given = call(model.module, inputs_for(model.module, probe, torch.device("cpu")))
    assert torch.equal(given, torch.from_numpy(X * X))


# -- functions as models ---------------------------------------------------------------------------

MODEL = Stack().eval()


def by_global(x: torch.Tensor) -> torch.Tensor:
    given: torch.Tensor = MODEL(x)
    return given * 2


def closure() -> Any:
    inside = Stack().eval()
    return lambda x: inside(x) * 2


class Pipeline:
    """Neither a module nor a function."""

    def __init__(self) -> None:
        self.steps = [Stack().eval()]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x)
        return x * 2


FUNCTIONS = {
    "its globals": by_global,
    "its closure": closure(),
    "a bound method": MODEL.encode,
    "a partial": functools.partial(MODEL.encode, scale=2.0),
    "an object": Pipeline(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_models_and_their_modules_are_looked_into(name: str) -> None:
    function = FUNCTIONS[name]
    for candidate in ("emulated:bf16", "torch:cpu:fp64"):
        report = driftwalk.verify(function, candidate, probe={"x": X}, cache=False)
        assert report.ok, (candidate, report.reason)
        assert "layer.1" in {row.point.name for row in report.layers}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_candidates_and_their_faults_are_placed(name: str) -> None:
    def right(x: torch.Tensor) -> torch.Tensor:
        given: torch.Tensor = other(x)
        return given * 2

    other = Stack().eval()
    assert driftwalk.verify(right, FUNCTIONS[name], probe={"x": X}, cache=False).ok
    with torch.no_grad():
        other.layers[1].inner.weight.mul_(1.1)
    report = driftwalk.verify(FUNCTIONS[name], right, probe={"x": X}, cache=False)
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"


def test_a_float64_copy_of_a_function_leaves_the_original_alone() -> None:
    wide = open_model(by_global).at("fp64", "cpu")
    assert wide(torch.ones(1, 2, 8).double()).dtype == torch.float64
    assert by_global(torch.ones(1, 2, 8)).dtype == torch.float32
    assert next(MODEL.parameters()).dtype == torch.float32


def test_a_class_is_no_model() -> None:
    with pytest.raises(driftwalk.DriftwalkError, match="Cannot take"):
        open_model(Stack)


@pytest.mark.filterwarnings("ignore")
def test_the_code_of_torchscript_is_never_known_and_is_part_of_the_fingerprint() -> None:
    """A result computed from it is not stored: another script may have the same class."""

    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Thrice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 3

    two, three = (nn.Sequential(torch.jit.script(kind())) for kind in (Twice, Thrice))
    assert not open_model(two).has_known_code
    assert open_model(two).fingerprint != open_model(three).fingerprint
    assert open_model(two).fingerprint == open_model(two).fingerprint
