"""What a backend can do beside running: one mechanism, one place, and one list of them."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

import pytest

from driftwalk import adapter
from driftwalk import capabilities as protocols
from driftwalk.registry import BUILT_IN, MIXED, load_target
from meta.sources import ROOT, sources

NOT_OF_BACKENDS = {"Held", "KnowsExercised", "AddsUp", "LooksUp"}
"""Checked at run time, too: a tensor left on its device, and a model."""


def capabilities() -> dict[str, Any]:
    own = {
        name: kind
        for name, kind in vars(protocols).items()
        if getattr(kind, "__module__", "") == protocols.__name__
    }
    return {n: c for n, c in own.items() if getattr(c, "_is_runtime_protocol", False)}


def members(capability: Any) -> list[str]:
    return [name for name in vars(capability) if not name.startswith("_")]


def test_there_are_some() -> None:
    assert {"Replays", "LooksInside", "Holds", "BringsProbe", "TimesLayers"} <= set(capabilities())


def test_the_adapter_gives_all_of_them_on() -> None:
    assert {name for name in capabilities() if getattr(adapter, name, None) is None} == set()
    assert set(capabilities()) <= set(adapter.__all__)


def test_all_stand_in_one_file() -> None:
    """A second list, or a second way to ask, is how capabilities were spread over the house."""
    elsewhere = {
        node.name
        for source in sources("driftwalk") + sources("driftwalk_backends")
        if source.module != "driftwalk.capabilities"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
        and any("runtime_checkable" in ast.unparse(item) for item in node.decorator_list)
    }
    assert elsewhere == NOT_OF_BACKENDS


def test_the_base_class_promises_none_of_them() -> None:
    """What every backend inherits is no capability: `isinstance` would be true of all of them."""
    promised = {name for c in capabilities().values() for name in members(c)}
    assert promised & set(dir(adapter.Backend)) == set()


@pytest.mark.parametrize("name", sorted(capabilities()))
def test_each_is_listed_in_contributing_with_its_line(name: str) -> None:
    """The list in CONTRIBUTING.md is the docstrings' first lines; `python -m pytest` says which."""
    capability = capabilities()[name]
    line = (inspect.getdoc(capability) or "").splitlines()[0]
    assert line.endswith(".")
    asked = ", ".join(f"`{member}`" for member in members(capability))
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert f"| `{name}` | {asked} | {line} |" in table


def test_contributing_lists_no_other() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    listed = re.findall(r"^\| `([A-Z]\w+)` \|", table, re.MULTILINE)
    assert listed == list(dict.fromkeys(listed))
    assert set(listed) == set(capabilities())


@pytest.mark.parametrize("name", sorted(capabilities()))
def test_some_backend_has_it(name: str) -> None:
    """A capability that nobody offers is dead code in the judgement."""
    others = (
        "driftwalk_backends.onnx.runtime:OnnxInt8",
        "driftwalk_backends.onnx.file:OnnxFile",
        "driftwalk_backends.ranged:Ranged",
    )
    targets = [*BUILT_IN.values(), MIXED, *others]
    classes = [load_target(target) for target in targets]
    wanted = members(capabilities()[name])
    assert any(all(hasattr(kind, member) for member in wanted) for kind in classes)


@pytest.mark.parametrize("package", ["driftwalk", "driftwalk_backends"])
def test_no_class_picks_another_and_none_takes_a_capability_back(package: str) -> None:
    """The registry's factories pick; what a class cannot do it does not inherit."""
    promised = {name for c in capabilities().values() for name in members(c)}
    wrong = []
    for source in sources(package):
        for kind in (node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)):
            for node in kind.body:
                if isinstance(node, ast.FunctionDef) and node.name == "__new__":
                    wrong.append(f"{source.module}.{kind.name}.__new__")
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                    names = {target.id for target in node.targets if isinstance(target, ast.Name)}
                    wrong += [f"{source.module}.{kind.name}.{name}" for name in names & promised]
    assert wrong == []
