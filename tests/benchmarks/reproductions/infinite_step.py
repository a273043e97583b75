"""ONNX Runtime's static quantiser writes a step of infinity for scores with a mask added.

The mask is minus infinity, as exporters write it, and so is the range that is calibrated: the step
is inf, the zero is NaN made a whole number, and every score is read as infinite or NaN. Attention
is then NaN, or nothing where the graph replaces NaN; and `QLinearAdd`, which has to make a whole
number of NaN, makes another one on x86 than on aarch64. onnxruntime 1.31.1.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static


class Once(CalibrationDataReader):
    """One feed to calibrate by."""

    def __init__(self, feed: dict[str, np.ndarray]) -> None:
        self._left = iter([feed])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


if __name__ == "__main__":
    scores = np.random.default_rng(0).standard_normal((4, 4)).astype("f")
    mask = np.triu(np.full((4, 4), -np.inf, "f"), 1)
    shape = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (4, 4)) for n in "xy"]
    kept = [numpy_helper.from_array(mask, "mask")]
    nodes = [helper.make_node("Add", ["x", "mask"], ["y"], "add")]
    graph = helper.make_graph(nodes, "g", shape[:1], shape[1:], kept)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with tempfile.TemporaryDirectory() as folder:
        plain, made = Path(folder) / "plain.onnx", Path(folder) / "made.onnx"
        onnx.save(model, plain)
        for form in (QuantFormat.QDQ, QuantFormat.QOperator):
            kinds = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
            quantize_static(plain, made, Once({"x": scores}), quant_format=form, **kinds)
            stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(made).graph.initializer}
            print(form, "step of y:", stored["y_scale"])
            session = ort.InferenceSession(made, providers=["CPUExecutionProvider"])
            print(session.run(None, {"x": scores})[0])
