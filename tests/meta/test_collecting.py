"""CONTRIBUTING's own commands: tests are collected where only what it lists is installed."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from meta.sources import PACKAGES, ROOT, files

SOURCES = [path for path in files() if path.suffix == ".py" and path.is_relative_to(ROOT / "tests")]
TESTS = [path for path in SOURCES if "__main__" not in path.read_text("utf-8")]  # no programs
OWN = {p.name.removesuffix(".py") for p in (ROOT / "tests").iterdir()} | {*PACKAGES}
COME_ALONG = {
    *("numpy", "ml_dtypes", "safetensors", "click", "markupsafe", "tokenizers", "_pytest"),
    "markdown_it",
}
"""Packages that the listed ones need themselves."""


def listed() -> set[str]:
    """What the page says that the tests take."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (names,) = re.findall(r"It takes ([\w, -]+?); a test that needs more", " ".join(text.split()))
    return {name.replace("-", "_") for name in re.split(r",\s*| and ", names)}


def unguarded(source: str, known: set[str]) -> list[str]:
    """Packages that a module imports before it asked whether they are there."""
    asked: set[str] = set()
    found = []
    for node in ast.parse(source).body:
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            if ast.unparse(call.func).endswith("importorskip") and call.args:
                asked.add(ast.unparse(call.args[0]).strip("'").partition(".")[0])
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
        found += [name for name in names if name.partition(".")[0] not in known | asked]
    return found


def test_the_page_lists_what_tests_take() -> None:
    assert {"torch", "pytest", "hypothesis", "jinja2"} <= listed()


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_not_everybody_has_is_asked_for(path: Path) -> None:
    known = listed() | OWN | COME_ALONG | {*sys.stdlib_module_names}
    known |= {p.name.removesuffix(".py") for p in path.parent.iterdir()}
    assert unguarded(path.read_text("utf-8"), known) == []


def test_an_unguarded_import_is_found() -> None:
    bad = "import os\nimport jsonschema\n"
    good = "import pytest\npytest.importorskip('jsonschema', reason='')\nimport jsonschema\n"
    known = {"os", "pytest"}
    assert unguarded(bad, known) == ["jsonschema"]
    assert unguarded(good, known) == []
