"""Emulated arithmetic: what every op gives is rounded, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import driftwalk
import zoo
from driftwalk.measure.norms import distance
from driftwalk.registry import create
from driftwalk_backends.emulated import HalfArithmetic, Tf32Arithmetic, to_fp8, to_tf32
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model


def run(mode, function, *tensors):
    with torch.no_grad(), mode:
        return function(*tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_matrix_product_is_rounded_once(dtype):
    torch.manual_seed(0)
    a, b = torch.randn(5, 64, dtype=dtype), torch.randn(64, 7, dtype=dtype)
    found = run(HalfArithmetic(dtype), torch.matmul, a, b)
    assert found.dtype == dtype
    assert torch.equal(found, (a.float() @ b.float()).to(dtype))


def test_views_alias_and_in_place_ops_write_through():
    base = torch.ones(2, 3, dtype=torch.float16)
    with HalfArithmetic(torch.float16):
        base.view(6).add_(2.0**-12)  # below half a step at 1
        assert torch.equal(base, torch.ones_like(base)), "each op rounds"
        base[0].mul_(3)
    assert base[0].tolist() == [3, 3, 3]
    assert base[1].tolist() == [1, 1, 1]


def test_upcasts_the_model_makes_are_kept():
    x = torch.full((4,), 1.0, dtype=torch.float16)
    found = run(HalfArithmetic(torch.float16), lambda t: t.float() + 2.0**-20, x)
    assert found.dtype == torch.float32
    assert found[0].item() == 1 + 2.0**-20
    mixed = run(HalfArithmetic(torch.float16), torch.add, x, torch.full((4,), 2.0**-20))
    assert mixed.dtype == torch.float32


def test_tf32_keeps_ten_bits_and_touches_products_only():
    x = torch.tensor([1 + 2.0**-10, 1 + 2.0**-11, 1 + 2.0**-12, -(1 + 2.0**-11)])
    rounded = [1 + 2.0**-10, 1 + 2.0**-10, 1, -(1 + 2.0**-10)]
    assert to_tf32(x).tolist() == rounded, "nearest, ties away from zero"
    total = run(Tf32Arithmetic(), torch.add, x, torch.zeros(4))
    assert torch.equal(total, x)
    product = run(Tf32Arithmetic(), torch.mm, x[:, None].expand(4, 2), torch.eye(2))
    assert product[:, 0].tolist() == rounded
    outer = run(Tf32Arithmetic(), torch.mm, x[:, None], torch.ones(1, 1))
    assert torch.equal(outer[:, 0], x), "angles are outer products, which no tensor core makes"


def test_fp8_has_three_bits_and_keeps_the_largest():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    found = to_fp8(x)
    assert found.abs().max() == pytest.approx(x.abs().max().item())
    normal = x.abs() > 0.05
    assert ((found - x).abs() / x.abs())[normal].max() <= 2.0**-4 * 1.001


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("name", zoo.NAMES)
def test_it_predicts_the_error_of_native_half(name, dtype):
    """The error of a native half run on this CPU, within a factor that a tiny model needs."""
    if (name, dtype) == ("vit", "fp16"):
        pytest.skip("this CPU's fp16 convolution accumulates in fp16")
    model = open_model(zoo.build(name))
    probe = make_probe(model)
    exact = create("truth", model).trace(probe)
    native = create(f"torch:cpu:{dtype}", model).trace(probe)
    predicted = create(f"emulated:{dtype}", model).trace(probe)
    assert native.names == predicted.names
    for point in exact.names:
        if exact[point].size < 500:  # too few elements for a ratio to mean anything
            continue
        keep = probe.keep(point, exact[point].shape)
        a = distance(native[point], exact[point], keep).l2
        b = distance(predicted[point], exact[point], keep).l2
        assert 0.8 * b <= a <= 1.25 * b or a == b, point
        assert native[point].dtype == predicted[point].dtype


def test_formats_are_ordered_by_their_error():
    model = open_model(zoo.build("llama"))
    errors = {}
    for spec in ("emulated:fp8", "emulated:bf16", "emulated:fp16", "emulated:tf32"):
        report = driftwalk.verify(model, candidate=spec, policy="dtype")
        assert report.ok, spec
        assert report.candidate.dtype == spec.partition(":")[2]
        errors[spec] = report.layer("layer.2").metrics.rel_l2
    assert list(errors.values()) == sorted(errors.values(), reverse=True)


@pytest.mark.parametrize("spec", ["emulated", "emulated:fp32", "emulated:cuda:fp16", "truth:fp32"])
def test_what_cannot_be_emulated_is_refused(spec):
    with pytest.raises(driftwalk.DriftwalkError):
        driftwalk.backend(spec, zoo.build("gpt2"))


def test_np_states_of_bf16_round_trip():
    model = open_model(zoo.build("gpt2"))
    trace = create("emulated:bf16", model).trace(make_probe(model))
    assert trace["layer.0"].dtype.name == "bfloat16"
    assert np.isfinite(trace["layer.0"].astype(np.float32)).all()


def test_half_results_have_the_dtype_that_pytorch_gives_them() -> None:
    """Out arguments, changes of shape in place, norms with float32 weights, numbers of rank 0."""
    half = torch.bfloat16
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).to(half)
    index = torch.tensor([0, 1])
    ops = {
        "out": lambda: torch.add(x, 0.1, out=torch.empty(4, 8, dtype=half)),
        "resized out": lambda: torch.mul(x, 0.1, out=torch.empty(0, dtype=half)),
        "unsqueeze_": lambda: x.clone().unsqueeze_(0),
        "index_put_": lambda: x.clone().index_put_((index,), x[:2] * 2),
        "index_add_": lambda: x.clone().index_add_(0, index, x[2:]),
        "scatter_": lambda: x.clone().scatter_(0, index[None].expand(1, 2), x[:1]),
        "mixed norm": lambda: torch.layer_norm(x, (8,), torch.ones(8), torch.zeros(8)),
        "rank 0": lambda: x[0, 0] * torch.tensor(0.1),
        "rank 0 and 2": lambda: x * torch.tensor(0.1),
        "float32 sum": lambda: x.sum(dtype=torch.float32),
        "largest": lambda: torch.topk(x, 2).values,
        "selected": lambda: x[x > 0],
    }
    for name, op in ops.items():
        native = op()
        with HalfArithmetic(half):
            emulated = op()
        assert (emulated.dtype, emulated.shape) == (native.dtype, native.shape), name
        assert torch.allclose(emulated.float(), native.float(), rtol=2e-2, atol=2e-2), name
