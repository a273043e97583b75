"""What a tensor of a graph holds, wherever it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError


def array_of(tensor: Any, folder: Path) -> Array:
    """Its numbers; `folder` is that of the graph, beside which they may lie.

    onnx refuses files that have another name, too; exports in the cache are lent that way.
    """
    from onnx import TensorProto, numpy_helper

    if not tensor.external_data:
        held: Array = numpy_helper.to_array(tensor)
        return held
    where = {entry.key: entry.value for entry in tensor.external_data}
    name = where.get("location", "")
    file = folder / name
    lent = bool(name) and Path(name).name == name and file.is_file() and not file.is_symlink()
    if not lent or file.stat().st_nlink == 1:
        array: Array = numpy_helper.to_array(tensor, str(folder.resolve()))
        return array
    whole = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    try:
        with file.open("rb") as opened:
            opened.seek(int(where.get("offset", 0)))
            whole.raw_data = opened.read(int(where.get("length", -1)))
        made: Array = numpy_helper.to_array(whole)
    except (OSError, ValueError, OverflowError) as error:
        raise BackendError(
            f"The weight {tensor.name!r} cannot be read from {name}: {error}"
        ) from error
    return made
