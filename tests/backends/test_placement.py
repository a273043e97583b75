"""One model over several devices: where its parts lie, and that no number depends on it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._pytree import tree_leaves

import driftwalk
import zoo
from driftwalk.errors import UsageError
from driftwalk.registry import create
from driftwalk.states import State
from driftwalk_backends import lending, torch_auto, torch_devices
from driftwalk_backends.calls import call, quietly
from driftwalk_backends.lending import Lent
from driftwalk_backends.placement import on_one_device, placed, plan, run_in_parts
from driftwalk_backends.precision import converted
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from second_device import SecondDevice

CPU = torch.device("cpu")
FIRST, SECOND = torch.device("meta", 0), torch.device("meta", 1)
PLAIN = [name for name in zoo.NAMES if name != "mixtral"]
"""Mixtral counts its tokens otherwise on what is not the CPU: histc of integers."""


@given(st.lists(st.integers(0, 40)), st.lists(st.integers(0, 100), max_size=4))
def test_every_part_has_a_device_in_order_and_none_has_more_than_its_room(sizes, room):
    places = placed(sizes, room)
    assert len(places) == len(sizes)
    used, now = [0] * len(room), 0
    for size, place in zip(sizes, places, strict=True):
        if size > max(room, default=0):
            assert place == len(room)
            continue
        assert place >= now
        for passed in range(now, place):  # it did not fit there
            assert used[passed] + size > room[passed]
        now = place
        if place < len(room):
            used[place] += size
    assert all(taken <= limit for taken, limit in zip(used, room, strict=True))


def test_gpus_are_filled_one_after_another_and_the_cpu_has_the_rest():
    assert placed([5, 5, 5, 5, 5], [10, 7]) == [0, 0, 1, 2, 2]
    assert placed([30, 5, 5], [10]) == [1, 0, 0]  # an embedding that no GPU has room for
    assert placed([5, 5], []) == [0, 0]


def bytes_of(tensor: torch.Tensor) -> int:
    return tensor.nbytes


def placement_of(module, *shares):
    total = sum(weight.nbytes for weight in module.parameters())
    rooms = {d: int(s * total) for d, s in zip((FIRST, SECOND), shares, strict=False)}
    return plan(module, bytes_of, rooms)


def test_a_tied_head_lies_where_its_embedding_does():
    module = zoo.build("gpt2")
    found = placement_of(module, 0.4, 0.3)
    assert found.tensors["lm_head.weight"] == found.tensors["transformer.wte.weight"] == FIRST
    assert found.parts["lm_head"] == FIRST
    assert found.parts["transformer.ln_f"] == CPU
    assert str(found) == (
        "transformer.wte to transformer.wpe on meta:0, transformer.h.0 on meta:1, transformer.h.1 "
        "to transformer.ln_f on cpu, lm_head on meta:0"
    )


def test_a_block_lies_on_one_device_whole():
    for name in PLAIN:
        module = zoo.build(name)
        found = placement_of(module, 0.6, 0.3)
        for tensor, device in found.tensors.items():
            part = next((p for p in found.parts if p and tensor.startswith(f"{p}.")), None)
            if part is not None and part[-1].isdigit():
                assert device == found.parts[part], (name, tensor)


def test_a_block_that_no_gpu_has_room_for_is_taken_apart():
    module = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), nn.Linear(8, 2))
    whole = plan(module, bytes_of, {FIRST: 10_000})
    assert list(whole.parts) == ["0", "1"]
    assert str(whole) == "all on meta:0"
    apart = plan(module, bytes_of, {FIRST: 300})
    assert apart.parts == {"0.0": FIRST, "0.1": CPU, "1": CPU}


def test_modules_and_weights_that_stand_twice_have_one_place():
    shared = nn.Linear(8, 8)
    module = nn.Sequential(shared, nn.Linear(8, 8), shared, nn.Linear(8, 8))
    module[3].weight = module[1].weight
    found = plan(module, bytes_of, {FIRST: 300, SECOND: 300})
    assert found.parts == {"0": FIRST, "1": SECOND, "3": SECOND}
    assert found.tensors["2.weight"] == FIRST
    assert found.tensors["3.weight"] == SECOND
    assert found.tensors["3.bias"] == CPU


@pytest.mark.parametrize("name", PLAIN)
def test_a_spread_model_gives_the_same_bits_and_each_part_runs_on_its_device(name):
    module = zoo.build(name)
    model = open_model(module)
    probe = make_probe(model)
    found = placement_of(module, 0.4, 0.3)
    given_by: dict[str, object] = {}
    with SecondDevice():
        # Fused attention is another one on each kind of device.
        spread = converted(module, "fp32", "meta:0", "eager", places=found.tensors)
        run_in_parts(spread, found)
        for path in found.parts:
            if path and not any(other.startswith(f"{path}.") for other in found.parts):
                spread.get_submodule(path).register_forward_hook(
                    lambda _, __, output, path=path: given_by.__setitem__(path, output)
                )
        with quietly(spread), on_one_device():
            ours = call(spread, model.inputs(spread, probe, "meta:0"))
        logits = ours.logits.cpu()
        devices = {n: tensor.device for n, tensor in spread.named_parameters()}
    plain = converted(module, "fp32", "cpu", "eager")
    with quietly(plain):
        theirs = call(plain, model.inputs(plain, probe, "cpu"))
    assert torch.equal(logits, theirs.logits)
    assert {CPU, FIRST} <= set(found.devices)
    assert devices == {n: found.tensors[n] for n in devices}
    for path, output in given_by.items():
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        assert {tensor.device for tensor in tensors} == {found.parts[path]}, path


class Stray(nn.Module):
    """Does itself what others leave to modules, on what its parts gave and on their weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.ones(()))
        self.table = nn.Embedding(20, 16)
        self.steps = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.memory = nn.LSTM(16, 16, batch_first=True)

    def forward(self, input_ids):
        x = self.table(input_ids)
        total, first = torch.zeros_like(x[:, :1]), torch.zeros_like(input_ids[0])
        given = [x]
        for step in self.steps:
            given.append(step(x))
            x = x + given[-1]  # outside of all parts
            total.index_add_(1, first, given[-1])  # written where it is, and not where most is
        query, key, value = given[0], given[2], given[4]
        x = nn.functional.scaled_dot_product_attention(query, key, value)
        x = torch.cat([x, total, given[-1]], 1)
        x = self.memory(x)[0] * self.scale.exp()
        return nn.functional.linear(x, self.table.weight)


def test_operations_outside_of_parts_take_tensors_of_any_device():
    module = Stray().eval()
    ids = torch.arange(12).reshape(2, 6)
    found = plan(module, bytes_of, {FIRST: 2500, SECOND: 2500})
    steps = [found.parts[f"steps.{number}"] for number in range(4)]
    assert steps == [FIRST, SECOND, SECOND, CPU]
    with torch.no_grad():
        theirs = module(ids)
    with SecondDevice(), torch.no_grad():
        spread = converted(module, "fp32", "meta:0", places=found.tensors)
        run_in_parts(spread, found)
        with pytest.raises(RuntimeError, match="one device"):
            spread(ids.to("meta:0"))
        with on_one_device():
            ours = spread(ids.to("meta:0")).cpu()
    torch.testing.assert_close(ours, theirs)


@pytest.fixture
def two_gpus(monkeypatch):
    """`torch:auto` with two devices of 64 KiB beside the CPU."""
    monkeypatch.setattr(torch_devices, "DEVICES", (*torch_devices.DEVICES, "meta"))
    monkeypatch.setattr(torch_auto, "gpus", lambda: [FIRST, SECOND])
    monkeypatch.setattr(torch_auto, "free_memory", lambda _: 2**16)
    with SecondDevice():
        yield


def with_points(module):
    """A model whose points are known: they are found where tensors have memory."""
    model = open_model(module)
    with create("torch", model) as plain:
        plain.trace(make_probe(model))
    return model


SMALL = "torch:auto,attn=eager,memory=24KiB/40KiB"


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bert", "bart"])
def test_states_replays_and_what_lies_inside_of_layers_are_those_of_one_device(name):
    model = open_model(zoo.build(name))
    probe = make_probe(model)
    with create("torch,attn=eager", model) as plain, create(SMALL, model) as spread:
        for depth in ("block", "module"):
            plain.look(depth), spread.look(depth)
            theirs, ours = plain.trace(probe), spread.trace(probe)
            assert ours.names == theirs.names
            for state in theirs:
                np.testing.assert_array_equal(ours[state.point.name], state.array)
        plain.look("block"), spread.look("block")
        moved = {state.point.name: state.array + 0.25 for state in theirs}
        replayed = {}
        for backend in (plain, spread):
            states: list[State] = []
            backend.replay(probe, moved, states.append)
            replayed[backend] = {state.point.name: state.array for state in states}
        for point, array in replayed[plain].items():
            np.testing.assert_array_equal(replayed[spread][point], array, err_msg=point)
        text = spread.info.flags["placement"]
    assert all(f"on {device}" in text for device in ("meta:0", "meta:1", "cpu")), text


@pytest.mark.usefixtures("two_gpus")
def test_a_spread_model_is_verified_and_a_fault_is_placed():
    module = zoo.build("llama")
    report = driftwalk.verify(module, SMALL, reference="torch,attn=eager", cache=False)
    assert report.verdict == "pass", report.reason
    assert "on meta:1" in report.candidate.flags["placement"]
    assert all(layer.metrics.max_abs == 0 for layer in report.layers)
    wrong = copy.deepcopy(module)
    wrong.model.layers[1].mlp.down_proj.weight.data *= 1.05
    with driftwalk.backend(SMALL, with_points(wrong)) as spread:
        sides = {"candidate": wrong, "reference": SMALL}, {"candidate": spread}
        reports = [driftwalk.verify(with_points(module), **both, cache=False) for both in sides]
    for found in reports:
        assert found.verdict == "drift", found.reason
        assert found.at_fault == "candidate"
        assert found.root_cause.point.name == "layer.1"
        assert "down_proj" in found.culprit.module


@pytest.mark.usefixtures("two_gpus")
def test_where_one_gpu_has_room_for_all_it_is_plain_pytorch_there(monkeypatch):
    monkeypatch.setattr(torch_auto, "free_memory", lambda _: 2**30)
    with create("torch:auto", open_model(zoo.build("llama"))) as backend:
        module = backend._open()
        assert {weight.device for weight in module.parameters()} == {FIRST}
        assert "forward" not in vars(module.model.layers[0])
        assert backend.info.flags["placement"] == "all on meta:0"
        assert backend.info.device == "meta:0"


@pytest.mark.usefixtures("two_gpus")
def test_a_second_copy_shares_weights_and_lies_where_the_first_does(monkeypatch):
    monkeypatch.setattr(lending, "LARGE", 0)
    monkeypatch.setattr(lending, "SMALLEST", 2)
    model = open_model(zoo.build("llama"))
    with create(SMALL, model) as one, create(f"{SMALL},threads=1", model) as other:
        first = one._open()
        taken = sum(w.nbytes for w in first.parameters() if w.device == SECOND)
        monkeypatch.setattr(torch_auto, "free_memory", lambda _: 2**16 - taken)
        second = other._open()
        assert one._placement == other._placement
        pairs = zip(first.parameters(), second.parameters(), strict=True)
        assert all(a is b for a, b in pairs if a.device != CPU)


@pytest.mark.usefixtures("two_gpus")
def test_of_a_large_model_what_lies_on_the_cpu_is_lent(monkeypatch):
    monkeypatch.setattr(lending, "LARGE", 0)
    monkeypatch.setattr(lending, "SMALLEST", 2)
    model = open_model(zoo.build("llama").bfloat16())
    probe = make_probe(model)
    with create("torch:cpu:fp32,attn=eager", model) as plain, create(SMALL, model) as spread:
        theirs, ours = plain.trace(probe), spread.trace(probe)
        weights = list(spread._open().parameters())
    assert {w.device for w in weights if isinstance(w, Lent)} == {CPU}
    assert {w.device for w in weights if not isinstance(w, Lent)} == {FIRST, SECOND}
    for state in theirs:
        np.testing.assert_array_equal(ours[state.point.name], state.array)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_is_the_cpu_and_says_so():
    report = driftwalk.verify("demo:decoder", "torch:auto", policy="dtype", blame=False)
    assert report.candidate.device == "cpu"
    assert report.candidate.flags["placement"].startswith("all on cpu (")
    assert "CUDA" in report.candidate.flags["placement"]
    assert all(layer.metrics.max_abs == 0 for layer in report.layers)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("torch:auto,compile=inductor", "Write torch:cuda,compile=inductor"),
        ("torch:auto,stream=on", "write torch:cuda,stream=on"),
        ("torch:auto,memory=lots", "memory='lots' is no size"),
        ("torch:auto,memory=1GiB/", "memory='' is no size"),
        ("torch,memory=1GiB", "memory= is for torch:auto"),
        ("torch:auto:1", "no device 'auto:1'; it has cpu, cuda, mps, auto"),
        ("emulated:auto:bf16", "Backend 'emulated' has no device 'auto'"),
        ("truth:auto", "Backend 'truth' has no device 'auto'"),
    ],
)
def test_what_cannot_be_meant_is_refused(spec, says):
    with pytest.raises(UsageError) as caught:
        driftwalk.backend(spec, "demo:decoder")
    assert says in str(caught.value)


@pytest.mark.usefixtures("two_gpus")
def test_as_many_sizes_as_gpus():
    with pytest.raises(UsageError, match=r"3 sizes for 2 GPU\(s\)"):
        driftwalk.backend("torch:auto,memory=1GiB/2GiB/3GiB", "demo:decoder")


def test_a_model_that_is_spread_already_is_not_spread_again():
    module = zoo.build("gpt2")
    module.lm_head._hf_hook = object()  # what accelerate leaves on modules
    with pytest.raises(UsageError, match=r"is spread already \(cpu, with hooks of accelerate\)"):
        driftwalk.backend("torch:auto", module)
    other = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(UsageError, match=r"is spread already \(cpu, meta\)"):
        driftwalk.backend("torch:auto", other)


@pytest.mark.usefixtures("two_gpus")
def test_weights_take_what_is_free_or_less_where_that_was_asked_for():
    module = zoo.build("llama")
    taken = {}
    for spec in ("torch:auto", "torch:auto,memory=13KiB/40KiB", "torch:auto,memory=1GiB"):
        with create(spec, open_model(module)) as backend:
            weights = list(backend._open().parameters())
        held = [sum(w.nbytes for w in weights if w.device == gpu) for gpu in (FIRST, SECOND)]
        taken[spec] = held
    whole, limited, generous = taken.values()
    block = sum(weight.nbytes for weight in module.model.layers[0].parameters())
    assert all(0.9 * 2**16 - block < held <= 0.9 * 2**16 for held in whole), whole
    assert generous == whole
    assert all(0 < held <= size * 2**10 for held, size in zip(limited, (13, 40), strict=True))
