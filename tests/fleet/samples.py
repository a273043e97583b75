"""Fleet reports as they come out: one with everything that can go wrong, one clean, one sharded."""

from __future__ import annotations

from dataclasses import replace

from driftwalk.tasks.fleet.job import Job, Place
from driftwalk.tasks.fleet.result import Attempt, Check, Finding, FleetReport, Record
from driftwalk.tasks.fleet.run import put_together

CHECKS = ("repeat", "units", "load", "golden", "invariance")
STATES = ("repeat | model fp32 | layer.0", "repeat | model fp32 | layer.1", "units | matmul | out")
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e@all [x](http://x) |"


def device(
    node: str, name: str = "cuda:0", *, faulty: bool = False, odd: bool = False, driver: str = "570"
) -> Record:
    """One device's check; `odd`: steady, and other bits than the rest."""
    place = Place(node, name)
    checks = tuple(
        Check(check, "fault" if faulty and check == "repeat" else "pass", "20 runs: the same bits.")
        for check in CHECKS
    )
    made = Finding(
        "fault" if faulty else "pass",
        "Fault: repeat: layer.1, element 5, bit 3" if faulty else "No fault found.",
        checks,
        "NVIDIA H200",
        {state: "wrong" if odd and "layer.1" in state else f"bits of {state}" for state in STATES},
        {"model": "NVIDIA H200", "torch": "2.13.0"},
        {"driver": driver, "python": "3.11.7", "torch": "2.13.0"},
    )
    asked = Job("hwcheck", ("--device", "{device}", "--json"), place.name, place.name, place.kind)
    tries = (Attempt(place.name, "done", "", 41.3),)
    return Record(asked.id, asked, "done", place, tries, made, f"jobs/{asked.id}.json")


def lost(node: str) -> Record:
    record = device(node)
    tries = (Attempt(f"{node} cuda:0", "lost", "The actor died: its node was terminated.", 12.0),)
    return replace(record, status="lost", attempts=tries, finding=None, file="", note="lost")


def clean() -> FleetReport:
    records = [device(f"node-{n}") for n in range(4)]
    made = put_together(records, "hwcheck", "Ray 2.60.0 at 10.0.0.1:6379, 4 nodes")
    return replace(made, seconds=52.1)


def troubled() -> FleetReport:
    records = [device(f"node-{n}") for n in range(5)]
    records += [device("node-5", faulty=True), device("node-6", odd=True, driver="550")]
    records.append(lost("node-7"))
    return replace(
        put_together(records, "hwcheck", "Ray 2.60.0 at 10.0.0.1:6379, 8 nodes"),
        seconds=63.0,
        command="driftwalk fleet hwcheck --address auto -o results",
    )


def split() -> FleetReport:
    made = put_together([device("a"), device("b", odd=True)], "hwcheck", "two")
    return replace(made, seconds=1.0)


def hostile() -> FleetReport:
    """Names and messages from machines that mean no good."""
    bad = device(HOSTILE, faulty=True)
    assert bad.finding is not None
    evil = replace(
        bad.finding,
        said=HOSTILE,
        device=HOSTILE,
        environment={HOSTILE: HOSTILE},
        checks=(Check(HOSTILE, "fault", HOSTILE),),
        patterns={HOSTILE: "x"},
    )
    tries = (Attempt(HOSTILE, "failed", HOSTILE, 1.0), *bad.attempts)
    other = replace(evil, environment={HOSTILE: "other"}, patterns={HOSTILE: "y"})
    records = [replace(bad, finding=evil, attempts=tries), replace(device("b"), finding=other)]
    made = put_together(records, "hwcheck", HOSTILE)
    return replace(made, command=HOSTILE, notes=(HOSTILE,))


def sharded() -> FleetReport:
    """Verification shared out: one passes, one drifts, one could not be done."""
    names = ("gpt2 on onnxruntime", "gpt2 on torch:cpu:fp16", "bert on onnxruntime")
    jobs = [Job("verify", (name,), name) for name in names]
    places = [Place("node-1", "cpu"), Place("node-2", "cpu")]
    good = Finding("pass", "14 points within tolerance", environment={"torch": "2.13.0"})
    bad = Finding("fault", "drift at layer.5, made in layer.4", environment={"torch": "2.12.1"})
    done = [Attempt("node-1 cpu", "done", "", 9.0)]
    redone = [Attempt("node-1 cpu", "lost", "gone", 3.0), Attempt("node-2 cpu", "done", "", 8.0)]
    failed = [Attempt("node-2 cpu", "failed", "No model 'bert' (exit code 3)", 2.0)]
    records = [
        Record(jobs[0].id, jobs[0], "done", places[0], tuple(done), good, "jobs/a.json"),
        Record(jobs[1].id, jobs[1], "done", places[1], tuple(redone), bad, "jobs/b.json"),
        Record(jobs[2].id, jobs[2], "failed", places[1], tuple(failed), note="No model 'bert'"),
    ]
    made = put_together(records, "verify", "this machine, in processes")
    return replace(made, seconds=22.0)
