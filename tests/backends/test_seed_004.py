"""Seed 004, the classic false alarm: a hook's last state and hidden_states[-1] differ by ln_f.

Shown once by hand with plain torch, and once against driftwalk, where it cannot happen.
"""

from __future__ import annotations

import pytest
import torch

import driftwalk
import zoo
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model


@pytest.fixture(scope="module")
def gpt2() -> torch.nn.Module:
    return zoo.build("gpt2")


@pytest.fixture(scope="module")
def probe(gpt2: torch.nn.Module) -> driftwalk.Probe:
    return make_probe(open_model(gpt2))


def own_hidden_states(module: torch.nn.Module, probe: driftwalk.Probe) -> tuple[torch.Tensor, ...]:
    inputs = {name: torch.from_numpy(array.copy()) for name, array in probe.inputs.items()}
    with torch.no_grad():
        states = module(**inputs, output_hidden_states=True).hidden_states
    assert isinstance(states, tuple)
    return states


def test_hooks_differ_from_hidden_states_at_the_last_layer_only(
    gpt2: torch.nn.Module, probe: driftwalk.Probe
) -> None:
    captured: list[torch.Tensor] = []

    def keep(block: torch.nn.Module, args: object, output: object) -> None:
        captured.append((output[0] if isinstance(output, tuple) else output).clone())

    handles = [block.register_forward_hook(keep) for block in gpt2.transformer.h]
    try:
        own = own_hidden_states(gpt2, probe)
    finally:
        for handle in handles:
            handle.remove()
    assert len(captured) == zoo.LAYERS
    assert len(own) == zoo.LAYERS + 1
    for number, hook in enumerate(captured[:-1]):
        assert (hook - own[number + 1]).abs().max() == 0
    assert (captured[-1] - own[-1]).abs().max() > 0.1
    with torch.no_grad():
        assert (gpt2.transformer.ln_f(captured[-1]) - own[-1]).abs().max() == 0


def test_driftwalk_gives_both_as_two_points(gpt2: torch.nn.Module, probe: driftwalk.Probe) -> None:
    trace = driftwalk.backend("torch", gpt2).trace(probe)
    own = own_hidden_states(gpt2, probe)
    for number in range(zoo.LAYERS):
        name = f"layer.{number - 1}" if number else "embed"
        assert abs(trace[name] - own[number].numpy()).max() == 0
    last = f"layer.{zoo.LAYERS - 1}"
    assert abs(trace[last] - own[-1].numpy()).max() > 0.1
    assert abs(trace["norm"] - own[-1].numpy()).max() == 0
    with torch.no_grad():
        normed = gpt2.transformer.ln_f(torch.from_numpy(trace[last].copy()))
    assert abs(trace["norm"] - normed.numpy()).max() == 0
