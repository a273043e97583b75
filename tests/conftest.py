"""What all tests share: a cache of their own, no network, warnings of others that are not ours."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewriting import rewrite_own_share

pytest_plugins = ["pytester", "time_limit"]  # the first for the tests of our own plugin

_NOT_OURS = (
    # On CPUs without bf16 units torch tells, with a stack trace, that it takes another path.
    r"ignore:mkldnn_matmul failed:UserWarning",
    # transformers 4.57 compiles parts of ModernBERT, and torch imports a deprecated decorator.
    r"ignore:`torch\.jit\.script_method` is deprecated:DeprecationWarning",
)


def pytest_configure(config: pytest.Config) -> None:
    # Read when transformers is first imported: no test, nor a process it starts, asks a hub.
    os.environ["HF_HUB_OFFLINE"] = "1"
    gc.set_threshold(50_000, 20, 20)  # imports make many objects, too: see rare_collections
    # Where the tests run is no business of the program they test: it would annotate that build.
    for name in [name for name in os.environ if name.startswith("GITHUB_")]:
        del os.environ[name]
    for line in _NOT_OURS:
        config.addinivalue_line("filterwarnings", line)
    rewrite_own_share(config, Path(__file__).resolve().parent)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Exports are shared within a test run, and never touch the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        base = tmp_path_factory.getbasetemp()
        # Workers of pytest-xdist have a folder each below a common one.
        folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
        patch.setenv("DRIFTWALK_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def quick_exports() -> Iterator[None]:
    """torch builds its tables of operators anew for every export, which takes longer than a model
    of a few layers does; here no operator is added between two exports. What a node may be given is
    read from ONNX's own tables for every node anew. And each rule by which a
    graph is rewritten is tried on each node, to see at the end that it is one of another kind.
    """
    if "torch" not in sys.modules:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        # The names are torch's own business: where a version has others, exports are slower.
        with contextlib.suppress(ImportError, AttributeError):
            from torch._export import utils
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            build = functools.cache(ONNXRegistry.from_torchlib.__func__)
            listed = functools.cache(utils._materialize_cpp_cia_ops)
            patch.setattr(ONNXRegistry, "from_torchlib", classmethod(build))
            patch.setattr(utils, "_materialize_cpp_cia_ops", listed)
        with contextlib.suppress(ImportError, AttributeError):
            from onnx_ir.schemas import OpSignature

            read, signatures = OpSignature.from_op_schema, {}

            def known(schema: Any) -> Any:
                if (which := (schema.domain, schema.name, schema.since_version)) not in signatures:
                    signatures[which] = read(schema)
                return signatures[which]

            patch.setattr(OpSignature, "from_op_schema", staticmethod(known))
        with contextlib.suppress(ImportError, AttributeError):
            from onnxscript.rewriter import _matcher, _rewrite_rule

            try_rewrite = _rewrite_rule.RewriteRule.try_rewrite

            def tried(self: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
                pattern = self._target_pattern
                if type(self._matcher) is _matcher.SimplePatternMatcher:
                    kind = pattern.output_nodes[0].op_identifier()
                    if kind is not None and kind[:2] != node.op_identifier()[:2]:
                        return None
                return try_rewrite(self, model, graph, node, **options)

            patch.setattr(_rewrite_rule.RewriteRule, "try_rewrite", tried)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_demos() -> Iterator[None]:
    """A model that is built in is the same each time: it is made once, and copied."""
    if "torch" not in sys.modules:
        yield
        return
    from driftwalk_backends import demo

    usual, models = demo._seeded, {}

    def copied(kind: type, config: Any, seed: int) -> Any:
        if (which := (kind, config.num_hidden_layers, seed)) not in models:
            models[which] = usual(kind, config, seed)
        return copy.deepcopy(models[which])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "_seeded", copied)
        yield


@pytest.fixture(scope="session", autouse=True)
def rare_collections() -> Iterator[None]:
    """An export and a calibration make far more objects than they leave, few of them in cycles:
    the collector would walk all that was kept, again and again, and find next to nothing.
    """
    gc.freeze()  # what was imported stays
    yield
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def patient_sessions() -> Iterator[None]:
    """Threads of ONNX Runtime wait for more work in a loop, for which tests side by side are too
    many; here they sleep.
    """
    if "torch" not in sys.modules:
        yield
        return
    from driftwalk_backends.onnx.backend import Sessions

    usual = Sessions._options

    def calm(self: Sessions, level: str = "") -> Any:
        options = usual(self, level)
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return options

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sessions, "_options", calm)
        yield


@pytest.fixture
def quantised_engine() -> Iterator[None]:
    """A torch for ARM may say that x86's engine is the one to use; that one cannot run there."""
    import torch

    engine = torch.backends.quantized.engine
    if platform.machine() == "aarch64":
        torch.backends.quantized.engine = "qnnpack"
    yield
    torch.backends.quantized.engine = engine
