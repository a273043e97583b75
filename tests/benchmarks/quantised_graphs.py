"""Quantised ONNX graphs: clean ones pass, and faults are caught, placed, and called rightly.

PYTHONPATH=harness:backends:reports:tests python tests/benchmarks/quantised_graphs.py [--real]
    [--seeds N] [--faults] [GLOB ...]

Formats of onnxruntime's own quantisers on tiny random models (with --real: MiniLM). With --faults
one tensor of the middle block's graph is changed; of a static graph, also what it computes beside
its products (`computed`), in columns of their own. Globs choose among `model/format`. Which faults
are owed: `owed`. Those that are not found are named, with their size in steps.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import (
    QuantFormat,
    QuantType,
    quantize_dynamic,
)
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

import driftwalk
import graphs
from benchmarks import owed
from benchmarks.quantised_matrix import asked, models, used
from driftwalk.states import Probe
from driftwalk_backends.onnx.exposed import silence
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

Change = Callable[[np.ndarray], None]
FORMATS = (
    *("dynamic int8", "dynamic int8, columns", "int4 blocks", "int4 blocks, int8 inputs"),
    *("int8 blocks, int8 inputs", "static int8", "static int8, columns", "static int8, fused"),
)


def quantised(plain: Path, probe: Probe, word: str, target: Path) -> Path:
    columns = {"per_channel": "columns" in word, "weight_type": QuantType.QInt8}
    with silence():
        if word.startswith("dynamic"):
            quantize_dynamic(str(plain), str(target), **columns)
        elif word.startswith("static"):
            form = QuantFormat.QOperator if "fused" in word else QuantFormat.QDQ
            graphs.in_eight_bits(plain, probe, target, quant_format=form, **columns)
        else:
            level = 4 if "inputs" in word else 0
            how = {"bits": int(word[3]), "block_size": 32, "accuracy_level": level}
            quantiser = MatMulNBitsQuantizer(onnx.load(str(plain)), is_symmetric=False, **how)
            quantiser.process()
            onnx.save(quantiser.model.model, str(target))
    return target


def _one(array: np.ndarray) -> np.ndarray:
    """The middle number of a tensor, to be changed."""
    return array.reshape(-1)[array.size // 2 : array.size // 2 + 1]


def _scale(array: np.ndarray) -> None:
    _one(array)[:] *= 1.02


def _zero(array: np.ndarray) -> None:
    _one(array)[:] += 1


def _rows(array: np.ndarray) -> None:
    array[[3, 4]] = array[[4, 3]].copy()


def _neighbour(array: np.ndarray) -> None:
    _one(array)[:] = array.reshape(-1)[array.size // 2 - 1] * (1.1 if array.size > 1 else 1.0)


def _nibbles(array: np.ndarray) -> None:
    array[3] = array[3] >> 4 | (array[3] & 15) << 4


def _unsigned(array: np.ndarray) -> None:
    array[3] = np.where(array[3] < 0, 127, array[3])


@dataclass(frozen=True)
class Stored:
    """Where a weight is stored: the node that reads it, and the names of its tensors."""

    node: onnx.NodeProto
    weight: str
    step: str
    zero: str

    @property
    def is_packed(self) -> bool:
        return bool(self.node.op_type == "MatMulNBits")


def stored_in(graph: onnx.GraphProto) -> list[Stored]:
    """The weights of the middle block's products, in their order."""
    makers = {name: node for node in graph.node for name in node.output}
    held = {tensor.name for tensor in graph.initializer}
    found = []
    for node in graph.node:
        if not any(name in node.name for name in ("/layers.1/", "/layer.1/", "/h.1/")):
            continue
        if node.op_type == "MatMulNBits":
            found.append(Stored(node, *node.input[1:4]))
        elif node.op_type == "MatMulInteger":
            weight = node.input[1]
            found.append(
                Stored(node, weight, weight.replace("_quantized", "_scale"), node.input[3])
            )
        elif node.op_type == "QLinearMatMul" and node.input[3] in held:
            found.append(Stored(node, *node.input[3:6]))
        elif node.op_type in ("MatMul", "Gemm"):
            read = makers.get(node.input[1])
            if read is not None and read.op_type == "DequantizeLinear" and read.input[0] in held:
                found.append(Stored(node, *read.input[:3]))
    return found


def faults(stored: Stored) -> Iterator[tuple[str, str, Change]]:
    """What is changed, the tensor, and how."""
    if stored.is_packed:
        yield "nibbles swapped", stored.weight, _nibbles
    else:
        yield "signed read as unsigned", stored.weight, _unsigned
    yield "one scale x 1.02", stored.step, _scale
    yield "zero point off by one", stored.zero, _zero
    yield "two rows swapped", stored.weight, _rows
    yield "its neighbour's scale", stored.step, _neighbour


def computed(graph: onnx.GraphProto) -> Iterator[tuple[str, Callable[[onnx.GraphProto], None]]]:
    """What else of the middle block of a static graph is made wrong, each in a copy."""
    held = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    takers = {name: node for node in graph.node for name in node.input}

    def scaled(place: int, factor: float) -> Callable[[onnx.GraphProto], None]:
        def change(copied: onnx.GraphProto) -> None:
            step = numpy_helper.to_array(held[graph.node[place].input[1]])
            copied.initializer.append(numpy_helper.from_array(step * np.float32(factor), "other"))
            copied.node[place].input[1] = "other"

        return change

    def another(place: int, op: str) -> Callable[[onnx.GraphProto], None]:
        def change(copied: onnx.GraphProto) -> None:
            copied.node[place].op_type = op
            del copied.node[place].attribute[:]

        return change

    def epsilon(place: int) -> Callable[[onnx.GraphProto], None]:
        def change(copied: onnx.GraphProto) -> None:
            next(a for a in copied.node[place].attribute if a.name == "epsilon").f = 1e-3

        return change

    other = {"Gelu": "Relu", "Tanh": "Sin", "Sigmoid": "HardSigmoid", "Erf": "Tanh"}
    for place, node in enumerate(graph.node):
        if node.op_type == "DequantizeLinear":
            stored = held.get(node.input[0])
            rounded = makers.get(node.input[0])
            of = takers.get(node.output[0]) if stored is not None else None
            if of is not None and len(stored.dims) == 1 and _in_middle(of):
                yield f"step of a vector x 1.02, for {of.op_type}", scaled(place, 1.02)
            elif rounded is not None and _in_middle(makers.get(rounded.input[0])):
                yield f"read by its step x 1.02, from {rounded.name}", scaled(place, 1.02)
        elif _in_middle(node) and node.op_type in other:
            yield (
                f"{node.op_type} becomes {other[node.op_type]}",
                another(place, other[node.op_type]),
            )
        elif _in_middle(node) and any(a.name == "epsilon" for a in node.attribute):
            yield f"epsilon of {node.op_type}", epsilon(place)


def _in_middle(node: onnx.NodeProto | None) -> bool:
    words = ("/layers.1/", "/layer.1/", "/h.1/")
    return node is not None and any(word in f"/{node.name}/" for word in words)


def changed(graph: onnx.ModelProto, tensor: str, change: Change, target: Path) -> bool:
    """Whether there was something to change."""
    made = onnx.ModelProto()
    made.CopyFrom(graph)
    (stored,) = (t for t in made.graph.initializer if t.name == tensor)
    array = numpy_helper.to_array(stored).copy()
    before = array.copy()
    change(array)
    stored.CopyFrom(numpy_helper.from_array(array, tensor))
    onnx.save(made, str(target))
    return not np.array_equal(before, array)


def main() -> int:
    options = asked(__doc__)
    for seed, name, module in models(options):
        model = open_model(module.eval())
        probe = make_probe(model)
        with tempfile.TemporaryDirectory() as folder:
            plain = graphs.export(model.module, probe, Path(folder))
            for word in FORMATS:
                label = f"{name}/{word}"
                if options.names and not any(fnmatchcase(label, g) for g in options.names):
                    continue
                path = quantised(plain, probe, word, Path(folder) / f"{word.split()[0]}.onnx")
                row = clean_row(model, path, probe)
                judged = options.faults and "|" in row
                found = fault_row(model, path, plain, probe) if judged else ""
                sys.stdout.write(f"| {name} | {word} | {seed} | {row} |{found}\n")
                sys.stdout.flush()
    return 0


def clean_row(model: object, path: Path, probe: Probe) -> str:
    try:
        report = driftwalk.verify(model, f"onnxruntime,file={path}", probe=probe)
    except driftwalk.DriftwalkError as error:
        return str(error)
    cost = list(report.format.layers.values())[-1] if report.format else None
    parts = f"{cost.format / cost.scale:.1e} | {cost.kernel / cost.scale:.1e}" if cost else "? | ?"
    where = f" ({report.culprit.module})" if report.culprit else ""
    return f"{report.verdict}{where} | {used(report):.2f} | {parts}"


def fault_row(model: object, path: Path, plain: Path, probe: Probe) -> str:
    graph = onnx.load(str(path))
    weights = {t.name: t for t in onnx.load(str(plain)).graph.initializer}
    found = stored_in(graph.graph)
    tried = caught = placed = called = below = 0
    missed = []
    for stored in (found[1], found[-1]) if found[1:] else found:
        for name, tensor, change in faults(stored):
            wrong = path.with_name("wrong.onnx")
            if not changed(graph, tensor, change, wrong):
                continue
            report = driftwalk.verify(model, f"onnxruntime,file={wrong}", probe=probe)
            drifts, steps = report.verdict == "drift", farthest(wrong, stored, weights)
            missed += [] if drifts else [f"{name} ({stored.node.name}, {steps:.3f} steps)"]
            if steps <= owed.HALF:
                below += 1
                continue
            tried += 1
            caught += drifts
            placed += "layer.1" in named(report)
            called += bool(report.format and report.format.wrong)
    row = f" {caught} of {tried} | {placed} | {called} | {below} | {', '.join(missed)} |"
    return row + (computed_row(model, path, probe, graph) if "static" in path.stem else "")


def computed_row(model: object, path: Path, probe: Probe, graph: onnx.ModelProto) -> str:
    """Faults in what a static graph computes beside its products: caught, placed, others."""
    tried = caught = placed = 0
    missed = []
    found = list(computed(graph.graph))
    few = [one for one in found if not one[0].startswith("read by")]
    few += [one for one in found if one not in few][::8]
    for name, change in few:
        made = onnx.ModelProto()
        made.CopyFrom(graph)
        change(made.graph)
        wrong = path.with_name("wrong.onnx")
        onnx.save(made, str(wrong))
        report = driftwalk.verify(model, f"onnxruntime,file={wrong}", probe=probe)
        tried += 1
        caught += report.verdict == "drift"
        placed += "layer.1" in named(report)
        missed += [] if "layer.1" in named(report) else [f"{name}: {report.verdict} {report.cause}"]
    return f" {caught} of {tried} | {placed} | {', '.join(missed)} |"


def named(report: driftwalk.Report) -> list[str]:
    """The points that may be the cause."""
    cause = report.root_cause
    return [] if cause is None else [cause.point.name, *report.cause_among]


def farthest(path: Path, stored: Stored, weights: dict[str, onnx.TensorProto]) -> float:
    """In steps: how far a stored number is from its weight, read from the graph's bits.

    Without bounds where the weight has another name in the graph that was quantised.
    """
    held = {t.name: numpy_helper.to_array(t) for t in onnx.load(str(path)).graph.initializer}
    name, turned = stored.weight, stored.is_packed
    if not stored.is_packed:
        own, zero, step = name.removesuffix("_quantized"), held[stored.zero], held[stored.step]
        numbers, ends = held[name].astype(float), np.iinfo(held[name].dtype)
        low, high = float(ends.min), float(ends.max)
        axis = next((a.i for a in stored.node.attribute if a.name == "axis"), -1)
        step, zero = (_along(one, numbers, axis) for one in (step, zero))
    else:
        says = {a.name: a.i for a in stored.node.attribute}
        own, low, high = name.rpartition("_Q")[0], 0.0, float((1 << says["bits"]) - 1)
        numbers, zero = (_apart(held[one], says["bits"]) for one in (name, stored.zero))
        numbers = numbers.reshape(says["N"], -1)[:, : says["K"]]
        blocks = -(-says["K"] // says["block_size"])
        zero = zero.reshape(says["N"], -1)[:, :blocks]
        step = held[stored.step].reshape(says["N"], blocks)
        step, zero = (one.repeat(says["block_size"], 1)[:, : says["K"]] for one in (step, zero))
    if own not in weights:
        return math.inf
    weight = numpy_helper.to_array(weights[own]).astype(float)
    weight = weight.T if turned else weight
    return owed.farthest(numbers, weight, step.astype(float), zero.astype(float), (low, high))


def _along(values: np.ndarray, numbers: np.ndarray, axis: int) -> np.ndarray:
    """One value for all numbers, or one for each line of an axis."""
    shape = [1] * numbers.ndim
    shape[axis] = values.size
    return values.reshape(shape)


def _apart(packed: np.ndarray, bits: int) -> np.ndarray:
    """The numbers that lie in bytes, the lowest bits first."""
    rows = packed.reshape(packed.shape[0], -1) if packed.ndim > 1 else packed
    if bits == 8:
        return rows.astype(float)
    return np.stack([rows & 15, rows >> 4], -1).reshape(*rows.shape[:-1], -1).astype(float)


if __name__ == "__main__":
    sys.exit(main())
