"""What cannot be decoded is said clearly, before anything slow runs."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

import decoders
import driftwalk
from driftwalk.adapter import Backend, BackendInfo
from driftwalk.errors import BackendError, ProbeError, UsageError
from driftwalk.spec import Spec


def test_words_and_numbers_are_refused_at_once():
    model, given = decoders.build("gpt2"), decoders.prompt("gpt2")
    for options, said in (
        ({"steps": 0}, "at least one"),
        ({"cache": "odd"}, "dynamic, static, sliding, quantized, none"),
        ({"blame": "never"}, "'auto', True or False"),
        ({"steps": 121}, "at most 120 steps fit"),
    ):
        with pytest.raises(UsageError, match=said):
            driftwalk.generate(model, candidate="torch", prompt=given, **options)
    with pytest.raises(UsageError, match="graph"):
        driftwalk.generate("model.onnx", candidate="onnxruntime")


class Plain(Backend):
    """Runs whole sequences, and nothing else."""

    name = "plain"

    @classmethod
    def offers(cls):
        return []

    @property
    def info(self):
        return BackendInfo("plain", "plain", "cpu", "fp32", {}, {})

    def _forward(self, probe, sink):
        raise AssertionError("is refused before it is run")


def test_what_keeps_no_cache_is_refused():
    with pytest.raises(BackendError, match="keeps no cache"):
        driftwalk.generate("demo:encoder", candidate="torch")
    with pytest.raises(BackendError, match="plain cannot decode step by step"):
        driftwalk.generate("demo:decoder", candidate=Plain(Spec("plain")))
    with pytest.raises((BackendError, ProbeError), match=r"sequence of tokens|keeps no cache"):
        driftwalk.generate(
            nn.Sequential(nn.Linear(4, 4)), candidate="torch", prompt={"input": np.ones((1, 3, 4))}
        )


class Forgetful(nn.Module):
    """Takes a cache, and gives none back."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner, self.config = model, model.config

    def forward(self, input_ids, attention_mask=None, past_key_values=None, use_cache=None):
        made = self.inner(input_ids=input_ids, attention_mask=attention_mask, use_cache=True)
        made.past_key_values = None
        return made


def test_a_candidate_that_gives_no_cache_back_is_named():
    model = decoders.build("gpt2")
    with pytest.raises(BackendError, match="Forgetful gave no past_key_values back"):
        driftwalk.generate(
            model, candidate=Forgetful(model), prompt=decoders.prompt("gpt2"), steps=2
        )


def test_a_cache_that_is_cut_short_is_the_cause():
    model = decoders.build("llama")

    def cut(port: nn.Module) -> None:
        def hook(_, args, kwargs, output):
            layer = output.past_key_values.layers[1]
            layer.keys, layer.values = layer.keys[:, :, 1:], layer.values[:, :, 1:]

        port.register_forward_hook(hook, with_kwargs=True)

    report = driftwalk.generate(
        model, candidate=decoders.broken(model, cut), prompt=decoders.prompt("llama"), steps=3
    )
    assert report.cause == "cache"
    assert report.root_cause.point.name == "layer.1"
    assert report.explanation == "layer.1: its cache does not hold one slot for each token"
    assert report.layer("layer.1.key").verdict == "shape"


@pytest.mark.parametrize("call", [driftwalk.verify, driftwalk.generate, driftwalk.record])
def test_an_option_that_there_is_not(call):
    more = {} if call is driftwalk.record else {"candidate": "torch"}
    with pytest.raises(driftwalk.DriftwalkError, match=r"no option 'bach'.* batch, length"):
        call("demo:decoder", bach=3, **more)
