"""Weights in a file that has another name, too: the cache lends exports that way."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import external_data_helper, helper, numpy_helper

from driftwalk.errors import BackendError
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


@pytest.mark.parametrize(("offset", "length"), [(8, 16), (-1, 16), (10**30, 16), (0, 10**30)])
def test_a_part_that_is_not_there_is_refused_by_name(
    offset: int, length: int, tmp_path: Path
) -> None:
    tensor = numpy_helper.from_array(np.arange(4, dtype=np.float32), "one")
    external_data_helper.set_external_data(tensor, "sum.data", offset=offset, length=length)
    tensor.ClearField("raw_data")
    (tmp_path / "sum.data").write_bytes(bytes(16))
    os.link(tmp_path / "sum.data", tmp_path / "again.data")
    with pytest.raises(BackendError, match="'one' cannot be read from"):
        array_of(tensor, tmp_path)
