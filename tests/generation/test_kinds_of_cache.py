"""Compiled, sliding, quantised and given caches: clean ones pass, what is wrong is placed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import transformers as tf
from torch import fx
from transformers import DynamicCache, cache_utils

import decoders
import driftwalk
from driftwalk.errors import BackendError, ProbeError, UsageError


@pytest.fixture(autouse=True, scope="module")
def _nothing_stays_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


# ---- compiled ----


def test_compiled_steps_on_a_static_cache_pass():
    report = driftwalk.generate(
        decoders.build("gpt2"),
        candidate="torch,compile=eager",
        prompt=decoders.padded("gpt2"),
        steps=3,
        cache="static",
    )
    assert report.ok, report
    assert report.candidate.flags["graphs"] == "1", "one function for all steps"
    assert {row.point.name for row in report.layers} >= {"layer.3", "layer.3.key", "logits"}


def slot_before(graph: fx.GraphModule, _: object) -> object:
    """A compiler that has layer 2 write its keys one slot too early."""
    writes = [node for node in graph.graph.nodes if node.target == "index_copy_"]
    if writes:
        node = writes[4]  # keys and values, layer by layer
        tensor, dim, index, new = node.args
        with graph.graph.inserting_before(node):
            before = graph.graph.call_method("sub", (index, 1))
        node.args = (tensor, dim, before, new)
        graph.recompile()
    return graph.forward


def test_a_compiler_that_is_off_by_one_slot_is_found():
    torch._dynamo.register_backend(compiler_fn=slot_before, name="slot_before")
    model = decoders.build("gpt2")
    report = driftwalk.generate(
        model,
        candidate="torch,compile=slot_before",
        prompt=decoders.prompt("gpt2"),
        steps=3,
        cache="static",
    )
    assert report.cause == "cache"
    assert report.root_cause.point.name == "layer.2"
    assert report.root_cause.step == 1
    assert report.explanation.startswith("layer.2: what its cache holds as key in slot 7")


# ---- sliding ----


def test_windows_of_a_fixed_length_pass():
    report = driftwalk.generate(
        decoders.build("gemma3"),
        candidate="emulated:bf16",
        prompt=decoders.prompt("gemma3"),
        steps=6,
        cache="sliding",
    )
    assert report.ok, report


def test_a_model_without_a_window_has_no_sliding_cache():
    with pytest.raises(BackendError, match="LlamaConfig has no sliding window"):
        driftwalk.generate(decoders.build("llama"), "torch", cache="sliding")


# ---- quantised ----


class Rounded(cache_utils.DynamicLayer):
    """Keeps whole numbers of eight bits, with a scale for each token and head."""

    def _quantize(self, tensor):
        scale = tensor.abs().amax(-1, keepdim=True) / 127
        return (tensor / scale).round() * scale

    def update(self, keys, values, *args, **kwargs):
        return super().update(self._quantize(keys), self._quantize(values), *args, **kwargs)


def rounded(model):
    cache = DynamicCache()
    cache.layers = [Rounded() for _ in range(model.config.num_hidden_layers)]
    return cache


def quantised(candidate):
    model = decoders.build("llama")
    given = {**decoders.prompt("llama"), "past_key_values": rounded(model)}
    port = decoders.broken(model, candidate) if callable(candidate) else candidate
    return driftwalk.generate(model, port, prompt=given, steps=8, cache="quantized")


def test_a_quantised_cache_may_round():
    report = quantised("torch,attn=eager")
    assert report.ok, report
    assert any("round what they keep" in note for note in report.notes)


def wrong_scale(port):
    def hook(_, args, kwargs, output):
        added = kwargs["input_ids"].shape[1]
        output.past_key_values.layers[1].values[:, :, -added:] *= 1.1

    port.register_forward_hook(hook, with_kwargs=True)


def test_a_wrong_scale_of_a_quantised_cache_is_found():
    report = quantised(wrong_scale)
    assert report.cause == "cache"
    assert report.root_cause.point.name == "layer.1"
    assert "layer.1: what its cache holds as value" in report.explanation


def test_a_quantised_cache_needs_a_package():
    if tf.utils.is_optimum_quanto_available() or tf.utils.is_hqq_available():
        pytest.skip("a package for it is installed")
    with pytest.raises(BackendError, match="optimum-quanto or hqq, and neither is installed"):
        driftwalk.generate(
            decoders.build("llama"), "torch", prompt=decoders.prompt("llama"), cache="quantized"
        )


# ---- given ----


def continued(model, past=5):
    ids = decoders.prompt("llama")["input_ids"]
    with torch.no_grad():
        cache = model(torch.from_numpy(ids[:, :past]), use_cache=True).past_key_values
    return {"input_ids": ids[:, past:], "past_key_values": cache}


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_given_cache_is_gone_on_from(cache):
    model = decoders.build("llama")
    given = continued(model)
    whole = driftwalk.generate(model, "torch", prompt=decoders.prompt("llama"), steps=4)
    report = driftwalk.generate(model, "torch", prompt=given, steps=4, cache=cache)
    assert report.ok, report
    assert [s.tokens for s in report.steps] == [s.tokens for s in whole.steps]
    assert report.layer("layer.1.key").shape[1] == 12, "all that it holds is compared"
    assert given["past_key_values"].get_seq_length() == 5, "each run has a copy of its own"


def test_a_slot_is_counted_from_the_first_of_a_given_cache():
    model = decoders.build("llama")
    port = decoders.broken(model, lambda one: decoders.stale_slot(one, slot=9))
    report = driftwalk.generate(model, port, prompt=continued(model), steps=6)
    assert report.root_cause.slot == 9
    assert report.first_divergence.step == 2


def test_a_given_cache_that_does_not_fit_is_refused():
    model = decoders.build("llama")
    given = continued(model)
    short = {**given, "attention_mask": np.ones((2, 3), np.int64)}
    halves = {**given, "past_key_values": DynamicCache()}
    for number, layer in enumerate(given["past_key_values"].layers):
        halves["past_key_values"].update(layer.keys.half(), layer.values.half(), number)
    few = {**given, "past_key_values": DynamicCache()}
    few["past_key_values"].update(layer.keys, layer.values, 0)
    for wrong, said in (
        (short, "attention_mask has 3 places; past_key_values holds 5 tokens and the prompt has 3"),
        (halves, "layer 0 holds keys of float16; the model has float32"),
        (few, "past_key_values has 1 layers; the model has 4"),
        ({**given, "input_ids": given["input_ids"][:1]}, "of 2 rows; the prompt has 1"),
    ):
        with pytest.raises(ProbeError, match=said):
            driftwalk.generate(model, "torch", prompt=wrong, steps=2)
    with pytest.raises(UsageError, match="tokens of a given cache are not known"):
        driftwalk.generate(model, "torch", prompt=given, steps=2, cache="none")


# ---- models with ways of their own ----


def test_states_of_rwkv_are_points_and_two_rows_are_too_many():
    torch.manual_seed(0)
    config = tf.RwkvConfig(vocab_size=128, hidden_size=64, num_hidden_layers=3)
    model = tf.RwkvForCausalLM(config).eval()
    report = driftwalk.generate(model, "torch", prompt=decoders.prompt("rwkv", rows=1), steps=4)
    assert report.ok, report
    assert report.layer("layer.1.recurrent.4").ok
    with pytest.raises(BackendError, match=r"layer\.0 has shape .* in decoding.*--batch 1"):
        driftwalk.generate(model, "torch", prompt=decoders.prompt("rwkv"), steps=4)


class CountsFromZero(tf.LlamaForCausalLM):
    """Does not look at its cache for the positions of a step, as Bamba of transformers 5."""

    def forward(self, input_ids=None, position_ids=None, past_key_values=None, use_cache=None):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None]
        given = {"past_key_values": past_key_values, "use_cache": use_cache}
        return super().forward(input_ids=input_ids, position_ids=position_ids, **given)


def test_a_model_that_counts_from_zero_is_told_its_positions():
    torch.manual_seed(0)
    model = CountsFromZero(tf.LlamaConfig(**decoders.SIZES)).eval()
    report = driftwalk.generate(model, "torch", prompt=decoders.prompt("llama"), steps=4)
    assert report.ok, report
    assert any("counts each step's positions from 0" in note for note in report.notes)


class SeesAhead(tf.LlamaForCausalLM):
    """Has no causal mask where it is to keep a cache, as FSMT."""

    def forward(self, input_ids=None, past_key_values=None, use_cache=None):
        mask = None
        if use_cache:
            seen = 0 if past_key_values is None else past_key_values.get_seq_length()
            rows, count = input_ids.shape
            mask = torch.zeros(rows, 1, count, seen + count, dtype=self.dtype)
        given = {"past_key_values": past_key_values, "use_cache": use_cache}
        return super().forward(input_ids=input_ids, attention_mask=mask, **given)


def test_a_model_that_sees_ahead_has_no_truth():
    torch.manual_seed(0)
    model = SeesAhead(tf.LlamaConfig(**decoders.SIZES)).eval()
    with pytest.raises(BackendError, match="no causal mask"):
        driftwalk.generate(model, "torch", prompt=decoders.prompt("llama"), steps=4)
