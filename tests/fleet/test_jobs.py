"""From a configuration to jobs, and from a job's JSON to a finding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driftwalk.cli.options import parse_policy
from driftwalk.document import to_dict
from driftwalk.errors import UsageError
from driftwalk.project.config import load_config
from driftwalk.tasks.fleet.job import Job, Place
from driftwalk.tasks.fleet.jobs import hwcheck_jobs, policy_words, read, verify_jobs
from driftwalk.tasks.fleet.result import Finding
from driftwalk.tasks.hardware.work import LEVELS, Level
from driftwalk.tolerance import Tolerance, make_policy

CONFIG = """
candidates = ["onnxruntime", "torch:cuda:fp16"]
policy = "dtype"
[probes.short]
prompts = ["--dashes first", "two"]
[probes.ids]
ids = [1, 2, 3]
[[models]]
model = "demo:decoder"
name = "small"
depth = "module"
[models.rules]
"layer.*" = "1e-3,1e-4"
[[models]]
model = "demo:encoder"
probes = ["ids"]
candidates = ["torch"]
allow-missing = ["norm"]
trust-remote-code = true
"""


def parsed(words: list[str]) -> Any:
    """What the command line makes of a job's words; it runs nothing."""
    import typer

    from driftwalk.cli.app import app

    group: Any = typer.main.get_command(app)
    return group.commands[words[0]].make_context(words[0], words[1:]).params


def test_a_job_for_every_model_probe_and_candidate(tmp_path: Path) -> None:
    (tmp_path / "driftwalk.toml").write_text(CONFIG)
    config = load_config(tmp_path / "driftwalk.toml")
    jobs = verify_jobs(config.runs, tmp_path)
    assert [(job.label, job.needs) for job in jobs] == [
        ("small/short on onnxruntime", "cpu"),
        ("small/short on torch:cuda:fp16", "cuda"),
        ("small/ids on onnxruntime", "cpu"),
        ("small/ids on torch:cuda:fp16", "cuda"),
        ("demo:encoder/ids on torch", "cpu"),
    ]
    assert len({job.id for job in jobs}) == 5
    assert {job.folder for job in jobs} == {str(tmp_path)}
    given = parsed(jobs[0].command(Place("n", "cpu")))
    assert given["model"] == "demo:decoder"
    assert given["candidate"] == ["onnxruntime"]
    assert given["prompt"] == ["--dashes first", "two"]
    assert (given["depth"], given["as_json"]) == ("module", True)
    assert parse_policy(given["policy"], given["rule"]) == config.runs[0].common.policy
    last = parsed(jobs[-1].command(Place("n", "cpu")))
    assert (last["ids"], last["allow_missing"], last["trust_remote_code"]) == (
        "1 2 3",
        ["norm"],
        True,
    )


@pytest.mark.parametrize("text", ["calibrated", "dtype", "fixed:0.1", "fixed:1e-300,0.30000000004"])
def test_a_policy_as_words_is_the_same_policy(text: str) -> None:
    words = list(policy_words(make_policy(text)))
    rules = [words[n + 1] for n, word in enumerate(words) if word == "--rule"]
    again, first = parse_policy(words[1], rules), make_policy(text)
    assert (again.rules, again.calibrated) == (first.rules, first.calibrated)


def test_rules_that_are_a_dict() -> None:
    policy = make_policy({"layer.*": Tolerance(1e-3, 2e-3)})
    assert list(policy_words(policy))[1:] == ["calibrated", "--rule", "layer.*=0.001,0.002"]


def test_the_same_question_has_the_same_id() -> None:
    job = Job("verify", ("m", "--json"), "m")
    assert job.id == Job("verify", ("m", "--json"), "another label").id
    others = [
        Job("hwcheck", ("m", "--json"), "m"),
        Job("verify", ("m",), "m"),
        Job("verify", ("m", "--json"), "m", at="n cpu"),
        Job("verify", ("m", "--json"), "m", golden="x"),
        Job("verify", ("m", "--json"), "m", folder="x"),
        Job("verify", ("m\udcff", "--json"), "m"),
    ]
    assert len({job.id, *(other.id for other in others)}) == 7


def test_one_check_for_every_device() -> None:
    places = [Place("a", "cpu"), Place("a", "cpu", 1), Place("a", "cuda:0"), Place("b", "cpu")]
    jobs = hwcheck_jobs(places, ["--level", "quick"], golden="abc")
    assert [job.at for job in jobs] == ["a cpu", "a cuda:0", "b cpu"]
    given = parsed(jobs[1].command(places[2], "/there/golden"))
    assert (given["device"], str(given["golden"]), given["as_json"]) == (
        "cuda:0",
        "/there/golden",
        True,
    )


@pytest.fixture(scope="module")
def checked() -> dict[str, Any]:
    """A real check of this machine's CPU, as small as can be."""
    from driftwalk.tasks.hardware import check

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LEVELS, "quick", Level("quick", 3, 3, 2, 2, 0.2))
        return to_dict(check("cpu", checks=["repeat"], dtypes=["fp32"]))


CHECK = Job("hwcheck", (), "n cpu", "n cpu")


def test_a_hardware_check_is_read(checked: dict[str, Any]) -> None:
    found = read(CHECK, json.loads(json.dumps(checked)), 0)
    assert found.verdict == "pass"
    assert [check.name for check in found.checks] == ["repeat"]
    assert found.device == checked["devices"][0]["identity"]["model"]
    assert len(found.patterns) > 4
    assert all(found.patterns.values())
    for key in ("torch", "threads", "probe", "weights", "level"):
        assert found.basis[key], "bits are only comparable where these agree"
    assert {"python", "torch", "throttled"} <= found.environment.keys()


def test_a_golden_that_was_not_compared_is_no_pass(checked: dict[str, Any]) -> None:
    held = Job("hwcheck", (), "n cpu", "n cpu", golden="abc")
    found = read(held, checked, 0)
    assert (found.verdict, found.said) == (
        "unsure",
        "not held against the golden: there was no such check",
    )


@pytest.mark.parametrize("code", [1, 3])
def test_a_result_that_contradicts_its_exit_code_is_none(
    checked: dict[str, Any], code: int
) -> None:
    with pytest.raises(UsageError, match=f"the exit code was {code}"):
        read(CHECK, checked, code)


def verification(name: str) -> Any:
    path = Path(__file__).parents[1] / "data" / "results" / f"{name}.json"
    return json.loads(path.read_text("utf-8"))


def test_verifications_are_read() -> None:
    asked = Job("verify", (), "m")
    passed = read(asked, verification("pass"), 0)
    assert passed.verdict == "pass"
    assert passed.environment["torch"]
    drifted = read(asked, verification("drift"), 1)
    assert drifted.verdict == "fault"
    assert drifted.said.startswith("drift at layer.")
    assert isinstance(drifted, Finding)
    for name, code in (("drift", 0), ("drift", 3), ("pass", 3)):
        with pytest.raises(UsageError, match="the exit code was"):
            read(asked, verification(name), code)
    with pytest.raises(UsageError):
        read(asked, {"kind": "hardware"}, 0)
