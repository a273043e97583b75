"""`bisect` on torch.compile: a wrong lowering is named by its subsystem and number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
from driftwalk.errors import UsageError
from driftwalk.spec import Spec
from driftwalk_backends.torch_passes import Applied
from driftwalk_backends.torch_switching import compiler_switches, eager_switches, spec_without

X = np.random.default_rng(0).standard_normal((4, 8)).astype("f")
SEEN = (Applied("lowerings", 0, "addmm"), Applied("decomposition", 0, "aten.t.default"))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh())]).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[0](x)


@pytest.fixture
def wrong_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's tanh is one percent too large."""
    from torch._inductor.lowering import lowerings

    right, times = lowerings[torch.ops.aten.tanh.default], lowerings[torch.ops.aten.mul.Tensor]

    def lowered(x: Any) -> Any:
        return times(right(x), 1.01)

    monkeypatch.setitem(lowerings, torch.ops.aten.tanh.default, lowered)


@pytest.mark.slow
def test_a_wrong_lowering_is_named(wrong_tanh: None) -> None:
    spec = "torch,compile=inductor,disable=kept_precision"  # of which nothing is stored
    found = driftwalk.bisect(
        Block(), spec, probe={"x": X}, cache=False, repeats=1, only=["lowerings"]
    )
    (name,) = found.switches
    subsystem, number, label = name.split(":")
    assert (subsystem, label) == ("lowerings", "tanh")
    assert number.isdecimal()
    assert found.spec == f"{spec};{name}"
    assert found.before is not None
    assert found.before.error == pytest.approx(0.01, rel=0.05)
    assert found.after is not None
    assert found.after.used < 1


def test_stages_and_what_was_seen_are_switches() -> None:
    switches = list(compiler_switches(Spec.parse("torch,compile=inductor"), SEEN))
    by_name = {switch.name: switch for switch in switches}
    assert by_name["lowerings"].parts == ("lowerings:0:addmm",)
    assert {"decomposition", "inductor", "dynamo"} <= {*by_name["lowerings"].needs}
    assert [switch.name for switch in switches][-1] == "dynamo"
    stages = [s.name for s in compiler_switches(Spec.parse("torch,compile=aot_eager"), ())]
    assert stages == ["aot_autograd", "dynamo"]
    assert [s.name for s in compiler_switches(Spec.parse("torch,compile=other"), ())] == ["dynamo"]


@pytest.mark.parametrize(
    ("off", "left"),
    [
        (["lowerings:0:addmm"], "torch,compile=inductor,disable=lowerings:0:addmm"),
        (["lowerings", "inductor"], "torch,compile=aot_eager_decomp_partition"),
        (["inductor", "decompositions"], "torch,compile=aot_eager"),
        (["lowerings", "inductor", "dynamo", "threads"], "torch,threads=1"),
        (["attn"], "torch,compile=inductor,attn=eager"),
    ],
)
def test_what_is_off_is_a_spec(off: list[str], left: str) -> None:
    assert str(spec_without(Spec.parse("torch,compile=inductor"), off)) == left


def test_settings_of_pytorch_are_switches_where_they_change_something() -> None:
    def names(spec: str, module: nn.Module) -> set[str]:
        return {switch.name for switch in eager_switches(Spec.parse(spec), module)}

    assert names("torch", Block()) == {"threads"}
    assert "matmul" in names("torch,matmul=medium", Block())
    assert names("torch:cuda", nn.Conv1d(2, 2, 1)) == {"cudnn", "nondeterminism", "threads"}
    assert "nondeterminism" not in names("torch:cuda,deterministic=on", Block())
    spec = spec_without(Spec.parse("torch:cuda,matmul=high"), ["matmul", "cudnn", "nondeterminism"])
    assert str(spec) == "torch:cuda,matmul=highest,cudnn=off,deterministic=on"


def test_settings_of_pytorch_hold_for_a_run_and_no_longer() -> None:
    seen: list[tuple[str, bool, bool]] = []

    class Watched(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(_settings())
            return super().forward(x)

    before = _settings()
    spec = "torch,matmul=medium,deterministic=on,cudnn=off"
    with driftwalk.backend(spec, Watched()) as backend:
        backend.run({"x": X})
        flags = backend.info.flags
    assert seen[-1] == ("medium", True, False)
    assert _settings() == before == ("highest", False, True)
    assert (flags["matmul"], flags["deterministic"], flags["cudnn use"]) == ("medium", "on", "off")


def _settings() -> tuple[str, bool, bool]:
    return (
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.enabled,
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("torch,compile=inductor,disable=lowering", "lowerings"),
        ("torch,compile=inductor,disable=lowerings:x", "lowerings:4"),
        ("torch,compile=inductor,disable=fusion:3", "lowerings:4"),
        ("torch,compile=aot_eager,disable=lowerings", "is for compile=inductor"),
        ("torch,disable=lowerings", "is for compile=inductor"),
        ("torch,matmul=low", "highest"),
        ("torch,cudnn=fast", "benchmark"),
        ("torch,deterministic=maybe", "on"),
    ],
)
def test_what_cannot_be_left_out_is_refused(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        driftwalk.backend(spec, Block())
