"""Imports run one way, frameworks stay in the backends, and nothing dangerous is called."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import pytest

from meta.sources import (
    PACKAGES,
    Import,
    Source,
    all_sources,
    imports_in,
    own_modules,
    sources,
)

FLOORS: dict[str, tuple[str, ...]] = {
    "data types and errors": (
        *("errors", "dtypes", "progress", "spec", "files", "json_tables", "jsonable", "cache"),
        "other_inputs",
        *("children", "names", "budget", "input_files", "cpu", "decoding"),
        *("measure.ulp", "native", "workers", "measure.halves", "measure.spectral"),
        "measure.fused_norms",
        *(
            "measure.norms",
            "point",
            "states",
            "mixture",
            "weight_source",
            "chosen",
            "offers",
            "switches",
            "capabilities",
            "adapter",
            "graphs.own_doing",
        ),
        *("registry", "document", "traces"),
        *("measure.constants", "judge.constants", "tasks.constants"),
    ),
    "tolerance": ("tolerance",),
    "sums": ("measure.metric_list", "measure.fused", "measure.tokens"),
    "compare": (
        *("measure.metrics", "measure.decisions", "measure.embeddings", "measure.reduction"),
    ),
    "result": (
        *("exercised", "probe_set", "layer_drift", "weight_change", "formats", "effects"),
        *("routing", "result"),
        *("tasks.bench.timing_stats", "tasks.bench.result", "tasks.selftest.result"),
        *("tasks.hardware.result", "tasks.studies.results", "tasks.weights.result"),
        *("tasks.generation.result", "tasks.repair.result", "tasks.reduce.result"),
        *("tasks.bisect.search", "tasks.bisect.result"),
        *("tasks.fleet.job", "tasks.fleet.result", "tasks.fleet.cluster", "tasks.fleet.local"),
    ),
    "calibrate": (
        *("judge.exact", "judge.replay", "judge.honest"),
        *("judge.conditioning", "judge.ties", "judge.margins", "judge.unrounded"),
        *("judge.honest_table", "judge.calibrate", "judge.calibration_cache"),
    ),
    "walk": (
        *("judge.attention", "judge.sides", "judge.depth", "judge.outputs", "judge.walk"),
        "judge.blame",
    ),
    "gate": ("judge.gate",),
    "judge": ("judge", "environment"),
    "stage": ("stage",),
    "verification": (
        "make_report",
        "meeting",
        "memory_plan",
        "observing",
        "remarks",
        "graphs",
        "signatures",
        "comparison",
        "verification",
    ),
}
"""From the ground up. What stands nowhere here is a task or an entry point: it may import all
floors, and none of them may import it."""

ENTRY = len(FLOORS)
BOTTOM = (
    *("measure.metric_list", "measure.tokens"),
    *(
        module
        for floor in ("data types and errors", "tolerance", "compare", "result")
        for module in FLOORS[floor]
    ),
)
"""What backends and reports may know of the harness."""

FRAMEWORKS = {
    *("torch", "transformers", "onnxruntime", "onnx", "onnxscript", "optimum", "openvino"),
    *("executorch", "torchao", "ray"),
}
ROOMS = {"driftwalk_backends", "driftwalk_reports"}
KNOW_ALL_ROOMS = ("driftwalk.stage", "driftwalk.graphs", "driftwalk.tasks", "driftwalk.cli")
LATE_AND_DECLARED = {("driftwalk.stage", "torch")}
"""A task takes an nn.Module for a candidate, and must know one when it sees one."""


def floor_of(module: str) -> int:
    """The number of a harness module's floor; entry points stand above all."""
    name = module.removeprefix("driftwalk.")
    for number, names in enumerate(FLOORS.values()):
        if inside(name, names):
            return number
    return ENTRY


def inside(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in packages)


def upward(source: Source) -> list[str]:
    """Imports of a harness module that go up."""
    own = floor_of(source.module)
    wrong = []
    for item in source.imports:
        if item.package != "driftwalk" or item.only_types:
            continue
        if item.name in ("driftwalk", "driftwalk.__version__"):
            continue
        if floor_of(item.name) > own:
            wrong.append(f"{item.where}: {source.module} imports {item.name}, which is above it")
    return wrong


# The package itself is no floor: it names what is public, and loads it when it is first used.
MODULES = [source for source in sources("driftwalk") if source.module != "driftwalk"]


@pytest.mark.parametrize("source", MODULES, ids=lambda source: source.module)
def test_the_harness_imports_downward(source: Source) -> None:
    assert upward(source) == []


def test_every_floor_exists() -> None:
    """A renamed module must not fall out of the rule without a word."""
    there = {source.module.removeprefix("driftwalk.") for source in sources("driftwalk")}
    assert [name for names in FLOORS.values() for name in names if name not in there] == []


def import_graph(late: bool) -> dict[str, set[str]]:
    """Which of our modules each one imports, with or without what is imported inside functions."""
    return {
        source.module: {
            item.name
            for item in source.imports
            if (late or not item.late) and not item.only_types and item.name != source.module
        }
        & own_modules()
        for source in all_sources()
    }


def circles(graph: Mapping[str, set[str]]) -> list[frozenset[str]]:
    """Groups of modules in which each reaches every other one."""
    reached: dict[str, set[str]] = {}
    for module in graph:
        seen, waiting = set[str](), [module]
        while waiting:
            fresh = graph.get(waiting.pop(), set()) - seen
            seen |= fresh
            waiting += fresh
        reached[module] = seen
    groups = {frozenset(n for n in seen if m in reached[n]) for m, seen in reached.items()}
    return sorted((group for group in groups if len(group) > 1), key=sorted)


def test_no_circles() -> None:
    """Within a floor too: what runs at import time is a tree."""
    assert circles(import_graph(late=False)) == []


def test_no_circles_through_late_imports() -> None:
    """A circle that only a late import hides is one all the same: neither part can be read, or
    moved, without the other."""
    graph = import_graph(late=True)
    assert [sorted(group) for group in circles(graph)] == []


def test_circles_are_seen() -> None:
    graph = {"a": {"b", "x"}, "b": {"c"}, "c": {"a"}, "x": set(), "p": {"q"}, "q": {"p"}}
    assert circles(graph) == [{"a", "b", "c"}, {"p", "q"}]
    found = {item.name for item in all_imports("from .onnx import runtime, nothing\n")}
    assert found == {"driftwalk_backends.onnx", "driftwalk_backends.onnx.runtime"}
    late = "def f():\n    if True:\n        from . import tensors\n"
    assert [item.late for item in all_imports(late)] == [True]
    never = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import tensors\n"
    assert [item.only_types for item in all_imports(never)] == [False, True]


def all_imports(text: str) -> list[Import]:
    """The imports of a file that would stand in driftwalk_backends/."""
    return list(imports_in(ast.parse(text), "driftwalk_backends", "a.py"))


def test_the_harness_knows_no_framework() -> None:
    wrong = [
        item.where
        for source in sources("driftwalk")
        for item in source.imports
        if item.package in FRAMEWORKS
        and not (item.late and (source.module, item.name) in LATE_AND_DECLARED)
    ]
    assert wrong == []


def test_only_entry_points_know_all_rooms_and_late() -> None:
    wrong = [
        item.where
        for source in sources("driftwalk")
        for item in source.imports
        if item.package in ROOMS
        and not item.only_types
        and not (item.late and inside(source.module, KNOW_ALL_ROOMS))
    ]
    assert wrong == []


def strangers(package: str) -> list[Import]:
    """What a room imports of the harness that is not its bottom, or of the other room."""
    allowed = tuple(f"driftwalk.{name}" for name in BOTTOM)
    return [
        item
        for source in sources(package)
        for item in source.imports
        if item.package in {"driftwalk", *ROOMS} - {package} and not inside(item.name, allowed)
    ]


@pytest.mark.parametrize("package", sorted(ROOMS))
def test_rooms_import_only_the_bottom_of_the_harness(package: str) -> None:
    assert [f"{item.where}: {item.name}" for item in strangers(package)] == []


def test_reports_know_no_framework() -> None:
    imports = [item for source in sources("driftwalk_reports") for item in source.imports]
    assert [item.where for item in imports if item.package in FRAMEWORKS] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_that_runs_what_it_reads(package: str) -> None:
    """No pickle, no eval, no exec, no torch.load: a model file or a result never becomes code."""
    wrong = []
    for source in sources(package):
        wrong += [i.where for i in source.imports if i.package in ("pickle", "dill", "joblib")]
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                loads = called in ("eval", "exec", "torch.load", "np.load", "numpy.load")
                if loads or any(k.arg == "allow_pickle" for k in node.keywords):
                    wrong.append(f"{source.module}:{node.lineno}: {called}")
            if isinstance(node, ast.ImportFrom) and node.module == "torch":
                wrong += [f"{source.module}:{node.lineno}" for n in node.names if n.name == "load"]
    assert wrong == []
