"""A copy of a model is that model: plain tensors, patched forwards and hooks come along."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from driftwalk.errors import ModelError
from driftwalk.registry import create
from driftwalk.states import Probe
from driftwalk_backends.precision import converted
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from own_runs import WIDTH, Stack, apart, given, probe, same_bits, seeded, to_float


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Holder:
    def __init__(self) -> None:
        self.shift = torch.randn(WIDTH)


class PlainTensors(nn.Module):
    """Tensors and modules everywhere that `.to()` does not look."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)
        self.plain = torch.randn(WIDTH, WIDTH)
        self.listed = [torch.randn(WIDTH, WIDTH)]
        self.keyed = {"a": {"b": torch.randn(WIDTH, WIDTH)}}
        self.pair = Pair(torch.randn(WIDTH, WIDTH), torch.randn(WIDTH, WIDTH))
        self.curried = functools.partial(torch.matmul, other=torch.randn(WIDTH, WIDTH))
        self.hidden = [nn.Linear(WIDTH, WIDTH)]
        self.holder = Holder()
        self.scale = np.float32(0.3)
        self.gain = np.full(WIDTH, 1.25, np.float32)
        self.many = torch.arange(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x @ self.plain + x @ self.listed[0] + x @ self.keyed["a"]["b"])
        x = torch.tanh(x @ self.pair.left @ self.pair.right + self.holder.shift)
        x = self.hidden[0](self.curried(x)) * float(self.scale) * torch.from_numpy(self.gain)
        return self.out(x.to(self.out.weight.dtype))


def test_plain_tensors_are_carried_along() -> None:
    model = seeded(PlainTensors)
    plain = given("torch", model)
    right = given("truth", model)
    assert 0 < apart(plain, right) < 1e-6
    assert 0 < apart(given("truth,casts=kept", model), plain) < 1e-6
    twin = converted(model, "fp64", "cpu")
    held = [twin.plain, twin.listed[0], twin.keyed["a"]["b"], *twin.pair, twin.holder.shift]
    held += [twin.curried.keywords["other"], twin.hidden[0].weight]
    assert {t.dtype for t in held} == {torch.float64}
    assert isinstance(twin.pair, Pair)
    assert twin.many.dtype == torch.int64
    assert model.plain.dtype == model.hidden[0].weight.dtype == torch.float32
    assert model.holder.shift.dtype == model.curried.keywords["other"].dtype == torch.float32
    assert converted(model, "bf16", "cpu").plain.dtype == torch.float32


def patched_by_closure(model: nn.Module) -> None:
    block, shift = model.blocks[1], torch.full((WIDTH, WIDTH), 0.05)
    own = block.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        return own(x) + x @ shift + 0.1 * block.inner(x)

    block.forward = forward


def patched_by_method(model: nn.Module) -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x - torch.tanh(self.inner(x))

    model.blocks[1].forward = types.MethodType(forward, model.blocks[1])


def patched_like_accelerate(model: nn.Module) -> None:
    block = model.blocks[1]
    own = block.forward

    def forward(module: nn.Module, *args: torch.Tensor) -> torch.Tensor:
        return 2 * module._old_forward(*args)

    block._old_forward = own
    block.forward = functools.update_wrapper(functools.partial(forward, block), own)


def patched_twice(model: nn.Module) -> None:
    patched_by_closure(model)
    patched_by_closure(model)


def hooked(model: nn.Module) -> None:
    steer = torch.linspace(-1, 1, WIDTH * WIDTH).reshape(WIDTH, WIDTH)
    model.blocks[1].register_forward_hook(lambda module, args, out: out + out @ steer)


def hooked_before(model: nn.Module) -> None:
    adapter = seeded(lambda: nn.Linear(WIDTH, WIDTH))
    model.blocks[1].register_forward_pre_hook(lambda module, args: (args[0] + adapter(args[0]),))


CHANGES = [
    patched_by_closure,
    patched_by_method,
    patched_like_accelerate,
    patched_twice,
    hooked,
    hooked_before,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_copy_of_a_changed_model_is_that_model(change: Callable[[nn.Module], None]) -> None:
    model = seeded(Stack)
    untouched = given("torch", model)
    change(model)
    on = probe()
    with torch.no_grad():
        own = model(torch.from_numpy(on.inputs["x"].copy())).numpy()
    assert apart(untouched, own) > 1e-2
    with create("torch", model) as backend:
        plain = backend.trace(on)
    assert same_bits(plain["logits"], own)
    with create("truth", model) as backend:
        right = backend.trace(on)
    assert right.names == plain.names
    assert all(apart(plain[name], right[name]) < 1e-6 for name in plain.names)
    with create("emulated:bf16", model) as backend:
        half = backend.trace(on)
    assert 1e-5 < apart(to_float(half["logits"]), right["logits"]) < 5e-2
    # The copy has weights of its own: what happens to the original is nothing to it.
    twin = converted(model, "fp64", "cpu")
    x = torch.from_numpy(on.inputs["x"].copy()).double()
    with torch.no_grad():
        before = twin(x)
        for parameter in model.parameters():
            parameter.zero_()
        assert torch.equal(before, twin(x))


@pytest.mark.parametrize("asked", [False, True], ids=["fresh", "asked for hidden states"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_a_users_hook_on_a_block_is_part_of_the_model(name: str, asked: bool) -> None:
    """Transformers leaves hooks on a model asked for hidden states: they see it without ours."""
    model = zoo.build(name)
    on = make_probe(open_model(model), None)
    if asked:
        with torch.no_grad():
            model(torch.zeros(1, 4, dtype=torch.long), output_hidden_states=True)
    stack = next(m for m in model.modules() if isinstance(m, nn.ModuleList))

    def steer(module: nn.Module, args: object, out: object) -> object:
        return (out[0] * 1.5, *out[1:]) if isinstance(out, tuple) else out * 1.5

    stack[1].register_forward_hook(steer)
    with create("torch", model) as backend:
        plain = backend.trace(on)
    with create("truth", model) as backend:
        right = backend.trace(on)
    assert all(apart(plain[point], right[point]) < 1e-5 for point in plain.names)
    with create("torch", zoo.build(name)) as backend:
        without = backend.trace(on)
    assert same_bits(plain["layer.0"], without["layer.0"])
    assert apart(plain["layer.1"], 1.5 * without["layer.1"]) < 1e-6


def test_weight_norm_in_both_styles() -> None:
    with pytest.warns(FutureWarning):
        old = torch.nn.utils.weight_norm(seeded(lambda: nn.Linear(WIDTH, WIDTH)))
    new = nn.utils.parametrizations.weight_norm(seeded(lambda: nn.Linear(WIDTH, WIDTH)))
    for model in (old, new):
        on = Probe({"input": probe().inputs["x"]})
        assert apart(given("torch", model, on), given("truth", model, on)) < 1e-6


def test_what_cannot_be_copied_is_named() -> None:
    model = seeded(Stack)
    model.blocks[1].lock = threading.Lock()
    with pytest.raises(ModelError, match=r"blocks\.1\.lock"):
        create("truth", model).run(probe())
    assert given("torch", model).shape == (2, 6, 5)  # nothing needs a copy here
