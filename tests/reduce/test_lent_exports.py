"""Weights in a file that has another name, too: the cache lends exports that way."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from driftwalk_backends.onnx.graph import OnnxGraph
from driftwalk_backends.onnx.stored import array_of


def test_weights_in_a_file_with_two_names_are_read(tmp_path: Path) -> None:
    stored = {n: np.arange(4, dtype=np.float32) + i for i, n in enumerate(("one", "two"))}
    graph = helper.make_graph(
        [helper.make_node("Add", ["one", "two"], ["y"])],
        "sum",
        [],
        [helper.make_tensor_value_info("y", 1, [4])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    path = tmp_path / "sum.onnx"
    onnx.save(
        helper.make_model(graph),
        str(path),
        save_as_external_data=True,
        location="sum.data",
        size_threshold=0,
    )
    os.link(tmp_path / "sum.data", tmp_path / "again.data")
    read = OnnxGraph(path, onnx.load(str(path), load_external_data=False))
    for name, array in stored.items():
        assert np.array_equal(array_of(read.weights[name], tmp_path), array)
        found = read.stored(name)
        assert found is not None
        assert np.array_equal(found, array)
