"""`driftwalk verify` without a model runs the configuration; `--expected` knows of deviations."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from cli.program import invoke

TINY = "cli.factories:Tiny"
CONFIG = f"""
candidates = ["torch"]
policy = "dtype"

[[models]]
model = "{TINY}"
name = "tiny"

[[models]]
model = "{TINY}"
name = "rounded"
candidates = ["torch:cpu:fp64", "torch:cpu:bf16"]
policy = "fixed:1e-6"
expected = "known.toml"
"""
KNOWN = """
[[expected]]
point = "*"
metric = "rel_l2"
bound = 0.1
reason = "bf16 is coarse"
expires = 2999-12-31
candidate = "torch:cpu:bf16"
"""
STALE = KNOWN.replace("torch:cpu:bf16", "torch:cpu:fp64")


@pytest.fixture
def configured(here: Path) -> Path:
    (here / "driftwalk.toml").write_text(CONFIG)
    (here / "known.toml").write_text(KNOWN)
    return here


def test_all_of_it(configured: Path) -> None:
    done = invoke("verify", "--report", "out")
    assert done.code == 0, done.err
    assert "driftwalk: rounded on torch:cpu:bf16: drift, as expected" in done.err
    assert "Expected drift at embed" in done.out
    page = (configured / "out" / "03-rounded-torch-cpu-bf16" / "report.html").read_text("utf-8")
    assert "All of it is expected." in page
    assert "--only rounded" in page
    assert "--depth module" not in page, "a configuration is not run with options of one model"
    names = sorted(path.name for path in (configured / "out").iterdir())
    assert names == [
        "01-tiny-torch",
        "02-rounded-torch-cpu-fp64",
        "03-rounded-torch-cpu-bf16",
        "index.html",
    ]


def test_json_is_all_of_it(configured: Path) -> None:
    (configured / "known.toml").write_text("")
    done = invoke("verify", "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert [item["model"]["label"] for item in found] == ["tiny", "rounded", "rounded"]
    assert [item["verdict"] for item in found] == ["pass", "pass", "drift"]
    assert found[2]["command"] == "driftwalk verify --only rounded"
    again = invoke(*shlex.split(found[2]["command"])[1:], "--json")
    assert json.loads(again.out)[1]["layers"] == found[2]["layers"]


def test_the_list(configured: Path) -> None:
    done = invoke("verify", "--list")
    assert (done.code, done.err) == (0, "")
    assert "candidates torch:cpu:fp64, torch:cpu:bf16" in done.out
    rows = json.loads(invoke("verify", "--list", "--json").out)
    assert [row["name"] for row in rows] == ["tiny", "rounded"]
    assert rows[1]["policy"] == "fixed"


def test_some_of_it(configured: Path) -> None:
    (configured / "known.toml").write_text(KNOWN.replace("bf16", "nothing"))
    assert len(json.loads("[" + invoke("verify", "--only", "ti*", "--json").out + "]")) == 1
    invoke("verify", "--only", "tiiny").refused(2, "--only 'tiiny'", "Did you mean 'tiny'?")


def test_another_file_is_seen_from_its_own_folder(
    configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = configured / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    done = invoke("verify", "--config", "../driftwalk.toml", "--report", "out")
    assert done.code == 0, done.err
    assert (elsewhere / "out" / "index.html").is_file()
    assert "rounded" in invoke("verify", "--list").out, "the nearest file above is found"


@pytest.mark.parametrize(
    ("known", "code", "words"),
    [
        (KNOWN.replace("0.1", "1e-9"), 1, ""),
        (KNOWN.replace("2999", "1999"), 1, "expired on 1999-12-31"),
        (KNOWN + STALE, 1, "nothing drifts at * any more"),
        (KNOWN + KNOWN.replace("torch:cpu:bf16", "openvino"), 1, "no run has a model '*'"),
        (KNOWN.replace("bound", "bond"), 2, "Did you mean 'bound'?"),
    ],
    ids=["more", "expired", "stale", "unmet", "mistake"],
)
def test_entries_that_fail(configured: Path, known: str, code: int, words: str) -> None:
    (configured / "known.toml").write_text(known)
    done = invoke("verify")
    assert done.code == code
    assert words in done.err


def test_one_that_cannot_be_run_does_not_stop_the_others(configured: Path) -> None:
    with (configured / "driftwalk.toml").open("a") as file:
        file.write('\n[[models]]\nmodel = "no_such_module:make"\nname = "lost"\n')
    done = invoke("verify")
    assert done.code == 3
    assert "driftwalk: lost: " in done.err
    assert done.out.count("PASS") == 2
    (configured / "known.toml").write_text("")
    assert invoke("verify").code == 1, "drift outweighs it"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-c", "torch"], "--candidate is for one model, and no MODEL is named"),
        (["--policy", "dtype"], "--policy is for one model"),
        (["--expected", "known.toml"], "--expected is for one model"),
        (["--bench"], "--bench is for one model"),
        ([TINY, "--list"], "--list is for running the configuration"),
        ([TINY, "--config", "driftwalk.toml"], "--config is for running the configuration"),
        ([TINY, "--only", "x"], "--only is for running the configuration"),
    ],
)
def test_not_a_little_of_both(configured: Path, arguments: list[str], words: str) -> None:
    invoke("verify", *arguments).refused(2, words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["No MODEL is named", "driftwalk.toml", "pyproject.toml"]),
        ("", ["names no models"]),
        ("cndidates = []", ["driftwalk.toml", "'cndidates'", "Did you mean 'candidates'?"]),
        ("policy = [", ["driftwalk.toml", "is not TOML"]),
    ],
)
def test_no_configuration_is_2(here: Path, text: str | None, words: list[str]) -> None:
    (here / ".git").mkdir()
    if text is not None:
        (here / "driftwalk.toml").write_text(text)
    invoke("verify").refused(2, *words)


def test_expected_for_one_model(here: Path) -> None:
    (here / "known.toml").write_text(KNOWN)
    both = ["-c", "torch:cpu:bf16", "-c", "torch", "--policy", "fixed:1e-6"]
    assert invoke("verify", TINY, *both).code == 1
    assert invoke("verify", TINY, *both, "--expected", "known.toml").code == 0
    (here / "known.toml").write_text(KNOWN.replace("torch:cpu:bf16", "openvino"))
    assert invoke("verify", TINY, *both[2:], "--expected", "known.toml").code == 0
    (here / "known.toml").write_text(STALE.replace("2999", "1999"))
    done = invoke("verify", TINY, "-c", "torch", "--expected", "known.toml")
    assert done.code == 1, "an expired entry fails wherever its file is used"
    assert "expired on 1999-12-31" in done.err
    invoke("verify", "demo:no", "--expected", "nowhere.toml").refused(2, "Cannot read")


OF_SETS = f"""
candidates = ["torch"]
policy = "dtype"
probes.edges = {{ set = "builtin:edge" }}
probes.mine = {{ set = "sets/mine.jsonl" }}

[[models]]
model = "{TINY}"
name = "tiny"
"""


def test_sets_of_probes_are_run_as_one_run_each(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "driftwalk.toml").write_text(OF_SETS)
    (here / "sets").mkdir()
    (here / "deeper").mkdir()
    line = json.dumps({"name": "one", "input_ids": [[1, 2, 3]]})
    (here / "sets" / "mine.jsonl").write_text(f"{line}\n")
    monkeypatch.chdir(here / "deeper")  # what the file names is found from its own folder
    done = invoke("verify", "--json")
    assert done.code == 0, done.err
    edges, mine = json.loads(done.out)
    assert edges["model"]["label"] == "tiny/edges"
    assert edges["probe_set"]["origin"] == "builtin:edge"
    assert edges["probe_set"]["count"] > 2
    assert mine["probe_set"]["count"] == 1
    assert "the set builtin:edge" in invoke("verify", "--list").out


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        ('{ set = "builtin:edge", ids = [1] }', "give one of 'prompts', 'ids', 'file' and 'set'"),
        ('{ set = "builtin:edge", length = 3 }', "'length' shapes the default probe"),
        ('{ set = "builtin:egde" }', "There is no set of probes 'builtin:egde'"),
        ("{ set = 3 }", "'set'"),
    ],
)
def test_a_set_that_cannot_be_is_2(here: Path, probe: str, words: str) -> None:
    (here / "driftwalk.toml").write_text(
        f'[probes]\nedges = {probe}\n[[models]]\nmodel = "{TINY}"\ncandidates = ["torch"]\n'
    )
    done = invoke("verify")
    assert done.code == 2, done.err
    assert words in done.err
