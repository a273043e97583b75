"""The caches that a sequence is decoded on: begun empty, or gone on with where one was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from driftwalk.decoding import TOKENS
from driftwalk.errors import BackendError, ProbeError
from driftwalk.states import Probe

from .calls import first_line, forward_of, names_taken
from .loaded import LoadedModel

NAMES = ("past_key_values", "cache_params", "state")
"""What forwards call the cache that they take; their output has it under the same name."""

_NUMPY = {torch.float16: "float16", torch.float32: "float32", torch.float64: "float64"}
"""Formats of weights as numpy knows them; others, such as bfloat16, come as float32."""


def cache_name(module: nn.Module) -> str:
    """What the module's forward calls its cache; an error where it takes none."""
    encodes = getattr(getattr(module, "config", None), "is_decoder", None) is False
    names = forward_of(module).names if encodes else names_taken(module)
    found = next((name for name in NAMES if name in names and "use_cache" in names), None)
    if found is None:
        raise BackendError(
            f"{type(module).__name__} keeps no cache: its forward takes none of "
            f"{', '.join(NAMES)}, so it cannot be decoded step by step."
        )
    return found


def past_of(cache: Any) -> int:
    """How many tokens a cache holds; 0 of one that does not count them."""
    cache = getattr(cache, "self_attention_cache", cache)
    keys = (held(layer, "keys") for layer in getattr(cache, "layers", ()))
    return max((int(one.shape[-2]) for one in keys if _by_token(one)), default=0)


def _by_token(held: Any) -> bool:
    """Whether it is keys or values: (row, head, token, channel)."""
    return len(getattr(held, "shape", ())) == 4


def given_past(model: LoadedModel, probe: Probe, tokens: str, mask: str) -> int:
    """How many tokens the cache holds that the prompt goes on from; an error where it cannot."""
    name = next((name for name in NAMES if name in probe.others), None)
    if name is None:
        if one := next((name for name in NAMES if name in probe.inputs), None):
            raise ProbeError(f"{one} is one array; a cache of transformers is needed.")
        return 0
    cache = probe.others[name]
    own = getattr(cache, "self_attention_cache", cache)
    layers = getattr(own, "layers", None)
    if layers is None:
        raise ProbeError(
            f"{name} is a {type(cache).__name__}; a cache of transformers is needed, with layers."
        )
    whole: Any = model.module.config
    config = whole.get_text_config(decoder=True)
    count = getattr(config, "num_hidden_layers", len(layers))
    if len(layers) != count:
        raise ProbeError(f"{name} has {len(layers)} layers; the model has {count}.")
    past, rows = past_of(cache), probe.inputs[tokens].shape[0]
    slides = getattr(own, "is_sliding", None) or [False] * len(layers)
    weights = (p.dtype for p in model.module.parameters() if p.is_floating_point())
    wanted = _NUMPY.get(next(weights, torch.float32), "float32")
    for number, (layer, sliding) in enumerate(zip(layers, slides, strict=True)):
        for kind in ("keys", "values"):
            array: Any = getattr(layer, kind, None)
            if not _by_token(array):
                continue
            where = f"{name}: layer {number} holds {kind} of"
            if str(array.dtype) != wanted:
                raise ProbeError(f"{where} {array.dtype}; the model has {wanted}.")
            if array.shape[0] != rows:
                raise ProbeError(f"{where} {array.shape[0]} rows; the prompt has {rows}.")
            if array.shape[2] != past and not sliding:
                raise ProbeError(f"{where} {array.shape[2]} tokens; others hold {past}.")
    length, given = probe.inputs[tokens].shape[1], probe.inputs.get(mask)
    if given is not None and given.shape[1] != past + length:
        raise ProbeError(
            f"{mask} has {given.shape[1]} places; {name} holds {past} tokens and the prompt has "
            f"{length}: it must have {past + length}."
        )
    return past


def begun(module: nn.Module, kind: str, tokens: str, length: int, given: Any = None) -> Any:
    """The cache of the first step, of a kind of `driftwalk.decoding.CACHES`.

    None: the module makes its own. A `given` cache is gone on with, as it is or in one of the kind.
    """
    rounds = given is not None and is_quantised(given)
    if kind in ("dynamic", "none"):
        return _plain(module, given) if rounds else given
    if kind == "quantized" and rounds:
        return given
    make = _MAKERS[kind]
    config: Any = module.config
    try:
        from transformers import DynamicCache, EncoderDecoderCache

        own = make(config, length)
        cache = EncoderDecoderCache(own, DynamicCache()) if tokens == TOKENS[0] else own
    except BackendError:
        raise
    except Exception as error:  # of a model that has no such cache
        said = f"{type(module).__name__} takes no {kind} cache: {first_line(error)}"
        raise BackendError(said) from error
    if given is not None:
        _fill(own, given)
    return cache


def _fill(cache: Any, given: Any) -> None:
    """Have a cache begin with what another holds."""
    for number, layer in enumerate(getattr(given, "layers", ())):
        keys, values = held(layer, "keys"), held(layer, "values")
        if _by_token(keys):
            cache.update(keys, values, number, *_positions(keys))


def is_quantised(cache: Any) -> bool:
    """Whether a cache says of itself that it rounds what it is given."""
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    return any(hasattr(layer, "_quantize") for layer in layers)


def _plain(module: nn.Module, given: Any) -> Any:
    """What a quantised cache holds, in one that does not round; None where it holds nothing."""
    if not past_of(given):
        return None
    from transformers import DynamicCache

    cache = DynamicCache()
    _fill(cache, given)
    return cache


def unrounded(module: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs for a run on all tokens at once: with what a given cache holds, and none that rounds.

    Rounding is of the steps; what a layer should give does not have it.
    """
    own = {n: _plain(module, v) if is_quantised(v) else v for n, v in inputs.items() if n in NAMES}
    return {n: own.get(n, v) for n, v in inputs.items() if own.get(n, v) is not None}


def held(layer: Any, kind: str) -> Any:
    """The `keys`, `values` or other states of a layer as they are read; quantised ones as floats.

    A layer of quantised ones may have the last tokens apart, as they are.
    """
    own: Any = getattr(layer, kind, None)
    whole = getattr(layer, f"_quantized_{kind}", None)
    if whole is None:
        return own
    numbers = layer._dequantize(whole)
    return torch.cat([numbers, own], -2) if _by_token(own) else numbers


def _positions(keys: torch.Tensor) -> tuple[Any, ...]:
    """Where the first keys of a static cache go, which transformers 4 must be told."""
    import transformers

    if int(transformers.__version__.partition(".")[0]) >= 5:
        return ()
    return ({"cache_position": torch.arange(keys.shape[2], device=keys.device)},)


def _static(config: Any, length: int) -> Any:
    from transformers import StaticCache

    return StaticCache(config=config, max_cache_len=length)


def _sliding(config: Any, length: int) -> Any:
    """A static cache some of whose layers are windows; an error where none is."""
    text = config.get_text_config(decoder=True)
    cache = _static(config, length)
    windows = [i for i, one in enumerate(cache.layers) if getattr(one, "is_sliding", False)]
    if not windows:
        raise BackendError(
            f"{type(text).__name__} has no sliding window (sliding_window is "
            f"{getattr(text, 'sliding_window', None)}, no layer is sliding_attention), so no cache "
            "of it slides: use --cache static."
        )
    return cache


def _quantized(config: Any, length: int) -> Any:
    """Of transformers, at its own bits and group sizes."""
    from transformers import QuantizedCache
    from transformers.utils import is_hqq_available, is_optimum_quanto_available

    makers = {"quanto": is_optimum_quanto_available, "hqq": is_hqq_available}
    maker = next((name for name, is_there in makers.items() if is_there()), None)
    if maker is None:
        raise BackendError(
            "A quantised cache needs the package optimum-quanto or hqq, and neither is installed: "
            "pip install optimum-quanto. Or give a cache of your own in the prompt, "
            "past_key_values=QuantizedCache('fp8', config)."
        )
    return QuantizedCache(maker, config)


_MAKERS: Mapping[str, Callable[[Any, int], Any]] = {
    "static": _static,
    "sliding": _sliding,
    "quantized": _quantized,
}
