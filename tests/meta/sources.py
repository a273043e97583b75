"""The three packages as syntax trees, and the repository as a list of files."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "driftwalk": ROOT / "harness" / "driftwalk",
    "driftwalk_backends": ROOT / "backends" / "driftwalk_backends",
    "driftwalk_reports": ROOT / "reports" / "driftwalk_reports",
}


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name, and where that stands."""

    name: str
    where: str
    late: bool
    """Inside a function: it runs when it is needed, not when the module is imported."""
    only_types: bool
    """Under `if TYPE_CHECKING`: it never runs."""

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Source:
    """One Python file of a package."""

    module: str
    path: Path

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text("utf-8"), str(self.path))

    @property
    def imports(self) -> tuple[Import, ...]:
        return _imports(self)


@cache
def _imports(source: Source) -> tuple[Import, ...]:
    """Asked by many tests; the trees themselves would take too much memory to be kept."""
    is_package = source.path.name == "__init__.py"
    base = source.module if is_package else source.module.rpartition(".")[0]
    return tuple(imports_in(source.tree, base, source.path.relative_to(ROOT).as_posix()))


@cache
def sources(package: str) -> tuple[Source, ...]:
    folder = PACKAGES[package]
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found.append(Source(".".join((package, *parts)), path))
    return tuple(found)


def all_sources() -> list[Source]:
    return [source for package in PACKAGES for source in sources(package)]


@cache
def own_modules() -> frozenset[str]:
    return frozenset(source.module for source in all_sources())


def imports_in(
    node: ast.AST, base: str, path: str, late: bool = False, only_types: bool = False
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            for name in _names(child, base):
                yield Import(name, f"{path}:{child.lineno}", late, only_types)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for inner in child.body:
                yield from imports_in(ast.Module([inner], []), base, path, late, True)
            yield from imports_in(ast.Module(child.orelse, []), base, path, late, only_types)
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_in(child, base, path, late or function, only_types)


def _names(node: ast.Import | ast.ImportFrom, base: str) -> list[str]:
    """Full names; `from . import x` names the module x, `from .a import x` the module a.

    Where x is itself a module of ours, `from .a import x` names that module, too.
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    parts = base.split(".")
    home = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
    if not node.module:
        return [f"{home}.{alias.name}" for alias in node.names]
    named = f"{home}.{node.module}".strip(".")
    inside = (f"{named}.{alias.name}" for alias in node.names)
    return [named, *(name for name in inside if name in own_modules())]


@cache
def files() -> tuple[Path, ...]:
    """What is or will be tracked: all that git does not ignore."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: what is tracked cannot be known", allow_module_level=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    names = sorted(set(listed.stdout.split("\0")) - {""})
    return tuple(ROOT / name for name in names if (ROOT / name).is_file())
