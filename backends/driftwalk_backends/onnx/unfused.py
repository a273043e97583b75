"""Operations on whole numbers as what they stand for: dequantised, computed, quantised again.

`QLinearMatMul` and its kin are short for DequantizeLinear, MatMul, QuantizeLinear. Written out, all
that a graph rounds is a `QuantizeLinear`, and what is between two of them is plain arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_TWO = {"QLinearMatMul": "MatMul", "QLinearAdd": "Add", "QLinearMul": "Mul"}
_ONE = {
    "QLinearSigmoid": "Sigmoid",
    "QLinearSoftmax": "Softmax",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearAveragePool": "AveragePool",
}
_OTHERS_OWN = ("opset", "channels_last")
"""Attributes that the operation itself does not have."""


def unfused(model: Any, load: Callable[[str], Any]) -> Any:
    """A copy of a model (onnx.ModelProto) in which such operations are written out.

    `load` gives a stored tensor by its name. What is not known stays as it is.
    """
    import onnx

    made = onnx.ModelProto()
    made.CopyFrom(model)
    nodes = []
    for number, node in enumerate(made.graph.node):
        out = _WrittenOut(node, f"unfused.{number}", load)
        nodes += out.nodes() or [node]
        made.graph.initializer.extend(out.stored)
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del made.graph.node[:]
    made.graph.node.extend(copies)
    return made


class _WrittenOut:
    """One node on its way."""

    def __init__(self, node: Any, name: str, load: Callable[[str], Any]) -> None:
        self._node, self._name, self._load = node, name, load
        self._nodes: list[Any] = []
        self.stored: list[Any] = []
        self._says = {a.name: a for a in node.attribute}

    def nodes(self) -> list[Any]:
        """What stands for it; nothing where it is not known."""
        op, given = self._node.op_type, [*self._node.input]
        if "channels_last" in self._says and self._says["channels_last"].i:
            return []
        if op in _TWO:
            axis = {"axis": 1} if op == "QLinearMatMul" else {}
            sides = [self._wide(given[:3]), self._wide(given[3:6], **axis)]
            self._end(self._op(_TWO[op], sides), given[6:8])
        elif op in _ONE:
            self._end(self._op(_ONE[op], [self._wide(given[:3])], keep=True), given[3:5])
        elif op == "QLinearConcat":
            sides = [self._wide(given[i : i + 3]) for i in range(2, len(given), 3)]
            self._end(self._op("Concat", sides, keep=True), given[:2])
        elif op == "QGemm":
            turned = "transB" in self._says and self._says["transB"].i
            sides = [self._wide(given[:3]), self._wide(given[3:6], axis=0 if turned else 1)]
            if any(given[6:7]):
                bias = self._bias(given[6], given[1], given[4])
                if bias is None:
                    return []
                sides.append(bias)
            self._end(self._op("Gemm", sides, keep=True), given[7:9])
        elif op == "QLinearConv":
            sides = [self._wide(given[:3]), self._wide(given[3:6], axis=0)]
            if given[8:] and given[8]:
                bias = self._bias(given[8], given[1], given[4])
                if bias is None:
                    return []
                sides.append(bias)
            self._end(self._op("Conv", sides, keep=True), given[6:8])
        return self._nodes

    def _fresh(self) -> str:
        return f"{self._name}/{len(self._nodes) + len(self.stored)}"

    def _wide(self, given: Sequence[str], **attributes: int) -> str:
        from onnx import helper

        made = self._fresh()
        self._nodes.append(helper.make_node("DequantizeLinear", list(given), [made], **attributes))
        return made

    def _op(self, kind: str, inputs: Sequence[str], keep: bool = False) -> str:
        from onnx import helper

        made = self._fresh()
        node = helper.make_node(kind, list(inputs), [made])
        if keep:
            node.attribute.extend(a for n, a in self._says.items() if n not in _OTHERS_OWN)
        self._nodes.append(node)
        return made

    def _end(self, tensor: str, steps: Sequence[str]) -> None:
        """Its output: rounded again, where it has steps for that."""
        from onnx import helper

        op, given = ("QuantizeLinear", [tensor, *steps]) if any(steps) else ("Identity", [tensor])
        self._nodes.append(helper.make_node(op, given, [self._node.output[0]]))

    def _bias(self, name: str, *steps: str) -> str | None:
        """Whole numbers in the steps of the products: the input's times the weight's."""
        from onnx import numpy_helper

        numbers, first, second = (self._load(one) for one in (name, *steps))
        if numbers is None or first is None or second is None:
            return None
        made = self._fresh()
        factor = self._says["alpha"].f if "alpha" in self._says else 1.0
        values = numbers.astype(np.float64) * first * second * factor
        self.stored.append(numpy_helper.from_array(values.astype(np.float32), made))
        return made
