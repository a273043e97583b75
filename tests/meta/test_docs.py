"""What the documentation says is true: commands parse, code runs, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import driftwalk
from meta.markdown import Block, anchors, blocks, commands, links
from meta.sources import ROOT, files

PAGES = [path for path in files() if path.suffix == ".md" and "tests" not in path.parts]
BLOCKS = [block for page in PAGES for block in blocks(page)]
NEEDED = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"]
SHELLS = ("console", "bash", "sh", "shell")


def command_lines() -> list[tuple[Block, list[str]]]:
    """Every `driftwalk ...` that the documentation tells a reader to type."""
    found = []
    for block in BLOCKS:
        for text in commands(block) if block.language in SHELLS else ():
            words = shlex.split(text)
            while words and re.fullmatch(r"\w+=.*", words[0]):  # VARIABLE=value before a command
                words = words[1:]
            if words[:3] in (["python", "-m", "driftwalk"], ["python3", "-m", "driftwalk"]):
                words = words[2:]
            if words[:1] == ["driftwalk"]:
                found.append((block, words[1:]))
    return found


def parsed(words: list[str]) -> Any:
    """What the parser makes of a command line; it runs nothing."""
    import typer

    from driftwalk.cli.app import app

    group: Any = typer.main.get_command(app)
    if words and words[0].startswith("-"):
        assert words[0] in ("--help", "--version"), f"driftwalk has no option {words[0]}"
        return {}
    assert words, "driftwalk alone only shows its help"
    assert words[0] in group.commands, f"driftwalk has no command {words[0]!r}"
    if "--help" in words:
        return {}
    command, rest = group.commands[words[0]], words[1:]
    while hasattr(command, "commands"):  # a group of commands: fleet hwcheck
        assert rest, f"driftwalk {words[0]} alone only shows its help"
        assert rest[0] in command.commands, f"driftwalk {words[0]} has no command {rest[0]!r}"
        command, rest = command.commands[rest[0]], rest[1:]
    return command.make_context(words[0], rest).params


@pytest.mark.parametrize("name", NEEDED)
def test_page_exists(name: str) -> None:
    assert len((ROOT / name).read_text("utf-8")) > 200


def test_the_readme_shows_commands_and_code() -> None:
    """The tests below must not pass because nothing was found."""
    readme = ROOT / "README.md"
    assert [words for block, words in command_lines() if block.page == readme]
    assert [block for block in BLOCKS if block.page == readme and block.runs]


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=f"{block} {words[:1]}") for block, words in command_lines()]
)
def test_command_lines_parse(words: list[str]) -> None:
    from driftwalk.registry import backend_class
    from driftwalk.signatures.compare import L2, l2_limit
    from driftwalk.spec import Spec
    from driftwalk.tolerance import make_policy, parse_rule

    try:
        given = parsed(words)
    except Exception as error:
        pytest.fail(f"driftwalk {shlex.join(words)}: {getattr(error, 'message', error)}")
    for key in ("reference", "candidate", "backend"):
        named = given.get(key) or ()
        if isinstance(named, Path):  # a trace's folder
            continue
        for spec in [named] if isinstance(named, str) else named:
            read = Spec.parse(spec)
            read.allow_options(backend_class(read.name).options)
    if words[0] == "compare" and given["policy"].startswith(L2):
        l2_limit(given["policy"])
    elif "policy" in given:
        make_policy(given["policy"])
    for rule in given.get("rule") or ():
        parse_rule(rule)


def test_a_wrong_command_line_would_be_found() -> None:
    for words in (["verify", "model", "--candidat", "torch"], ["verfy", "model"], ["--verbose"]):
        with pytest.raises(Exception, match=r"(?i)no such option|no command|no option|candidat"):
            parsed(words)


PYTHON = [pytest.param(b, id=str(b)) for b in BLOCKS if b.language == "python"]
RUNS = [pytest.param(b, id=str(b)) for b in BLOCKS if b.language == "python" and b.runs]


@pytest.mark.parametrize("block", PYTHON)
def test_python_compiles(block: Block) -> None:
    compile("\n" * (block.line - 1) + block.body, str(block.page), "exec")


@pytest.mark.parametrize("block", RUNS)
def test_python_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = compile("\n" * (block.line - 1) + block.body, str(block.page), "exec")
    exec(code, {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in links(page):
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / unquote(name) if name else page
        if not path.exists():
            broken.append(target)
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            broken.append(f"{target} (no such heading)")
    assert broken == []


def test_no_paths_of_a_machine() -> None:
    """Nor where its packages came from: what is published names no host and no home."""
    # Written so that this file does not find itself.
    words = ["/" + "work/", "/" + "tmp/dev", "/" + "root/", "index" + "-url"]
    machine = re.compile("|".join(words))
    found = []
    for path in files():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if machine.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_the_changelog_knows_this_version() -> None:
    headings = re.findall(r"^## \[?([\w.]+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert driftwalk.__version__ in headings
