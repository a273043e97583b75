"""Ranges of a model's blocks on a real Ray cluster of two nodes, both on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import driftwalk
import zoo
from driftwalk.errors import BackendError, BackendUnavailable, ModelError
from driftwalk.progress import Progress
from driftwalk.states import same_bits
from meta.sources import PACKAGES

pytest.importorskip("ray", reason="tox -e ray has it")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own, at every start
]

SMALL = {"num_cpus": 1, "object_store_memory": 80_000_000}
PATH = os.pathsep.join(str(folder.parent) for folder in PACKAGES.values())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    changed = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": PATH}
    os.environ |= changed
    from ray.cluster_utils import Cluster

    head = {**SMALL, "node_name": "a", "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    made.add_node(**SMALL, node_name="b")
    try:
        yield made
    finally:
        made.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("llama", tmp_path_factory.mktemp("models") / "llama")


def saved(name: str, folder: Path) -> Path:
    zoo.build(name).save_pretrained(folder)
    return folder


def spec(cluster: Any, start: str = "torch", count: int = 2) -> str:
    return f"{start},ranges={count},address={cluster.address}"


@pytest.mark.parametrize("start", ["torch", "emulated:bf16"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_two_nodes_give_what_one_process_gives(cluster: Any, tmp_path: Path, name, start) -> None:
    """Every state, every output, and every state of a replay, bit by bit."""
    model = saved(name, tmp_path / "model")
    with driftwalk.backend(start, model) as here:
        one = here.trace()
        given = {state.point.name: state.array * 2 for state in one}
        alone: dict[str, Any] = {}
        here.replay(one.probe, given, lambda s: alone.setdefault(s.point.name, s.array))
    with driftwalk.backend(spec(cluster, start), model) as there:
        other = there.trace(one.probe)
        again: dict[str, Any] = {}
        there.replay(one.probe, given, lambda s: again.setdefault(s.point.name, s.array))
        assert same_bits(there.run(one.probe), one.outputs)
    assert other.names == one.names
    assert same_bits({s.point.name: s.array for s in other}, {s.point.name: s.array for s in one})
    assert same_bits(other.outputs, one.outputs)
    assert same_bits(again, alone)
    assert (other.backend.flags["ranges"], other.backend.flags["nodes"]) == ("2", "a, b")


class Stages(Progress):
    def __init__(self) -> None:
        self.texts: list[str] = []

    @contextmanager
    def stage(self, text: str, extra: bool = False) -> Iterator[None]:
        self.texts.append(text)
        yield


def test_verify_passes_and_its_witness_runs_in_ranges_too(cluster: Any, folder: Path) -> None:
    show = Stages()
    candidate = spec(cluster, "emulated:bf16")
    report = driftwalk.verify(folder, candidate, cache=False, blame=True, progress=show)
    assert report.verdict == "pass", report.notes
    assert report.candidate.flags["ranges"] == "2"
    assert not [note for note in report.notes if "No calibration" in note]
    texts = "\n".join(show.texts)
    assert f"{candidate}: range 2 of 2 (layer." in texts
    assert f"truth,ranges=2,address={cluster.address}: range 1 of 2 (layer.0" in texts
    assert f"torch:cpu:fp32,ranges=2,address={cluster.address}: range 1 of 2" in texts


def test_a_wrong_weight_is_placed_in_its_layer(cluster: Any, folder: Path, tmp_path: Path) -> None:
    """In the range of the second node."""
    module = zoo.build("llama")
    wrong = list(dict(module.named_modules())["model.layers"])[-1].mlp.down_proj.weight
    with torch.no_grad():
        wrong.mul_(1.5)
    module.save_pretrained(tmp_path / "wrong")
    with driftwalk.backend(spec(cluster), tmp_path / "wrong") as candidate:
        report = driftwalk.verify(folder, candidate, spec(cluster), cache=False)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    count = len(module.model.layers)
    assert report.root_cause.point.name == f"layer.{count - 1}"


MAPPED = """
import json, re
size, held, on = 0, 0, False
for line in open("/proc/self/smaps"):
    words = line.split()
    if not words[0].endswith(":"):
        on = line.rstrip().endswith(".safetensors")
    elif on and words[0] == "Size:":
        size += int(words[1])
    elif on and words[0] == "Rss:":
        held += int(words[1])
"""


def test_each_node_reads_the_weights_of_its_own_blocks_alone(cluster: Any, tmp_path: Path) -> None:
    """Of the mapped file each has about half in memory, with a cast to bf16 at every read."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes, **heads)).save_pretrained(tmp_path / "model")
    with driftwalk.backend(spec(cluster, "emulated:bf16"), tmp_path / "model") as backend:
        backend.trace()
        ray = backend._nodes._ray

        def mapped(_: Any) -> tuple[int, int]:
            found: dict[str, Any] = {}
            exec(MAPPED, found)
            return found["size"], found["held"]

        asked = [actor.__ray_call__.remote(mapped) for actor in backend._nodes._actors]
        for size, held in ray.get(asked):
            assert size > 30_000, "kilobytes: the whole file is mapped"
            assert 0.4 < held / size < 0.7


def test_a_folder_that_a_node_lacks_or_has_another(
    cluster: Any, folder: Path, tmp_path: Path
) -> None:
    """Here the model is mapped before the folder is changed, as if it lay on another disk."""
    for change, kind, message in (
        (lambda copy: copy.rename(tmp_path / "moved"), ModelError, "On node a: There is no folder"),
        (saved_wrongly, BackendError, "on node b is another model than here"),
    ):
        copy = shutil.copytree(folder, tmp_path / "copy")
        model = driftwalk.stage.open_model(str(copy))
        with driftwalk.registry.create(spec(cluster), model) as backend:
            probe = driftwalk.stage.make_probe(model)
            change(copy)
            with pytest.raises(kind, match=message):
                backend.trace(probe)


def saved_wrongly(folder: Path) -> None:
    """Another last block, in a new file: the old one stays mapped as it was."""
    module = zoo.build("llama")
    with torch.no_grad():
        module.model.layers[-1].mlp.down_proj.weight[0, 0] += 1
    shutil.rmtree(folder)
    module.save_pretrained(folder)


def test_more_ranges_than_nodes(cluster: Any, folder: Path) -> None:
    with (
        driftwalk.backend(spec(cluster, count=3), folder) as backend,
        pytest.raises(BackendUnavailable, match=r"ranges=3 takes as many nodes, .* has 2: a, b"),
    ):
        backend.trace()


def test_a_killed_node_is_named(cluster: Any, folder: Path) -> None:
    doomed = cluster.add_node(**SMALL, node_name="aa")
    try:
        with driftwalk.backend(spec(cluster), folder) as backend:
            trace = backend.trace()
            assert backend.info.flags["nodes"] == "a, aa"
            cluster.remove_node(doomed, allow_graceful=False)
            message = r"Node aa was lost before it had run range 2 of 2 \(layer\."
            with pytest.raises(BackendError, match=message):
                backend.trace(trace.probe)
    finally:
        if doomed in cluster.list_all_nodes():
            cluster.remove_node(doomed)


def test_on_the_command_line(cluster: Any, folder: Path) -> None:
    """Pass, and what cannot be reached: exit codes 0, 3 and 2."""

    def run(candidate: str) -> subprocess.CompletedProcess[str]:
        words = ["-m", "driftwalk", "verify", str(folder), "-c", candidate, "--policy", "dtype"]
        words = [sys.executable, *words, "--json"]
        return subprocess.run(
            words, check=False, capture_output=True, encoding="utf-8", timeout=300
        )

    done = run(spec(cluster))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["candidate"]["flags"]["nodes"] == "a, b"
    lost = run("torch,ranges=2,address=127.0.0.1:1")
    assert lost.returncode == 3
    assert "No Ray cluster at '127.0.0.1:1'" in lost.stderr
    assert "Traceback" not in lost.stderr
    assert run("torch,ranges=two").returncode == 2
