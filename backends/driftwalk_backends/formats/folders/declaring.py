"""What a folder's config.json says of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from driftwalk.errors import ModelError

_AUTO_ROUND = "auto-round"
_LAYOUTS = {"gptq": ("gptq", "gptq_v2"), "awq": ("gemm",), "fp8": ("",)}
_BITS = {"gptq": (2, 3, 4, 8), "awq": (4,), "fp8": (8,)}
READ_HERE = frozenset(_LAYOUTS)


@dataclass(frozen=True)
class Declaration:
    """Of all weights that are packed."""

    method: str
    """gptq, awq or fp8."""
    layout: str
    bits: int
    differ: bool = False
    """Whether some modules have bits of their own, which their tensors' shapes then show."""
    block: tuple[int, int] | None = None
    """fp8: rows and columns that share a step; None: all do."""
    fixed_inputs: bool = False
    """fp8: whether the inputs' step is stored; otherwise it follows from each input."""
    spared: tuple[str, ...] = ()
    """What it says of modules that are not as the others are: names, or patterns."""

    @property
    def words(self) -> str:
        """A remark on the numbers, where the layout can be mistaken for another."""
        return {
            "gptq": "gptq: zeros are stored less one",
            "gptq_v2": "gptq_v2: zeros are stored as they are",
            "gemm": "awq, gemm",
        }.get(self.layout, "")


def declared_in(said: object, folder: str) -> Declaration | None:
    """What `quantization_config` says; None where weights are plain, or transformers reads them."""
    if said is None:
        return None
    check_said(said, folder)
    assert isinstance(said, Mapping)
    method = said.get("quant_method")
    if method == _AUTO_ROUND:
        said = _packed_by_auto_round(said)
        method = said.get("quant_method")
    if not isinstance(method, str) or (method not in READ_HERE and not _is_known(method)):
        raise ModelError(
            f"{folder!r} declares quant_method {_shown(method)}, which neither transformers nor "
            f"driftwalk reads; here: {', '.join(sorted(READ_HERE))}."
        )
    if method not in READ_HERE:
        return None
    return _fp8(said, folder) if method == "fp8" else _packed(method, said, folder)


def check_said(said: object, folder: str) -> None:
    """An error where `quantization_config` is no table: transformers' own is of an attribute."""
    if said is not None and not isinstance(said, Mapping):
        raise ModelError(
            f"{folder!r}: quantization_config of config.json is {_shown(said)}; expected a table, "
            'such as {"quant_method": "gptq", ...}.'
        )


def _packed_by_auto_round(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """AutoRound packs as GPTQ or AWQ do, and says which."""
    way = str(said.get("packing_format") or said.get("backend") or "")
    for word, method in (("gptq", "gptq"), ("awq", "awq")):
        if word in way:
            return {**said, "quant_method": method}
    return said


def _is_known(method: str) -> bool:
    """Whether transformers has a reader of that name."""
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    names = AUTO_QUANTIZER_MAPPING
    return method in names or any(name.startswith(f"{method}_") for name in names)


def _packed(method: str, said: Mapping[str, Any], folder: str) -> Declaration:
    usual = _LAYOUTS[method][0]
    named = said.get("checkpoint_format") or said.get("format") or said.get("version")
    layout = str(named or usual).lower()
    if layout not in _LAYOUTS[method]:
        raise ModelError(
            f"{folder!r}: {method} weights in the layout {_shown(layout)} are not read; "
            f"here: {', '.join(_LAYOUTS[method])}."
        )
    bits = said.get("bits", said.get("w_bit"))
    if bits not in _BITS[method] or isinstance(bits, bool):
        raise ModelError(
            f"{folder!r}: {method} weights of {_shown(bits)} bits are not read; here: "
            f"{', '.join(map(str, _BITS[method]))}."
        )
    return Declaration(method, layout, int(bits), bool(said.get("dynamic")), spared=_spared(said))


def _fp8(said: Mapping[str, Any], folder: str) -> Declaration:
    block = said.get("weight_block_size", (128, 128))
    scheme = str(said.get("activation_scheme", "dynamic")).lower()
    sizes = isinstance(block, list | tuple) and len(block) == 2
    if block is not None and not (sizes and all(_is_size(one) for one in block)):
        raise ModelError(f"{folder!r}: weight_block_size is {_shown(block)}.")
    if scheme not in ("dynamic", "static"):
        raise ModelError(f"{folder!r}: activation_scheme is {_shown(scheme)}.")
    if said.get("expert_dtype", "fp8") != "fp8":
        raise ModelError(f"{folder!r}: experts in {_shown(said['expert_dtype'])} are not read.")
    made = None if block is None else (int(block[0]), int(block[1]))
    fixed = scheme == "static"
    return Declaration("fp8", "", 8, block=made, fixed_inputs=fixed, spared=_spared(said))


def _spared(said: Mapping[str, Any]) -> tuple[str, ...]:
    """By name: modules left in float, or with bits of their own."""
    lists = (said.get(name) for name in ("modules_to_not_convert", "ignored_layers"))
    tables = (said.get(name) for name in ("dynamic", "extra_config"))
    found = [one for some in lists if isinstance(some, list | tuple) for one in some]
    found += [one for some in tables if isinstance(some, Mapping) for one in some]
    return tuple(map(str, found))


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _shown(value: object) -> str:
    """As it may be printed: out of a file."""
    return ascii(value)[:80]
