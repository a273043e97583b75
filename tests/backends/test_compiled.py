"""`torch,compile=...`: the states of a compiled model, and what a compiler gets wrong."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import fx

import driftwalk
import zoo
from cli.factories import Block, Tiny
from driftwalk.adapter import Replays
from driftwalk.errors import BackendError, UsageError
from driftwalk.states import Probe
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.torch_compiled import TorchCompiled


@pytest.fixture(autouse=True, scope="module")
def _nothing_stays_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


def probe_for(model: torch.nn.Module, seed: int = 0, length: int = 8) -> Probe:
    return make_probe(open_model(model), None, batch=2, length=length, seed=seed)


def assert_same_states(one: driftwalk.Trace, other: driftwalk.Trace) -> None:
    assert one.names == other.names
    for name in one.names:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    assert one.outputs.keys() == other.outputs.keys()


@pytest.mark.parametrize(("name", "depth"), [("gpt2", "module"), ("t5", "block")])
def test_states_are_those_of_eager_pytorch(name: str, depth: str) -> None:
    """Traced and run operation by operation, nothing is fused: every bit must be there."""
    model = zoo.build(name)
    compiled = driftwalk.backend("torch,compile=eager", model, depth)
    eager = driftwalk.backend("torch", model, depth)
    assert isinstance(compiled, TorchCompiled)
    first, second = probe_for(model), probe_for(model, seed=1)
    eager.trace(first)
    hooks = [len(part._forward_hooks) for part in model.modules()]  # transformers leaves some
    for probe in (first, second, first):  # each run gives its own states, not those of the last
        assert_same_states(compiled.trace(probe), eager.trace(probe))
    assert compiled.seconds["compile"] > 0
    assert compiled.info.flags["compile"] == "eager"
    assert compiled.info.flags["graphs"] == "1", "hooks are compiled, and cut nothing"
    assert [len(part._forward_hooks) for part in model.modules()] == hooks


def test_each_look_and_each_shape_is_compiled_for_itself() -> None:
    """What was compiled for one must not be found by another, plain runs least of all."""
    model = zoo.build("gpt2")
    eager = driftwalk.backend("torch", model)
    compiled = driftwalk.backend("torch,compile=eager", model)
    near = driftwalk.backend("torch,compile=eager", model, "sublayer")
    other = driftwalk.backend("torch,compile=eager", zoo.build("gpt2", seed=1))
    probe, longer = probe_for(model), probe_for(model, length=11)
    plain = compiled.run(probe)
    assert len(near.trace(probe)) > len(compiled.trace(probe))
    assert_same_states(compiled.trace(probe), eager.trace(probe))
    assert_same_states(compiled.trace(longer), eager.trace(longer))
    assert not np.array_equal(other.trace(probe)["layer.0"], eager.trace(probe)["layer.0"])
    np.testing.assert_array_equal(plain["logits"], compiled.run(probe)["logits"])
    np.testing.assert_array_equal(plain["logits"], eager.run(probe)["logits"])


class Hesitant(Block):
    """Looks at a number halfway, which no compiler can do ahead of time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * 2 if x.sum().item() > 1e9 else x)


def test_a_model_that_cannot_be_one_graph() -> None:
    model = Tiny()
    model.blocks = torch.nn.ModuleList(Hesitant() for _ in range(3))
    compiled = driftwalk.backend("torch,compile=eager", model)
    eager = driftwalk.backend("torch", model)
    for seed in range(2):
        ids = np.random.default_rng(seed).integers(0, 50, (2, 8))
        probe = Probe({"input_ids": ids})
        assert_same_states(compiled.trace(probe), eager.trace(probe))
        np.testing.assert_array_equal(compiled.run(probe)["output"], eager.run(probe)["output"])
    assert compiled.info.flags["graphs"] != "1"


class Overwriting(Tiny):
    """Writes into what a block gave, once it was given."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
            x.mul_(0.5)
        return self.head(self.norm(x))


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_a_state_is_what_it_was_when_it_was_made(compiler: str) -> None:
    model, probe = Overwriting(), Probe({"input_ids": np.arange(16).reshape(2, 8)})
    compiled = driftwalk.backend(f"torch,compile={compiler}", model)
    assert_same_states(compiled.trace(probe), driftwalk.backend("torch", model).trace(probe))


HEADERS = Path(sysconfig.get_path("include"), "Python.h")


@pytest.mark.skipif(
    not (shutil.which("c++") and HEADERS.exists()),
    reason="inductor needs a C++ compiler, and Python's headers",
)
def test_inductor_is_within_the_noise_of_float32() -> None:
    from torch._inductor import config

    with config.patch(compile_threads=1):  # no pool of processes for a few kernels
        report = driftwalk.verify(Tiny(2), "torch,compile=inductor")
    assert report.ok, report
    assert max(layer.metrics.max_abs for layer in report.layers if layer.metrics) > 0, "fused"
    assert report.observer["candidate"].bit_identical is not None
    assert "compile" in report.timings["candidate"]


@contextmanager
def a_compiler(name: str, rewrite) -> Iterator[str]:
    """A backend of torch.compile that runs what `rewrite` makes of the graph."""
    from torch._dynamo.backends import registry

    def compile_it(graph: fx.GraphModule, _inputs: object) -> object:
        rewrite(graph)
        graph.recompile()
        return graph.forward

    registry.register_backend(compile_it, name=name)
    try:
        yield name
    finally:
        registry._COMPILER_FNS.pop(name)


def wrong_in_the_second_layer(graph: fx.GraphModule) -> None:
    for node in graph.graph.nodes:
        path = str(node.meta.get("nn_module_stack", ""))
        if node.op == "call_function" and "h.1.mlp.act" in path.replace("['", ".").replace(
            "']", ""
        ):
            with graph.graph.inserting_after(node):
                more = graph.graph.call_function(torch.mul, (node, 1.01))
            node.replace_all_uses_with(more, lambda user, new=more: user is not new)
            return
    raise AssertionError("no such node")


def test_what_a_compiler_gets_wrong_is_found_where_it_is() -> None:
    with a_compiler("wrong", wrong_in_the_second_layer):
        report = driftwalk.verify(zoo.build("gpt2"), "torch,compile=wrong")
    assert report.verdict == "drift"
    assert report.first_divergence.point.name == "layer.1"
    assert report.root_cause.point.name == "layer.1"


def fails(graph: fx.GraphModule) -> None:
    raise ValueError("no such instruction")


def test_a_compiler_that_fails_is_one_sentence() -> None:
    model = zoo.build("gpt2")
    with a_compiler("failing", fails), pytest.raises(BackendError) as raised:
        driftwalk.backend("torch,compile=failing", model).run(probe_for(model))
    assert "compile" in str(raised.value)
    assert "no such instruction" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unknown_compiler_is_told_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"compile=inductr.*Did you mean 'inductor'"):
        driftwalk.backend("torch,compile=inductr", zoo.build("gpt2"))
    with pytest.raises(UsageError, match="compile"):
        driftwalk.backend("emulated:fp16,compile=inductor", zoo.build("gpt2"))


def test_blocks_are_not_replayed_by_themselves() -> None:
    model = zoo.build("gpt2")
    assert not isinstance(driftwalk.backend("torch,compile=eager", model), Replays)
    assert isinstance(driftwalk.backend("torch", model), Replays)


def test_a_module_that_is_compiled_already_is_sent_back() -> None:
    model = zoo.build("gpt2")
    with pytest.raises(UsageError, match="compile=inductor"):
        driftwalk.verify(model, torch.compile(model))
