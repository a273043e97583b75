"""`reduce` on candidates that run a torch module: the operation is left, and none of its code."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
from driftwalk.errors import BackendError
from driftwalk_backends.reducing.programs import Operation, Ref, widened

X = np.random.default_rng(0).standard_normal((2, 6, 48)).astype("f")
ALONE = """
import runpy, sys
class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("onnx", "onnxruntime", "transformers", "driftwalk"):
            raise ImportError(f"{name} is not to be needed")
sys.meta_path.insert(0, Refuses())
runpy.run_path("repro.py", run_name="__main__")
"""


class Blocks(nn.Module):
    def __init__(self, second: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 80), nn.GELU(), nn.Linear(80, 48))
            for _ in range(3)
        ).eval()
        if second is not None:
            self.blocks[1][2] = second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def test_of_a_module_with_another_activation_that_one_is_left(tmp_path: Path) -> None:
    other = Blocks(nn.GELU(approximate="tanh"))
    found = driftwalk.reduce(Blocks(), other, tmp_path / "out", probe={"x": X})
    assert (found.point, found.fault, found.operations) == ("layer.1", "module", ("gelu",))
    assert found.after is not None
    assert found.after.longest == 1
    assert found.own == ()
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE],
        cwd=tmp_path / "out",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert float(done.stdout.partition("ratio ")[2].split()[0]) == pytest.approx(
        found.after.ratio, rel=0.1
    )
    script = "\n".join(found.script)
    assert 'gelu.default(x0, approximate="tanh")' in script
    assert "its own code is not in here" in script.replace("\n", " ")
    assert "GELU" not in script


def test_of_a_module_with_a_wrong_weight_the_product_is_left_with_that_weight() -> None:
    other = Blocks()
    other.blocks[1][3].weight.data[7, 9] *= -1
    found = driftwalk.reduce(Blocks(), other, None, probe={"x": X})
    assert (found.point, found.fault, found.operations) == ("layer.1", "module", ("addmm",))
    assert found.after is not None
    assert (found.after.nodes, found.after.longest) == (1, 1)


def test_what_does_not_drift_by_itself_is_refused() -> None:
    with pytest.raises(BackendError, match="show no drift"):
        driftwalk.reduce(Blocks(), "emulated:fp16", None, probe={"x": X}, point="layer.1")
    with pytest.raises(BackendError, match="no state at nowhere"):
        driftwalk.reduce(Blocks(), "torch", None, probe={"x": X}, point="nowhere")


def test_sizes_are_changed_and_numbers_of_axes_are_not() -> None:
    view = Operation(torch.ops.aten.view.default, (Ref("x"), [2, 48]), {}, ("y",))
    turned = Operation(torch.ops.aten.permute.default, (Ref("x"), [1, 2, 0]), {}, ("y",))
    assert view.resized(lambda n: 3 if n == 48 else n).args[1] == [2, 3]
    assert turned.resized(lambda n: 9).args[1] == [1, 2, 0]
    assert view.input == ("x",)
    cast = Operation(torch.ops.aten._to_copy.default, (Ref("x"),), {"dtype": torch.float16}, ("y",))
    assert widened(cast).kwargs == {"dtype": torch.float64}


@pytest.mark.slow
def test_of_a_wrong_lowering_the_operation_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor's tanh is one percent too large, in this process alone: the script is run in it."""
    from torch._inductor.lowering import lowerings

    right, times = lowerings[torch.ops.aten.tanh.default], lowerings[torch.ops.aten.mul.Tensor]

    def lowered(x: Any) -> Any:
        return times(right(x), 1.01)

    monkeypatch.setitem(lowerings, torch.ops.aten.tanh.default, lowered)
    spec = "torch,compile=inductor,disable=kept_precision"  # of which nothing is stored
    monkeypatch.setattr("driftwalk_backends.reducing.writing.rehearse", _here)
    found = driftwalk.reduce(
        Blocks(nn.Tanh()), spec, tmp_path / "out", probe={"x": X}, point="layer.1"
    )
    assert (found.point, found.fault, found.operations) == ("layer.1", "runtime", ("tanh",))
    assert "it drifts" in found.printed[0]
    (example, *_) = found.examples
    assert example.found / example.expected == pytest.approx(1.01, rel=1e-3)


def _here(folder: Path, ratio: float) -> str:
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(folder / "repro.py"), run_name="__main__")
    return "it drifts" if ended.value.code == 1 else "no drift here"


class Words(nn.Module):
    def __init__(self, times: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(200, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2)).eval()
        with torch.no_grad():
            self.words.weight *= times

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = x + block(x)
        return x


def test_a_table_of_words_keeps_only_those_that_are_looked_up() -> None:
    ids = np.array([[199, 3, 77, 3]])
    found = driftwalk.reduce(Words(), Words(1.01), None, probe={"ids": ids})
    assert found.operations == ("embedding",)
    assert found.after is not None
    assert found.after.longest <= 8
