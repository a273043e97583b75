"""Every job is done once, redone elsewhere, or accounted for: whatever happens to the machines."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk.tasks.fleet.engine import Engine
from driftwalk.tasks.fleet.job import Job, Place
from driftwalk.tasks.fleet.result import Record
from driftwalk.tasks.fleet.store import Store
from fleet.machines import Machines, Script, job, read

A, B, C = (Place(name, "cpu") for name in "abc")


def run(
    machines: Machines, jobs: list[Job], folder: Path, retries: int = 1, resume: bool = False
) -> tuple[list[Record], Engine]:
    engine = Engine(
        machines, Store(folder, read), timeout=100, retries=retries, clock=machines.clock
    )
    return engine.run(jobs, resume), engine


def first(what: str, then: str = "ok") -> Script:
    return lambda job, place, number: what if number == 0 else then


def test_every_job_is_done_once(tmp_path: Path) -> None:
    machines = Machines([A, B])
    jobs = [job(f"j{n}") for n in range(7)]
    records, _ = run(machines, jobs, tmp_path)
    assert [record.job for record in records] == jobs
    assert {record.status for record in records} == {"done"}
    assert sorted(name for name, _ in machines.starts) == sorted(item.label for item in jobs)
    assert {place for _, place in machines.starts} == {A, B}


def test_a_lost_node_gives_its_work_to_another(tmp_path: Path) -> None:
    machines = Machines([A, B], lambda job, place, number: "lost" if place == A else "ok")
    records, _ = run(machines, [job(f"j{n}") for n in range(4)], tmp_path)
    assert {record.status for record in records} == {"done"}
    assert {record.place for record in records} == {B}
    (redone,) = [record for record in records if len(record.attempts) > 1]
    assert [(a.place, a.ending) for a in redone.attempts] == [("a cpu", "lost"), ("b cpu", "done")]


def test_the_check_of_a_lost_node_is_reported_lost(tmp_path: Path) -> None:
    """Its device is gone: another cannot be checked in its stead."""
    machines = Machines([A, B], lambda job, place, number: "lost" if place == A else "ok")
    records, _ = run(machines, [job("a", A), job("b", B)], tmp_path, retries=5)
    assert [record.status for record in records] == ["lost", "done"]
    assert records[0].verdict == "unsure"
    assert "wire was cut" in records[0].note


@pytest.mark.parametrize("what", ["crash", "garbage", "timeout", "contradiction"])
def test_an_attempt_without_an_answer_is_tried_elsewhere(tmp_path: Path, what: str) -> None:
    machines = Machines([A, B, C], first(what))
    (record,), _ = run(machines, [job("j")], tmp_path)
    assert record.status == "done"
    assert [place for _, place in machines.starts] == [A, B]
    assert record.attempts[0].ending == ("timeout" if what == "timeout" else "failed")


def test_tries_are_limited(tmp_path: Path) -> None:
    machines = Machines([A], lambda *_: "crash")
    (record,), _ = run(machines, [job("j")], tmp_path, retries=2)
    assert (record.status, len(machines.starts)) == ("failed", 3)
    assert record.note == "Segmentation fault (killed by signal 11)"


def test_a_usage_error_is_not_tried_again(tmp_path: Path) -> None:
    machines = Machines([A, B], lambda *_: "usage")
    (record,), _ = run(machines, [job("j")], tmp_path, retries=5)
    assert (record.status, len(machines.starts)) == ("failed", 1)
    assert record.note == "no such option (exit code 2)"


def test_a_silent_place_is_taken_for_lost(tmp_path: Path) -> None:
    machines = Machines([A, B], lambda job, place, number: "silent" if place == A else "ok")
    records, _ = run(machines, [job("j"), job("k")], tmp_path)
    assert {record.status for record in records} == {"done"}
    assert machines.now > 100, "it was given its time"
    assert not machines.running


def test_no_place_that_fits(tmp_path: Path) -> None:
    records, _ = run(Machines([A]), [job("j", needs="cuda"), job("k", C)], tmp_path)
    assert [(r.status, r.note) for r in records] == [
        ("not run", "no node has a cuda device"),
        ("not run", "no node is called 'c cpu'"),
    ]


def test_interrupted(tmp_path: Path) -> None:
    """What was done is kept; the rest is accounted for; going on does only the rest."""
    jobs = [job(f"j{n}") for n in range(5)]
    machines = Machines([A], interrupt_at=3)
    records, engine = run(machines, jobs, tmp_path)
    assert not engine.complete
    assert not machines.running, "what ran was ended"
    assert [record.status for record in records] == ["done", "done", *["not run"] * 3]
    again = Machines([A])
    records, engine = run(again, jobs, tmp_path, resume=True)
    assert engine.complete
    assert {record.status for record in records} == {"done"}
    assert [record.resumed for record in records] == [True, True, False, False, False]
    assert [name for name, _ in again.starts] == ["j2", "j3", "j4"]


def test_an_answer_is_on_disk_before_the_next_event(tmp_path: Path) -> None:
    class Looking(Machines):
        def wait(self, seconds: float) -> object:  # type: ignore[override]
            done = len(self.starts) - len(self.running)
            assert len(list((tmp_path / "jobs").glob("*.json"))) == done
            return super().wait(seconds)

    run(Looking([A]), [job(f"j{n}") for n in range(3)], tmp_path)


BREAKAGE = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "a list": lambda text: "[]",
    "another answer": lambda text: text.replace('"ok": true', '"ok": false'),
    "another answer, well made": lambda text: text.replace('"ok": true', '"ok": false').replace(
        '"code": 0', '"code": 1'
    ),
    "another job": lambda text: text.replace('"label": "j0"', '"label": "j1"'),
    "another tool's": lambda text: '{"schema_version": 1}',
    "another exit code": lambda text: text.replace('"code": 0', '"code": 1'),
    "a newer one": lambda text: text.replace('"schema_version": 1', '"schema_version": 2'),
    "no answer": lambda text: json.dumps({**json.loads(text), "result": None}),
}


@pytest.mark.parametrize("how", BREAKAGE)
def test_a_file_that_cannot_be_believed_is_run_again(tmp_path: Path, how: str) -> None:
    jobs = [job("j0"), job("j1")]
    run(Machines([A]), jobs, tmp_path)
    path = Store(tmp_path, read).path(jobs[0])
    broken = BREAKAGE[how](path.read_text("utf-8"))
    assert broken != path.read_text("utf-8")
    path.write_text(broken, "utf-8")
    machines = Machines([A])
    records, _ = run(machines, jobs, tmp_path, resume=True)
    assert [name for name, _ in machines.starts] == ["j0"]
    assert {record.status for record in records} == {"done"}


def test_a_file_of_another_name_is_not_believed(tmp_path: Path) -> None:
    """An answer that somebody copied over another one."""
    jobs = [job("j0"), job("j1")]
    run(Machines([A]), jobs, tmp_path)
    store = Store(tmp_path, read)
    store.path(jobs[0]).write_bytes(store.path(jobs[1]).read_bytes())
    assert store.load(jobs[0]) is None
    assert store.load(jobs[1]) is not None


ENDINGS = ["ok", "ok", "fault", "crash", "garbage", "usage", "timeout", "lost", "silent"]


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.integers(1, 4),
    free=st.integers(0, 6),
    retries=st.integers(0, 3),
    seed=st.integers(0, 2**32),
    interrupt_at=st.none() | st.integers(1, 12),
)
def test_nothing_is_lost_and_nothing_done_twice(
    nodes: int, free: int, retries: int, seed: int, interrupt_at: int | None
) -> None:
    """In whatever order and however jobs end. The machines check that places are used rightly."""
    places = [Place(f"n{n}", device) for n in range(nodes) for device in ("cpu", "cuda:0")]
    jobs = [job(f"check {place.name}", place) for place in places]
    jobs += [job(f"free {n}", needs="cuda" if n % 3 == 0 else "cpu") for n in range(free)]
    chance = random.Random(seed)
    chance.shuffle(jobs)
    told: Counter[str] = Counter()

    def script(asked: Job, place: Place, number: int) -> str:
        what = chance.choice(ENDINGS)
        told[asked.id] += what in ("ok", "fault")
        return what

    with TemporaryDirectory() as name:
        folder = Path(name)
        machines = Machines(places, script, interrupt_at)
        records, engine = run(machines, jobs, folder, retries)
        assert [record.job for record in records] == jobs
        assert not machines.running
        done = {record.id for record in records if record.status == "done"}
        if engine.complete:
            assert done == {key for key, count in told.items() if count}
        assert all(count <= 1 for count in told.values()), "no answer was asked for twice"
        assert all(count <= retries + 1 for count in machines.tries.values())
        for record in records:
            if record.status != "done" and engine.complete:
                fitting = [p for p in places if record.job.fits(p) and p not in machines.gone]
                spent = len(record.attempts) == retries + 1
                refused = any("exit code 2" in a.reason for a in record.attempts)
                assert spent or refused or not fitting, "it could have been tried again"
        # The next day, on machines that work.
        again = Machines(places)
        finished, _ = run(again, jobs, folder, retries, resume=True)
        assert {record.status for record in finished} == {"done"}
        assert Counter(again.tries) == Counter({j.id: 1 for j in jobs if j.id not in done})
        assert [r.verdict for r in finished if r.id in done] == [
            r.verdict for r in records if r.id in done
        ], "an earlier answer is the same answer"
