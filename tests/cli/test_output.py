"""Data on stdout, words on stderr, files in the report folder; and the same files once more."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from cli.program import REPORT_FILES, Outcome, driftwalk, environment, invoke
from processes import PATIENCE

TINY = ["verify", "cli.factories:Tiny"]
DRIFTING = ["-c", "torch:cpu:bf16", "--policy", "fixed:1e-6"]
SHIFT = "\x1b["


def strictly(text: str) -> Any:
    """Parse JSON as a strict parser would: NaN and Infinity are errors."""

    def refuse(word: str) -> NoReturn:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def check_schema(document: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from driftwalk_reports.schema import load_schema

    wrong = jsonschema.Draft202012Validator(load_schema()).iter_errors(document)
    assert [f"{error.json_path}: {error.message[:100]}" for error in wrong] == []


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    """The real program on two candidates, as JSON and with a report."""
    folder = tmp_path_factory.mktemp("two") / "out"
    both = ["-c", "torch:cpu:fp64", *DRIFTING, "--json", "--report", str(folder)]
    # Colours forced by the environment must not reach data either.
    forced = {"FORCE_COLOR": "1", "PY_COLORS": "1", "GITHUB_ACTIONS": "true"}
    return driftwalk(*TINY, *both, env=forced), folder


def test_json_alone_on_stdout(two: tuple[Outcome, Path]) -> None:
    done, _ = two
    assert done.code == 1
    documents = strictly(done.out)
    assert [document["candidate"]["spec"] for document in documents] == [
        "torch:cpu:fp64",
        "torch:cpu:bf16",
    ]
    for document in documents:
        check_schema(document)
    assert documents[1]["verdict"] == "drift"
    assert documents[1]["first_divergence"] == "embed"
    assert documents[1]["command"].startswith("driftwalk verify cli.factories:Tiny -c ")


def test_messages_go_to_stderr_without_colours(two: tuple[Outcome, Path]) -> None:
    done, folder = two
    lines = done.err.splitlines()
    assert [line.split(" ")[0] for line in lines] == [
        "::error",
        *["Result:", "Report:"] * 2,
        "Index:",
    ], done.err
    assert all(str(folder) in line for line in lines[1:])
    assert SHIFT not in done.err + done.out


def test_several_candidates_get_a_folder_each(two: tuple[Outcome, Path]) -> None:
    done, folder = two
    names = ["01-torch-cpu-fp64", "02-torch-cpu-bf16"]
    assert sorted(path.name for path in folder.iterdir()) == [*names, "index.html"]
    for name, document in zip(names, strictly(done.out), strict=True):
        assert sorted(path.name for path in (folder / name).iterdir()) == list(REPORT_FILES)
        assert strictly((folder / name / "result.json").read_text("utf-8")) == document


def test_one_candidate_gives_one_object_and_one_folder(here: Path) -> None:
    done = invoke(*TINY, "-c", "torch", "--json", "--report", "a/b")
    assert done.code == 0
    document = strictly(done.out)
    check_schema(document)
    assert sorted(path.name for path in (here / "a" / "b").iterdir()) == list(REPORT_FILES)
    assert strictly((here / "a" / "b" / "result.json").read_text("utf-8")) == document


def test_nothing_is_written_that_was_not_asked_for(here: Path) -> None:
    assert invoke(*TINY, "-c", "torch").code == 0
    assert list(here.iterdir()) == []


def test_a_model_that_prints_does_not_spoil_the_json() -> None:
    done = invoke("verify", "cli.factories:Chatty", "-c", "torch", "--json")
    assert strictly(done.out)["verdict"] == "pass"
    assert "a model that talks on stdout" in done.err


def test_a_terminal_that_knows_only_ascii() -> None:
    done = driftwalk(*TINY, "-c", "torch", env={"PYTHONIOENCODING": "ascii"})
    assert done.code == 0, done.err
    assert "PASS" in done.out


def test_a_reader_that_has_gone_loses_no_verdict(here: Path) -> None:
    """`driftwalk verify ... 2>&1 | head`: the exit code and the report are as without."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "driftwalk", *TINY, *DRIFTING, "--report", "out"],
        env=environment(),
        stdout=write,
        stderr=write,
        timeout=PATIENCE,
        check=False,
    )
    os.close(write)
    assert done.returncode == 1
    assert sorted(path.name for path in (here / "out").iterdir()) == list(REPORT_FILES)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_3_and_said() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "driftwalk", *TINY, "-c", "torch"],
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 3
    assert done.stderr == "driftwalk: No space left on device\n"


def stored(here: Path, *arguments: str) -> Path:
    invoke(*arguments, "--report", "first")
    return here / "first"


@pytest.mark.parametrize("model", ["Tiny", "with_nan", "too_large_for_fp16"])
def test_render_again(here: Path, model: str) -> None:
    first = stored(here, "verify", f"cli.factories:{model}", "-c", "torch:cpu:fp16")
    done = invoke("report", str(first / "result.json"), "-o", "again")
    assert done.code == 0
    assert done.out == ""
    assert str(Path("again") / "report.html") in done.err
    for name in REPORT_FILES:
        assert (here / "again" / name).read_bytes() == (first / name).read_bytes(), name


def test_render_again_with_nan_and_inf(here: Path) -> None:
    """Numbers that JSON lacks are stored as words, and come back as what they were."""
    import driftwalk as library

    first = stored(here, "verify", "cli.factories:too_large_for_fp16", "-c", "torch:cpu:fp16")
    text = (first / "result.json").read_text("utf-8")
    found = json.loads(text)
    assert any('"inf"' in json.dumps(layer) for layer in found["layers"])
    found["layers"][0]["metrics"] |= {"snr_db": "-inf", "cosine": "nan"}
    (here / "result.json").write_text(json.dumps(found))
    assert invoke("report", "result.json", "-o", "again").code == 0
    assert strictly((here / "again" / "result.json").read_text("utf-8")) == found
    metrics = library.load(here / "again" / "result.json").layers[0].metrics
    assert metrics is not None
    assert math.isnan(metrics.cosine)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["not JSON"]),
        (b'{"schema_version": 1, "layers": [', ["not JSON"]),
        (b"\xff\xfe\x00", ["not JSON"]),
        (b"[" * 100_000, ["not JSON"]),
        (b"[]", ["Not a driftwalk result"]),
        (b"null", ["Not a driftwalk result"]),
        (b'{"name": "some package.json"}', ["Not a driftwalk result", "schema_version"]),
        (b'{"schema_version": 1}', ["Not a driftwalk result", "layers"]),
        (b'{"schema_version": 1, "layers": []}', ["lacks 'tool'"]),
        (b'{"schema_version": 99, "layers": []}', ["version 99", "Upgrade"]),
    ],
)
def test_a_result_that_is_none(here: Path, content: bytes, words: list[str]) -> None:
    (here / "result.json").write_bytes(content)
    invoke("report", "result.json", "-o", "again").refused(2, *words)
    assert not (here / "again").exists()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("verdict",), "fine"),
        (("layers", 0, "index"), "first"),
        (("layers", 0, "metrics", "max_abs"), "large"),
        (("layers", 0, "shape"), 3),
        (("coverage",), None),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_result_that_was_tampered_with(here: Path, path: tuple[Any, ...], value: Any) -> None:
    document = strictly(invoke(*TINY, "-c", "torch", "--json").out)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    (here / "result.json").write_text(json.dumps(document))
    done = invoke("report", "result.json", "-o", "again")
    done.refused(2, "Not a driftwalk result", str(path[-1]))


def test_reports_that_cannot_be_read_or_written(here: Path) -> None:
    invoke("report", "nowhere.json", "-o", "again").refused(2, "nowhere.json")
    invoke("report", ".", "-o", "again").refused(2, "No result.json")
    result = stored(here, *TINY, "-c", "torch") / "result.json"
    invoke("report", str(result), "-o", str(result / "below")).refused(2, "Cannot write")
