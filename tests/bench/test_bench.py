"""`bench` itself: turns, processes, what is kept, and what happens when it is stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import driftwalk
from bench.slowed import Slowed
from driftwalk.adapter import Lap
from driftwalk.children import Child
from driftwalk.document import from_dict, to_json
from driftwalk.errors import BackendError, UsageError
from driftwalk.progress import Progress
from driftwalk.result import Benchmark, Tool
from driftwalk.states import BackendInfo, Probe
from driftwalk.tasks.bench.result import BenchReport, Case, Entry
from driftwalk.tasks.bench.run import bench
from driftwalk.tasks.bench.runner import Local, Remote, environment_of
from processes import PATIENCE

TINY = "cli.factories:Tiny"
"""Plain torch: a process that makes it need not import transformers."""


def torch_backend() -> driftwalk.Backend:
    return driftwalk.backend("torch,threads=1", "demo:decoder")


class Told(Progress):
    """Remembers the stages."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.expected = 0

    def expect(self, stages: int) -> None:
        self.expected += stages

    @contextmanager
    def stage(self, text: str) -> Iterator[None]:
        self.stages.append(text)
        yield


class Recorded(Slowed):
    """Writes its laps into a common list; raises where asked."""

    def __init__(self, inner: driftwalk.Backend, who: str, log: list[str], stop: int = 0) -> None:
        super().__init__(inner, 1.0)
        self._who, self._log, self._stop = who, log, stop

    def lap(self, probe: Probe) -> Lap:
        self._log.append(self._who)
        if self._stop and self._log.count(self._who) >= self._stop:
            raise KeyboardInterrupt
        return Lap(0.001)


def test_backends_take_turns_and_the_order_alternates() -> None:
    log: list[str] = []
    inner = torch_backend()
    bench(
        "demo:decoder", [Recorded(inner, "A", log), Recorded(inner, "B", log)], rounds=4, warmup=1
    )
    assert "".join(log) == "AB" + "AB" + "AB" + "BA" + "AB" + "BA"


def test_progress_tells_of_every_round_and_shape() -> None:
    told = Told()
    inner, log = torch_backend(), []
    both = [Recorded(inner, "A", log), Recorded(inner, "B", log)]
    bench("demo:decoder", both, rounds=3, warmup=1, batch=(1, 2), length=(8,), progress=told)
    assert told.expected == len(told.stages) == 2 * (2 + 1 + 3)
    assert "2 x 8: round 3 of 3" in told.stages


def test_interrupted_it_keeps_whole_rounds() -> None:
    log: list[str] = []
    inner = torch_backend()
    both = [Recorded(inner, "A", log), Recorded(inner, "B", log, stop=6)]
    found = bench("demo:decoder", both, rounds=20, warmup=1, batch=(1, 2))
    assert not found.complete
    assert len(found.cases) == 1, "the next shape is not begun"
    assert [len(entry.bench.samples) for entry in found.cases[0].entries] == [3, 3]


def test_interrupted_before_any_round_there_is_still_a_report() -> None:
    log: list[str] = []
    inner = torch_backend()
    found = bench("demo:decoder", [Recorded(inner, "A", log, stop=1)], rounds=5)
    assert not found.complete
    assert found.cases[0].entries[0].bench.samples == ()
    assert found.cases[0].entries[0].noise == ("no run was finished",)


def test_each_backend_has_a_process_of_its_own() -> None:
    found = bench(TINY, ["torch", "torch:cpu:fp64"], rounds=2, warmup=0, threads=1)
    assert found.isolated
    assert found.complete
    (case,) = found.cases
    assert [entry.backend.spec for entry in case.entries] == ["torch", "torch:cpu:fp64"]
    for entry in case.entries:
        assert len(entry.bench.samples) == 2
        assert entry.threads == 1
        assert entry.bench.cold["first run"] > 0
        assert entry.bench.memory["rss"] > 2**26
        assert list(entry.bench.layers)[:2] == ["embed", "layer.0"]
    again = from_dict(json.loads(to_json(found)))
    assert again == found


def test_the_export_of_every_new_shape_is_told_apart_from_its_first_run() -> None:
    with driftwalk.backend("onnxruntime,cache=off", "demo:decoder") as backend:
        runner = Local(backend)
        cold = [runner.open(Probe({"input_ids": [list(range(5, 5 + n))]})) for n in (4, 6, 4)]
    assert all(one["export"] > 5 * one["first run"] for one in cold[:2])
    assert cold[0]["export"] + cold[1]["export"] == pytest.approx(backend.seconds["export"])
    assert "export" not in cold[2]


def test_objects_run_here_and_the_report_says_so() -> None:
    found = bench("demo:decoder", [torch_backend()], rounds=2, warmup=0, layers=False)
    assert not found.isolated
    assert any("one process" in note for note in found.notes)
    assert found.cases[0].entries[0].bench.layers == {}
    assert found.cases[0].tokens == 28, "padding is no token"


def test_a_time_limit_still_gives_enough_pairs() -> None:
    log: list[str] = []
    inner = torch_backend()
    found = bench("demo:decoder", [Recorded(inner, "A", log)], rounds=1000, seconds=0.0)
    assert len(found.cases[0].entries[0].bench.samples) == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backends": []}, "No backend"),
        ({"backends": ["torhc"]}, "Unknown backend"),
        ({"rounds": 0}, "rounds=0"),
        ({"probe": "text", "batch": (2,)}, "shape the default probe"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(change: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bench("demo:decoder", **({"backends": ["torch"]} | change))


# The process


def test_a_process_that_dies_says_its_last_words() -> None:
    runner = Remote("torch", TINY)
    try:
        runner._process.kill()
        with pytest.raises(BackendError, match=r"The process of torch ended with code -9"):
            runner.lap()
    finally:
        runner.close()


def test_errors_cross_over_in_one_line() -> None:
    with pytest.raises(BackendError, match=r"torch: .*nowhere"):
        Remote("torch", "./nowhere")


def test_what_a_model_prints_is_no_answer(tmp_path, monkeypatch) -> None:
    (tmp_path / "talkative.py").write_text(
        "from cli.factories import Tiny\n"
        "def make():\n"
        "    print('{\"answer\": 7}')\n"
        "    return Tiny()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    runner = Remote("torch", "talkative:make")
    try:
        assert runner.info().name == "torch"
    finally:
        runner.close()


def test_an_answer_that_nobody_waited_for_is_not_taken_for_another() -> None:
    """Ctrl-C between an order and its answer."""
    runner = Remote("torch,threads=1", TINY)
    try:
        assert runner._process.stdin is not None
        runner._process.stdin.write('{"id": -1, "do": "info"}\n')
        assert runner.memory()["rss"] > 0
    finally:
        runner.close()


def test_no_process_is_left_behind() -> None:
    runner = Remote("torch", TINY)
    process = runner._process
    assert isinstance(process, Child), "it ends with us, however we end"
    runner.close()
    assert process.returncode == 0


def test_the_worker_knows_no_other_orders() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "driftwalk.tasks.bench.runner"],
        input='{"do": "lap"}\n{"do": "delete"}\nnonsense\n',
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=PATIENCE,
        env=environment_of(None),
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers[0] == {"id": None, "error": "no backend was made yet"}
    assert "KeyError" in answers[1]["error"]
    assert "JSONDecodeError" in answers[2]["error"]


# The gate


def report(*rows: list[float]) -> BenchReport:
    entries = tuple(
        Entry(BackendInfo(f"b{i}", "b", "cpu", "fp32"), Benchmark(tuple(row)))
        for i, row in enumerate(rows)
    )
    case = Case(1, 8, "ids [1, 8]", 8, entries)
    return BenchReport(
        tool=Tool("driftwalk", "0"), created="", command="", model={}, cases=(case,), isolated=True
    )


def test_the_gate_fails_only_when_the_interval_says_so() -> None:
    steady = [1.0 + 0.001 * (i % 3) for i in range(20)]
    slow = [1.3 * value for value in steady]
    noisy = [1.0 + (i % 2) for i in range(20)]
    assert [entry.backend.spec for _, entry, _ in report(steady, slow).slower(1.1)] == ["b1"]
    assert report(steady, slow).slower(1.5) == []
    assert report(steady, slow).undecided(1.1) == []
    assert report(steady, steady).slower(1.1) == []
    assert report(steady, noisy).slower(1.1) == []
    assert len(report(steady, noisy).undecided(1.1)) == 1


def test_a_machine_that_gets_slower_is_named() -> None:
    (entry,) = report([1.0] * 10 + [1.4] * 10).cases[0].entries
    assert any("throttling" in said for said in entry.noise)
    (entry,) = report([1.0] * 20).cases[0].entries
    assert entry.noise == ()


def test_what_verify_was_told_of_the_model_is_told_to_bench(monkeypatch) -> None:
    told: dict = {}

    def recorded(*given: object, **options: object) -> BenchReport:
        told.update(options)
        return report([0.1], [0.1])

    monkeypatch.setattr("driftwalk.tasks.bench.run.bench", recorded)
    found = driftwalk.verify(
        "demo:decoder", candidate="torch:cpu:fp64", blocks="transformer.h", bench=3
    )
    assert (told["rounds"], told["blocks"]) == (3, "transformer.h")
    assert found.benchmarks["candidate"].samples == (0.1,)
