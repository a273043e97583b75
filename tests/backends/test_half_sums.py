"""Convolutions that sum in half precision: honest on a CPU that has no others, and no worse."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import driftwalk
import zoo
from driftwalk.errors import UsageError
from driftwalk.judge.cautions import HALF_SUMS
from driftwalk.mixture import OWN, Mixture
from driftwalk_backends.half_sums import are_half_sums, has_convolution, sums_in_half

HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def summed(terms: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    total = torch.zeros(terms.shape[1:], dtype=dtype)
    for term in terms:
        total = total + term.to(dtype)
    return total


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(8, 400), st.sampled_from(list(HALVES)))
def test_sums_in_half_precision_are_told_from_worse_ones(seed, count, dtype):
    random = torch.Generator().manual_seed(seed)
    terms = torch.randn((count, 256), generator=random).to(HALVES[dtype])
    true, sizes = terms.double().sum(0), terms.double().abs().sum(0)
    sums = summed(terms, HALVES[dtype])
    assert are_half_sums(sums, true, sizes)
    assert are_half_sums(true.to(HALVES[dtype]), true, sizes)
    eps = torch.finfo(HALVES[dtype]).eps
    assert not are_half_sums((true + 2 * eps * sizes).to(sums.dtype), true, sizes)
    sums[0] = torch.nan
    assert not are_half_sums(sums, true, sizes)


@pytest.mark.parametrize("dtype", HALVES)
def test_what_a_cpu_does_is_seen_and_leaves_no_trace(dtype):
    before = torch._C._get_mkldnn_enabled()
    assert sums_in_half(HALVES[dtype]) in (True, False)
    assert torch._C._get_mkldnn_enabled() == before


def test_a_side_says_so_where_its_convolutions_sum_in_half_precision():
    model, text = zoo.build("vit"), zoo.build("bert")
    assert has_convolution(model)
    assert not has_convolution(text)
    expected = OWN if sums_in_half(torch.float16) else ""
    assert Mixture.of(driftwalk.backend("torch:cpu:fp16", model).info).convolutions == expected
    for spec, of in (("torch:cpu:fp32", model), ("torch:cpu:fp16", text), ("emulated:fp16", model)):
        assert not Mixture.of(driftwalk.backend(spec, of).info).convolutions
    own = Mixture.of(driftwalk.backend("emulated:fp16,convolutions=own", model).info)
    assert own.convolutions == OWN
    assert str(own) != "fp16"
    with pytest.raises(UsageError, match="'own' or not given"):
        driftwalk.backend("emulated:fp16,convolutions=odd", model)


def test_the_yardstick_of_such_a_side_has_the_same_convolutions():
    """On a CPU whose sums are in float32, this is the plain emulation under another name."""
    model, spec = zoo.build("vit"), "emulated:fp16,convolutions=own"
    report = driftwalk.verify(model, candidate=spec, policy="calibrated")
    assert report.ok
    assert HALF_SUMS in report.notes
    assert driftwalk.verify(model, candidate="emulated:fp16", policy="calibrated").ok


@pytest.mark.parametrize("dtype", HALVES)
def test_a_fault_in_a_convolution_is_seen_all_the_same(dtype):
    model = zoo.build("vit")
    port = copy.deepcopy(model).to(HALVES[dtype])
    assert driftwalk.verify(model, candidate=port, policy="calibrated").ok
    with torch.no_grad():
        port.vit.embeddings.patch_embeddings.projection.weight[5, 1, 2, 3] += 0.1
    report = driftwalk.verify(model, candidate=port, policy="calibrated")
    assert report.verdict == "drift"
    assert report.cause == "embed"
