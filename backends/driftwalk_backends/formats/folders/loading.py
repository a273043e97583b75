"""A folder of packed weights as a model of transformers: plain numbers, none of them pickled.

As a candidate, each of its modules also keeps its weight as it is stored (`stored_weight`), from
which the declared model is made, and rounds its inputs as the folder declares.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from driftwalk.errors import ModelError

from ...shards import what_is_wrong
from ..rounded import RoundedWeight
from .declaring import Declaration
from .layouts import FP8, PACKED, rounded
from .undeclared import left_in_float

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def load(
    kind: Any,
    config: Any,
    where: str,
    dtype: torch.dtype | str,
    says: Declaration,
    as_candidate: bool = False,
) -> tuple[nn.Module, dict[str, Any]]:
    """The model, and what transformers says of its weights."""
    if not Path(where).is_dir():
        raise ModelError(
            f"{where!r} has {says.method} weights, which are read from a folder: "
            f"hf download {where} --local-dir DIR, and give DIR."
        )
    if why := what_is_wrong(Path(where)):
        raise ModelError(f"Cannot load the model in {where!r}: {why}")
    concrete = _class_of(kind, config, where)
    del config.quantization_config
    stored, plain = _tensors(Path(where), says)
    wanted = _dtype(dtype, config, plain)
    empty = _empty(concrete, config)
    placed = {}
    for path, held in stored.items():
        one = rounded(path, held, says)
        at = _place(path, empty)
        if at is None and as_candidate:
            raise ModelError(
                f"{where!r}: {ascii(path)[:160]} is no linear layer of a {concrete.__name__} "
                "(experts are joined to one): what it declares cannot be compared layer by layer."
            )
        # GPT-2's own linear layers have a column for each output.
        if at is not None and type(empty.get_submodule(at)).__name__ == "Conv1D":
            one = one.turned()
        if at is not None:
            placed[at] = one
        plain[f"{path}.weight"] = torch.from_numpy(one.values).to(wanted)
    with _quietly():
        module, loading = concrete.from_pretrained(
            None,
            config=config,
            state_dict=plain,
            dtype=wanted,
            ignore_mismatched_sizes=True,  # they are refused by name
            output_loading_info=True,
        )
    _check(module, loading, where, len(placed) == len(stored))
    for at, one in placed.items() if as_candidate else ():
        _keep(module.get_submodule(at), at, one)
    for at, wrong in left_in_float(module, placed, says.spared).items() if as_candidate else ():
        module.get_submodule(at).undeclared = wrong
    return module.eval(), loading


def _class_of(kind: Any, config: Any, where: str) -> Any:
    """The class itself, not one that chooses."""
    mapping = getattr(kind, "_model_mapping", None)
    if mapping is None:
        return kind
    if type(config) not in mapping:
        raise ModelError(
            f"{where!r} has packed weights and brings its own Python code; such a folder is not "
            "read. Load it in Python and give the module."
        )
    found = mapping[type(config)]
    return found[0] if isinstance(found, tuple) else found


def _tensors(
    folder: Path, says: Declaration
) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """By layer: the tensors that make up a packed weight; and all others."""
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"{str(folder)!r} has {says.method} weights in no safetensors file; pickles are never "
            "read. Convert it, or download the safetensors."
        )
    plain: dict[str, torch.Tensor] = {}
    for file in files:
        plain |= load_file(file)
    first, parts = ("weight_scale_inv", FP8) if says.method == "fp8" else ("qweight", PACKED)
    paths = [name.removesuffix(f".{first}") for name in plain if name.endswith(f".{first}")]
    stored = {
        path: {part: plain.pop(f"{path}.{part}") for part in parts if f"{path}.{part}" in plain}
        for path in paths
    }
    if not stored:
        raise ModelError(
            f"{str(folder)!r} declares {says.method} weights, and no tensor of it is a {first}."
        )
    if left := next((name for name, one in plain.items() if _is_packed(name, one)), ""):
        raise ModelError(f"{str(folder)!r}: {ascii(left)[:160]} belongs to no {first}.")
    return stored, plain


def _is_packed(name: str, tensor: torch.Tensor) -> bool:
    return name.rpartition(".")[2] in ("qzeros", "g_idx") or tensor.dtype.itemsize == 1


def _dtype(asked: torch.dtype | str, config: Any, plain: dict[str, torch.Tensor]) -> torch.dtype:
    if isinstance(asked, torch.dtype):
        return asked
    said = getattr(config, "dtype", None)
    if isinstance(said, torch.dtype) and said in _DTYPES.values():
        return said
    floats = (one.dtype for one in plain.values() if one.dtype in _DTYPES.values())
    return _DTYPES.get(str(said), next(floats, torch.float16))


def _empty(kind: Any, config: Any) -> nn.Module:
    """The modules, without memory for their weights."""
    with torch.device("meta"), _quietly():
        made: nn.Module = kind._from_config(config)
    return made


def _place(path: str, empty: nn.Module) -> str | None:
    """The module that a stored weight is of: a model's own weights may have its name before them.

    None where transformers joins several to one parameter: experts.
    """
    prefix = getattr(empty, "base_model_prefix", "")
    parts = dict(empty.named_modules())
    for name in (path, f"{prefix}.{path}", path.removeprefix(f"{prefix}.")):
        if isinstance(getattr(parts.get(name), "weight", None), nn.Parameter):
            return name
    return None


def _check(module: nn.Module, loading: dict[str, Any], where: str, all_placed: bool) -> None:
    wrong = [str(key) for key in loading.get("mismatched_keys", ())]
    if all_placed:  # otherwise what transformers joins has other names
        wrong += [key for key in loading.get("unexpected_keys", ()) if key.endswith(".weight")]
    if wrong:
        raise ModelError(
            f"{where!r} does not have the weights of a {type(module).__name__}: {len(wrong)} are "
            f"of another size, or of no module ({ascii(sorted(wrong)[0])[:160]})."
        )


def _keep(part: nn.Module, path: str, one: RoundedWeight) -> None:
    part.stored_weight = replace(one, path=path)  # type: ignore[assignment]
    if one.inputs is not None:
        part.register_forward_pre_hook(one.inputs)


@contextmanager
def _quietly() -> Iterator[None]:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)  # weights the checkpoint lacks are at least the same each time
        yield
