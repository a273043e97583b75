"""The torch backend: exact against itself, honest in every dtype, and it leaves no trace behind."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.errors import BackendUnavailable, ModelError, UsageError
from driftwalk.states import same_bits
from driftwalk.verification import verify_all
from driftwalk_backends.fingerprint import fingerprint
from driftwalk_backends.precision import converted
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.torch_eager import TorchEager


@pytest.mark.parametrize("name", zoo.NAMES)
def test_torch_equals_itself_bit_for_bit_and_float64_within_fp32(name: str) -> None:
    same, double = verify_all(zoo.build(name), ["torch", "torch:cpu:fp64"], policy="dtype")
    assert same.ok
    assert all(layer.metrics and layer.metrics.max_abs == 0 for layer in same.layers)
    assert double.ok, double
    assert all(layer.dtypes.candidate == "fp64" for layer in double.layers)
    assert any(layer.metrics and layer.metrics.max_abs > 0 for layer in double.layers)
    for report in (same, double):
        assert all(seen.checked and seen.bit_identical for seen in report.observer.values())


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("name", zoo.NAMES)
def test_half_precision_is_what_from_pretrained_gives(
    name: str, dtype: str, tmp_path: Path
) -> None:
    module = zoo.build(name)
    module.save_pretrained(tmp_path)
    wanted = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    theirs = type(module).from_pretrained(tmp_path, dtype=wanted).eval()
    ours = driftwalk.backend(f"torch:cpu:{dtype}", module)
    probe = make_probe(open_model(module))
    expected, found = TorchEager.around(theirs).trace(probe), ours.trace(probe)
    assert found.names == expected.names
    for state in expected:
        point = state.point.name
        assert same_bits({point: state.array}, {point: found[point]}), point
    assert found.state("logits").dtype == dtype


def dtypes(module: nn.Module, part: str) -> set[torch.dtype]:
    named = [*module.named_parameters(), *module.named_buffers()]
    return {tensor.dtype for name, tensor in named if part in name}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_rotary_frequencies_stay_in_float32(dtype: str) -> None:
    half = converted(zoo.build("llama"), dtype, "cpu")
    assert dtypes(half, "inv_freq") == {torch.float32}
    assert dtypes(half, "q_proj") == {torch.float16 if dtype == "fp16" else torch.bfloat16}


def test_wo_of_t5_stays_in_float32_for_fp16_only() -> None:
    assert dtypes(converted(zoo.build("t5"), "fp16", "cpu"), ".wo.") == {torch.float32}
    assert dtypes(converted(zoo.build("t5"), "fp16", "cpu"), ".wi.") == {torch.float16}
    assert dtypes(converted(zoo.build("t5"), "bf16", "cpu"), ".wo.") == {torch.bfloat16}


@pytest.mark.parametrize("spec", ["torch", "torch:cpu:fp16", "torch:cpu:fp64,attn=eager"])
def test_the_users_module_is_left_alone(spec: str) -> None:
    module = zoo.build("gpt2").train()
    module.transformer.h[1].eval()
    module.lm_head.weight.requires_grad_(False)
    before = copy.deepcopy(module)
    attention = module.config._attn_implementation
    backend = driftwalk.backend(spec, module)
    backend.trace(make_probe(open_model(module)))
    backend.run(make_probe(open_model(module)))
    backend.close()
    assert fingerprint(module) == fingerprint(before)
    assert module.config._attn_implementation == attention
    for now, then in zip(module.modules(), before.modules(), strict=True):
        assert now.training == then.training
        hooks = [*now._forward_hooks.values(), *now._forward_pre_hooks.values()]
        assert all(hook.__module__.startswith("transformers.") for hook in hooks)
    for new, old in zip(module.parameters(), before.parameters(), strict=True):
        assert (new.requires_grad, new.dtype) == (old.requires_grad, old.dtype)
        assert new.grad is None


def test_a_model_in_training_mode_is_run_without_dropout() -> None:
    module = zoo.build("bert").train()
    assert module.config.hidden_dropout_prob > 0
    report = driftwalk.verify(module, candidate=zoo.build("bert"), policy="fixed:0")
    assert report.ok


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_the_attention_implementation_is_a_choice(attn: str) -> None:
    model = open_model(zoo.build("llama"))
    backend = driftwalk.backend(f"torch,attn={attn}", model)
    trace = backend.trace(make_probe(model))
    assert trace.backend.flags["attn"] == attn
    plain = driftwalk.backend("torch", model).trace(trace.probe)
    report = driftwalk.compare(plain, trace, policy="dtype")
    assert report.ok


def test_threads_are_set_for_the_run_only() -> None:
    seen: list[int] = []
    module = zoo.build("gpt2")
    probe = make_probe(open_model(module))
    module.lm_head.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    wanted = before + 1
    backend = driftwalk.backend(f"torch,threads={wanted}", module)
    backend.run(probe)
    assert seen == [wanted]
    assert torch.get_num_threads() == before
    assert backend.info.flags["threads"] == str(wanted)

    def fail(*_: Any) -> None:
        raise ValueError("on purpose")

    module.lm_head.register_forward_hook(fail)
    with pytest.raises(ModelError, match=r"GPT2LMHeadModel failed on the probe.*on purpose"):
        backend.run(make_probe(open_model(module)))
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("torch,attm=eager", "no option 'attm'. Did you mean 'attn'"),
        ("torch,attn=flash", "expected one of eager, sdpa"),
        ("torch,threads=0", "threads=0: expected a whole number, 1 or more"),
        ("torch,threads=two", "threads=two"),
        ("torch,tf32=on", "tf32=on is for CUDA devices, not cpu"),
        ("torch:cpu:fp8", "no dtype 'fp8'; it has fp64, fp32, fp16, bf16"),
        ("torch:cpu:tf32", "write torch:cuda:fp32,tf32=on"),
        ("torch:tpu", "no device 'tpu'; it has cpu, cuda, mps"),
        ("torch:xpu", "no device 'xpu'; it has cpu, cuda, mps"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_construction(spec: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        driftwalk.backend(spec, "demo:decoder")
    assert says in str(caught.value)


def test_attn_is_for_transformers_models() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model = open_model(module)
    with pytest.raises(UsageError, match="attn=eager: Sequential is not a transformers model"):
        driftwalk.backend("torch,attn=eager", model).run(make_probe(model))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_without_a_gpu_says_why() -> None:
    why = "was built without CUDA: install a CUDA build|no CUDA device is visible"
    with pytest.raises(BackendUnavailable, match=f"torch:cuda is not usable here: .*({why})"):
        driftwalk.backend("torch:cuda", "demo:decoder")
    offer = {offer.spec: offer for offer in TorchEager.offers()}["torch:cuda"]
    assert not offer.usable
    assert offer.note


def test_a_module_is_taken_as_it_is() -> None:
    module = zoo.build("gpt2").double()
    backend = TorchEager.around(module)
    assert backend.info.dtype == "fp64"
    assert backend.trace(make_probe(open_model(module))).state("logits").dtype == "fp64"
    with pytest.raises(UsageError, match=r"holds torch\.float8_e4m3fn, which cannot be compared"):
        TorchEager.around(nn.Sequential(nn.Linear(2, 2)).to(torch.float8_e4m3fn))
