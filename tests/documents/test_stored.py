"""Every kind of result: files of older code load, lose nothing, and `driftwalk report` renders."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cli.program import invoke
from documents.stored import DATA, HEAD, STORED, name_of
from driftwalk.document import FLEET_JOB, KINDS, Document, from_dict, load, to_dict, to_json
from driftwalk.errors import UsageError
from driftwalk.json_tables import COLUMNS, from_table
from driftwalk.registry import load_target
from driftwalk.tasks.fleet.result import FleetReport
from driftwalk_reports.schema import load_schema
from light.program import python
from unit.reports.test_golden import lost

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")

every_file = pytest.mark.parametrize("path", STORED, ids=name_of)
every_kind = pytest.mark.parametrize("kind", KINDS)


def of_kind(kind: str) -> Path:
    return next(path for path in STORED if load(path).kind == kind)


def as_stored(path: Path) -> Any:
    data = json.loads(path.read_text("utf-8"))
    return data["result"] if data.get("kind") == FLEET_JOB else data


def unfolded(value: Any) -> Any:
    """With tables as the lists of objects that they stand for."""
    if isinstance(value, dict) and COLUMNS in value:
        value = from_table(value)
    if isinstance(value, dict):
        return {key: unfolded(item) for key, item in value.items()}
    return [unfolded(item) for item in value] if isinstance(value, list) else value


def test_there_is_one_of_every_kind() -> None:
    assert {load(path).kind for path in STORED} == set(KINDS)


@every_file
def test_nothing_is_lost_and_both_fit_the_schema(path: Path) -> None:
    stored, document = as_stored(path), load(path)
    again = json.loads(to_json(document))
    assert lost(unfolded(stored), unfolded(again)) == []
    assert repr(from_dict(again)) == repr(document)
    schema = jsonschema.Draft202012Validator(load_schema(kind=document.kind))
    schema.validate(stored)
    schema.validate(again)


@every_file
def test_the_head_is_the_same_for_all(path: Path) -> None:
    data = to_dict(load(path))
    assert set(HEAD) <= set(data)
    assert "kind" in data or load(path).kind == "result", "result.json v1 does not say its kind"


EACH = """
import sys
from driftwalk.cli import main
for path, folder in zip(*[iter(sys.argv[1:])] * 2):
    sys.argv[1:] = ["report", path, "-o", folder]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"{path}: exit code {ended.code}")
"""


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of reports for each kind, made where there is no torch: one process for all."""
    folder = tmp_path_factory.mktemp("rendered")
    done = python(EACH, *(word for k in KINDS for word in (str(of_kind(k)), str(folder / k))))
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    return folder


@every_kind
def test_report_renders_what_was_stored(kind: str, rendered: Path, tmp_path: Path) -> None:
    """Where there is no torch; a file and a folder stand for the same."""
    path, out = of_kind(kind), rendered / kind
    names = {file for file, _ in KINDS[kind].formats.values()}
    assert {file.name for file in out.iterdir()} == names
    page = (out / KINDS[kind].formats["html"][0]).read_text("utf-8")
    assert re.search(r"<h1[ >]", page)
    assert load(path).created in page or kind == "result"
    folders = [str(out), "-o", str(tmp_path / "again")]
    again = invoke("report", *folders, "--format", "html")
    assert again.code == 0, again.err
    written = tmp_path / "again" / KINDS[kind].formats["html"][0]
    assert written.read_text("utf-8") == page


@every_kind
def test_every_kind_has_a_text_for_a_terminal(kind: str) -> None:
    render = load_target(KINDS[kind].text)
    text = render(load(of_kind(kind)), color=False)
    assert "\x1b" not in text
    assert len(text.splitlines()) > 3


def test_several_kinds_at_once(tmp_path: Path) -> None:
    files = [str(of_kind(kind)) for kind in KINDS]
    done = invoke("report", *files, "-o", str(tmp_path / "out"), "--format", "html,md")
    assert done.code == 0, done.err
    assert len(list((tmp_path / "out").glob("*.html"))) == len(KINDS)
    done = invoke("report", files[1], "-o", str(tmp_path / "x"), "--format", "junit")
    done.refused(2, "'junit'", "json, html, md, pytest")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": 2}, "schema version 2.*Upgrade"),
        ({"schema_version": "1"}, "no schema_version"),
        ({"schema_version": True}, "no schema_version"),
        ({"kind": "banch"}, "Unknown kind of result 'banch'"),
        ({"kind": ["bench"]}, "Unknown kind"),
        ({"tool": 5}, "tool should be an object, found '5'"),
        ({"notes": {}}, "notes should be a list"),
        ({"created": None}, "created should be str, found null"),
    ],
)
@every_kind
def test_a_damaged_or_newer_file_is_refused_by_name(
    kind: str, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        from_dict(to_dict(load(of_kind(kind))) | change)


@every_kind
def test_every_field_that_must_be_there_is_missed(kind: str) -> None:
    data = to_dict(load(of_kind(kind)))
    for key in ("tool", "created", "command"):
        with pytest.raises(UsageError, match=f"lacks '{key}'"):
            from_dict({name: value for name, value in data.items() if name != key})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("documents/bundle.json", "replay.py"),
        ("traces/gpt2-aarch64.signature.json", "a signature"),
        ("traces/gpt2-aarch64.trace/manifest.json", "manifest of a trace"),
        ("junit.xsd", "not JSON"),
        ("handwritten.result.v1.schema.json", "no schema_version"),
    ],
)
def test_what_is_no_result_says_what_it_is(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(DATA / name)


def test_one_kind_is_not_read_as_another() -> None:
    from driftwalk.result import load as load_report

    with pytest.raises(UsageError, match=r"kind 'result'.*kind is 'bench'"):
        load_report(of_kind("bench"))


@every_kind
def test_save_and_load(kind: str, tmp_path: Path) -> None:
    document: Document = load(of_kind(kind))
    assert document.save(tmp_path / "a", ["json"]) == tmp_path / "a"
    (file,) = (tmp_path / "a").iterdir()
    assert repr(load(file)) == repr(document)


def test_a_fleet_links_only_to_pages_that_are_there(tmp_path: Path) -> None:
    fleet = load(of_kind("fleet"))
    assert isinstance(fleet, FleetReport)
    page = fleet.records[0].page
    link = f'href="{page}"'
    assert link not in (fleet.save(tmp_path / "alone") / "fleet.html").read_text("utf-8")
    (tmp_path / "with" / page).parent.mkdir(parents=True)
    (tmp_path / "with" / page).write_text("the page of a job", "utf-8")
    assert link in (fleet.save(tmp_path / "with") / "fleet.html").read_text("utf-8")
    assert load(tmp_path / "alone" / "fleet.json") == fleet, "the result itself is not changed"
