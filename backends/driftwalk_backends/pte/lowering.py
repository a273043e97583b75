"""Torch model to ExecuTorch: one program that gives every state, and one as it would be shipped.

Both are made by `torch.export` and lowered in the same way, each on its own: an output more may
move the borders of what a delegate takes, and the two counts beside the programs say whether it
did. A program is kept only if the runtime has a kernel for each of its operators.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.export.graph_signature import TensorArgument
from torch.fx import Node
from torch.nn.attention import SDPBackend, sdpa_kernel

from driftwalk.errors import BackendError
from driftwalk.states import Probe

from ..calls import first_line, inputs_for, own_copies
from ..depth import Look
from ..layout import Layout
from ..model_outputs import named_outputs
from ..onnx.export import Exports
from ..onnx.exported import Exported, write_names
from ..onnx.exporters import Exporter, ExportFailedError, TorchExporter
from ..onnx.exposed import Exposed, silence, whole_call
from .program import lacking_kernels, load, own_log

PROGRAM, SUMMARY = "program.pte", "lowered.json"
NONE, XNNPACK = "none", "xnnpack"
DELEGATES = (NONE, XNNPACK)


@dataclass(frozen=True)
class Partition:
    """How a program is divided between a delegate and ExecuTorch's own kernels."""

    parts: int
    """Parts that the delegate runs."""
    inside: int
    """Operations inside of them."""
    outside: int
    """Operations left to the kernels."""

    def __str__(self) -> str:
        if not self.parts:
            return f"{self.outside} by kernels"
        return f"{self.inside} in {self.parts} parts, {self.outside} by kernels"


@dataclass(frozen=True)
class Summary:
    """What is beside a program: the names of its inputs, in order, and how it is divided."""

    inputs: tuple[str, ...]
    partition: Partition

    def write(self, folder: Path) -> None:
        (folder / SUMMARY).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Summary:
        stored = json.loads((folder / SUMMARY).read_text())
        return cls(tuple(stored["inputs"]), Partition(**stored["partition"]))


class TorchExport(TorchExporter):
    """What `Programs` does itself, under its own name."""

    label = "torch.export, attention decomposed"


@dataclass(eq=False)
class Programs(Exports):
    """The programs of one model in one dtype, for one delegate."""

    kind: ClassVar[str] = "executorch"
    packages: ClassVar[Sequence[str]] = (
        "torch",
        "transformers",
        "executorch",
        "torchao",
        "driftwalk",
    )
    needs: ClassVar[Sequence[str]] = ("executorch",)
    exporters: tuple[Exporter, ...] = (TorchExport(),)
    delegate: str = NONE

    def get(self, probe: Probe, look: Look) -> Exported:
        """The program that gives all states that are looked at."""
        shared = "shared" if look.shared else ""
        return self._program(probe, ["traced", look.depth, look.layer, shared], look)

    def shipped(self, probe: Probe) -> Exported:
        """The program that gives the model's outputs alone."""
        return self._program(probe, ["plain"], None)

    def _program(self, probe: Probe, asked: list[str], look: Look | None) -> Exported:
        def write(module: nn.Module, layout: Layout, folder: Path, _: Exporter) -> None:
            called = whole_call(module, inputs_for(module, probe, torch.device("cpu")))
            if look is None:
                exposed: Exposed = _Shipped(module, layout, called)
            else:
                exposed = Exposed(module, replace(layout, look=look), called)
            exposed(*own_copies(called.tensors).values())  # names the outputs
            inputs = tuple(tensor.contiguous() for tensor in called.tensors.values())
            partition = self.lowered(type(module).__name__, exposed, inputs, folder)
            write_names(exposed, layout, folder)
            Summary(tuple(called.tensors), partition).write(folder)

        return self.made([self.delegate, *asked, *probe.forms()], probe, write)

    def lowered(
        self, label: str, module: Exposed, inputs: tuple[torch.Tensor, ...], folder: Path
    ) -> Partition:
        """Write the program of one module, once it is known that it can be loaded."""
        program, partition = self.program(label, module, inputs, folder)
        plan = program.executorch_program.execution_plan[0]
        if lacking := lacking_kernels((op.name, op.overload) for op in plan.operators):
            raise BackendError(
                f"{label} cannot be run by ExecuTorch: it has no kernel for "
                f"{', '.join(lacking)}. These operations are the model's own, or what its "
                "operations are decomposed into."
            )
        (folder / PROGRAM).write_bytes(bytes(program.buffer))
        load(folder / PROGRAM, f"the program of {label}")
        return partition

    def program(
        self, label: str, module: Exposed, inputs: tuple[torch.Tensor, ...], folder: Path
    ) -> tuple[Any, Partition]:
        """ExecuTorch's program of one module, and how it is divided."""
        with explained(f"{label} could not be exported"), silence(), _plain_attention():
            exported = self.captured(module, inputs, folder)
        with explained(f"{label} could not be lowered to ExecuTorch"), silence(), own_log():
            with _plain_attention():
                edge = _edge(exported, self.partitioners())
            partition = partition_of(edge.exported_program().graph_module)
            return edge.to_executorch(), partition

    def _offer(self) -> str:
        return super()._offer() if self.delegate == XNNPACK else ""

    def captured(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path) -> Any:
        """The graph that is lowered."""
        return without_copies(torch.export.export(module, inputs, strict=False))

    def partitioners(self) -> Sequence[Any]:
        """Who takes which operations, in order."""
        if self.delegate == NONE:
            return []
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        return [XnnpackPartitioner()]


class _Shipped(Exposed):
    """The model as a function of positional tensors, giving its outputs alone."""

    def _run(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        output, _ = self.called.run(inputs)
        named = named_outputs(output)
        self.outputs = self.outputs or tuple(named)
        return tuple(named.values())


def without_copies(exported: Any) -> Any:
    """The same graph without mere copies, those that hooks made of states among them.

    XNNPACK takes copies away, and then fails if it is to give both the copy and what was copied. A
    program may well give one tensor twice: a state that is also an output of the model.
    """
    if _writes_in_place(exported.graph_module.graph):
        exported = exported.run_decompositions({})  # what is written in place becomes a new tensor
    graph, specs = exported.graph_module.graph, exported.graph_signature.output_specs
    for node in graph.nodes:
        if _is_copy(node) and node.args[0].op == "call_function":
            node.replace_all_uses_with(node.args[0])
    for spec, given in zip(specs, graph.output_node().args[0], strict=True):
        if isinstance(given, Node) and isinstance(spec.arg, TensorArgument):
            spec.arg = replace(spec.arg, name=given.name)
    graph.eliminate_dead_code()
    exported.graph_module.recompile()
    return exported


def _is_copy(node: Any) -> bool:
    """Whether a node gives what it is given, in the same memory format."""
    if node.target is torch.ops.aten.clone.default:
        return not node.kwargs
    return node.target is torch.ops.aten.dropout.default and node.args[2] is False


def _writes_in_place(graph: Any) -> bool:
    calls = (node.target for node in graph.nodes if node.op == "call_function")
    schemas = (getattr(target, "_schema", None) for target in calls)
    return any(schema is not None and schema.is_mutable for schema in schemas)


@contextmanager
def _plain_attention() -> Any:
    """Attention in operations that can be lowered; a fused kernel has other strides than they."""
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
        stack.enter_context(torch.no_grad())
        yield


def _edge(exported: Any, partitioners: Sequence[Any]) -> Any:
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    return to_edge_transform_and_lower(
        exported,
        partitioner=[*partitioners],
        # What it would refuse, kernels are missing for: that is found out by name, and told.
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )


def partition_of(graph: Any) -> Partition:
    """Counted in a graph whose parts were given to a delegate."""
    parts = [module for name, module in graph.named_children() if name.startswith("lowered_module")]
    inside = [_operations(part.original_module.graph_module) for part in parts]
    return Partition(len(parts), sum(inside), _operations(graph) - len(parts))


def _operations(graph: Any) -> int:
    nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
    return sum("getitem" not in str(node.target) for node in nodes)


@contextmanager
def explained(what: str) -> Any:
    """Whatever is raised meanwhile, as an error in one line."""
    try:
        yield
    except BackendError:
        raise
    except Exception as error:  # any of its passes raises whatever it likes
        raise ExportFailedError(f"{what}: {type(error).__name__}: {first_line(error)}") from error
