"""A fleet on a real Ray cluster of several nodes, all on this machine: `tox -e ray`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driftwalk.tasks.fleet.job import Place
from meta.sources import PACKAGES

pytest.importorskip("ray", reason="tox -e ray has it")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own, at every start
]

SMALL = {"num_cpus": 1, "object_store_memory": 80_000_000}
FAULT = "state=layer.2,element=5,bit=3"
PATH = os.pathsep.join(str(folder.parent) for folder in PACKAGES.values())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and three nodes: `wrong` computes wrongly, `doomed` is killed by the test."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": PATH}
    from ray.cluster_utils import Cluster

    head = {**SMALL, "node_name": "head", "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    made.add_node(**SMALL, node_name="good")
    made.add_node(**SMALL, node_name="wrong", env_vars={"DRIFTWALK_HWCHECK_INJECT": FAULT})
    try:
        yield made
    finally:
        made.shutdown()


def fleet(cluster: Any, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "driftwalk", "fleet", *words, "--address", cluster.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def finished(process: subprocess.Popen[str]) -> tuple[Any, str]:
    out, err = process.communicate(timeout=300)
    assert out.startswith("{"), err
    return json.loads(out), err


CHECK = ("hwcheck", "--device", "cpu", "--check", "repeat", "--dtype", "fp32", "--json")


def wait_for(command: str, seconds: float = 120) -> None:
    """Until a node works on a job."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if b"driftwalk" in words and command.encode() in words and b"fleet" not in words:
                return
        time.sleep(0.05)
    raise AssertionError(f"no {command} was seen")


def test_a_wrong_node_and_a_killed_one(cluster: Any, tmp_path: Path) -> None:
    """The wrong one is named, the killed one reported, nothing lost; then only it is run again."""
    doomed = cluster.add_node(**SMALL, node_name="doomed")
    results = tmp_path / "results"
    running = fleet(cluster, *CHECK, "--check", "units", "-o", str(results), "--retries", "2")
    wait_for("hwcheck")
    cluster.remove_node(doomed, allow_graceful=False)
    report, err = finished(running)
    assert running.returncode == 1, err
    assert (report["verdict"], report["exit_code"]) == ("fault", 1)
    assert report["wrong"] == ["wrong cpu"], err
    by_name = {record["job"]["label"]: record for record in report["records"]}
    assert set(by_name) == {"head cpu", "good cpu", "wrong cpu", "doomed cpu"}
    assert by_name["doomed cpu"]["status"] == "lost"
    done = [name for name, record in by_name.items() if record["status"] == "done"]
    assert sorted(done) == ["good cpu", "head cpu", "wrong cpu"]
    (outlier,) = report["outliers"]
    assert outlier["place"] == "wrong cpu"
    assert outlier["patterns"][0] == "repeat | model fp32 | layer.2", "the very state is named"
    assert not [name for name in outlier["patterns"] if "layer.1" in name or "embed" in name]
    assert len(list((results / "jobs").glob("*.json"))) == 3
    assert "✗" in (results / "fleet.html").read_text("utf-8")

    # It comes back the next day: only its own check is run.
    cluster.add_node(**SMALL, node_name="doomed")
    again = fleet(cluster, *CHECK, "--check", "units", "-o", str(results), "--resume")
    report, err = finished(again)
    assert again.returncode == 1, err
    resumed = {r["job"]["label"]: r["resumed"] for r in report["records"]}
    assert resumed == {"head cpu": True, "good cpu": True, "wrong cpu": True, "doomed cpu": False}
    assert report["wrong"] == ["wrong cpu"]


def test_work_of_a_killed_node_is_done_elsewhere(cluster: Any, tmp_path: Path) -> None:
    """Verifications run anywhere: none is missing at the end, and none was done twice."""
    doomed = cluster.add_node(**SMALL, node_name="doomed too")
    results = tmp_path / "results"
    models = [f"demo:{kind}" for kind in ("decoder", "encoder")]
    specs = ["-c", "torch", "-c", "emulated:fp16", "-c", "emulated:bf16"]
    words = ["--policy", "dtype", "--json", "-o", str(results), "--retries", "2"]
    running = fleet(cluster, "verify", *models, *specs, *words)
    wait_for("verify")
    cluster.remove_node(doomed, allow_graceful=False)
    report, err = finished(running)
    assert running.returncode == 0, err
    assert [record["status"] for record in report["records"]] == ["done"] * 6
    assert len({record["id"] for record in report["records"]}) == 6
    attempts = [a for record in report["records"] for a in record["attempts"]]
    assert sum(attempt["ending"] == "done" for attempt in attempts) == 6
    assert {a["place"] for a in attempts if a["ending"] == "lost"} == {"doomed too cpu"}


def test_a_golden_is_sent_to_every_node(cluster: Any, tmp_path: Path) -> None:
    """All are held against it, also the one whose bits nobody else would doubt."""
    golden = tmp_path / "golden.trace"
    words = ["hwcheck", "--record-golden", str(golden)]
    subprocess.run([sys.executable, "-m", "driftwalk", *words], check=True, timeout=120)
    words = ["hwcheck", "--device", "cpu", "--check", "golden", "--dtype", "fp32", "--json"]
    running = fleet(cluster, *words, "--golden", str(golden), "-o", str(tmp_path / "results"))
    report, err = finished(running)
    assert running.returncode == 1, err
    told = {
        record["place"]["node"]: (check["name"], check["verdict"])
        for record in report["records"]
        for check in record["finding"]["checks"]
    }
    good = {node: found for node, found in told.items() if node != "wrong"}
    assert {"head", "good"} <= good.keys()
    assert set(good.values()) == {("golden", "pass")}
    assert told["wrong"] == ("golden", "fault")


def test_each_gpu_has_one_seat(cluster: Any) -> None:
    """GPUs that Ray only believes in: each is claimed once, under its own number."""
    import ray

    from driftwalk_backends.ray_cluster import RayCluster

    node = cluster.add_node(**SMALL, num_gpus=3, node_name="with gpus")
    try:
        for _ in range(2):  # the second time, all of them are free again
            found = RayCluster(cluster.address, ("cuda",))
            assert found.places() == tuple(Place("with gpus", f"cuda:{n}") for n in range(3))
            seats = [found._actor(place) for place in found.places()]
            assert ray.get([seat.gpu.remote() for seat in seats]) == ["0", "1", "2"]
            found.close()
    finally:
        cluster.remove_node(node)
