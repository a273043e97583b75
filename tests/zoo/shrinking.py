"""A config made small by what its keys are called: no key of one model only, no model's name."""

from __future__ import annotations

import copy
import inspect
import re
from dataclasses import dataclass, field, fields, is_dataclass, replace
from operator import eq
from typing import Any

from transformers import PretrainedConfig

LAYERS = re.compile(
    r"(^|_)(layers?|blocks|depth|depths|n_layers?|num_layers|num_\w*layers|\w*hidden_layers"
    r"|num_\w*blocks|layers_\w*block|num_\w*cycles)$"
)
VOCABULARY = re.compile(r"vocab(ulary)?_size|num_embeddings$|n_vocab|^n_words$")
POSITIONS = re.compile(
    r"^max_|n_positions|max_position|max_(source|target)_pos|max_seq|n_ctx|max_sequence|max_text_len"
)
SIZES = re.compile(r"image_size|img_size|spec_size|input_size|crop_size|resolution$")
EXPERTS = re.compile(r"(num|n)_\w*experts?$|moe_num_experts$|^num_experts$")
CHOSEN = re.compile(
    r"experts_per_tok|^top_?k$|moe_top_?k|num_selected_experts|^moe_k$|router_top_?k"
)
GROUPS = re.compile(r"^n_groups?$|^num_expert_groups?$")
CHOSEN_GROUPS = re.compile(r"^top_?k_groups?$")
IDS = re.compile(r"token_id|token_ids|token_index|_index$|_token$")
KEPT = re.compile(
    r"kernel|stride|pad|num_labels|groups?|heads?(_|$)|n_head|type_vocab|bins|buckets"
    r"|patch|window|ratio|factor|codebook|num_quant|size_per|levels|points|scale|degree"
    r"|rate|std|eps|distance|num_queries|context_length|prediction_length|lags|n_fft|hop|chunk"
    r"|num_frames|tubelet|section|id2label|version|seed|pooling|downsampl|upsampl|reduction"
)
WIDTHS = re.compile(r"(hidden_size|hidden_dim|embed_dim)$")
"""Widths, whatever else their name holds: that of an embedded patch, say."""
HEAD_WIDTHS = re.compile(r"head_?(dim|size)$|(^|_)d_head$|^d_kv$")
HEADS = re.compile(r"heads?$|^n_head|key_value_heads|_n_heads?$|n_groups$")
TIMES = re.compile(r"^width_(coefficient|multiplier)$")
"""What all widths of lists, and those that stand in code, are multiplied by."""
UNSET = {"num_time_features": 1, "vocab_size": 99, "num_experts_per_tok": 2}
"""What keys are given that a default config leaves at 0 or None, and no model can do without."""
COMMON = re.compile(r"^(_|transformers_version|architectures|torch_dtype|dtype)")
MOST = {"frames": 128, "vocabulary": 1000, "positions": 1024, "experts": 8, "image": 256}


@dataclass
class Shrink:
    """By how much widths are divided, and which token ids went where."""

    factor: int
    ids: dict[int, int] = field(default_factory=dict)
    layers: int = 2
    heads: bool = False
    """Whether there are fewer heads, each as wide as before; else as many narrow ones."""
    deep: bool = False
    """Whether there are as many layers as before, since other keys may number them, and lists are
    what they were, since code may take their first number for granted."""


def shrunk(config: PretrainedConfig, shrink: Shrink, *, anew: bool = False) -> PretrainedConfig:
    """A small copy of a config; what it holds of other configs is shrunk by the same factor.

    Made anew, it is given what its class takes, and derives all other values from that.
    """
    small = copy.deepcopy(config)
    _shrink(small, shrink)
    _move_ids(small, shrink, _vocabulary(small) or MOST["vocabulary"])
    return _made_anew(small) if anew else small


def _made_anew(config: PretrainedConfig) -> PretrainedConfig:
    takes = set(inspect.signature(type(config).__init__).parameters)
    if is_dataclass(config):
        takes |= {field.name for field in fields(config)}
    default = type(config)()
    given: dict[str, Any] = {}
    for name, value in vars(config).items():
        if name in takes and not COMMON.match(name) and value != getattr(default, name, None):
            given[name] = _made_anew(value) if isinstance(value, PretrainedConfig) else value
    # What is declared to be None, and yet has a value in every config, is derived.
    derived = {n for n in given if _declared(type(config), n) is None and getattr(default, n)}
    return type(config)(**{n: v for n, v in given.items() if n not in derived})


def _declared(kind: type[PretrainedConfig], name: str) -> Any:
    """The default of a key, as the class declares it."""
    parameters = inspect.signature(kind.__init__).parameters
    if name in parameters:
        return parameters[name].default
    return getattr(kind, name, inspect.Parameter.empty)


def sub_configs(config: PretrainedConfig) -> dict[str, PretrainedConfig]:
    return {n: v for n, v in vars(config).items() if isinstance(v, PretrainedConfig)}


def _shrink(config: PretrainedConfig, shrink: Shrink) -> None:
    old = dict(vars(config))
    shrink = replace(shrink, layers=_layers_needed(old))
    lists = {name: len(value) for name, value in old.items() if isinstance(value, list | tuple)}
    # Fewer strides would make a longer sequence of the same audio.
    stages = [size for name, size in lists.items() if LAYERS.search(name) or "stride" in name]
    for part in sub_configs(config).values():
        _shrink(part, shrink)
    for name, value in old.items():
        if COMMON.match(name) or (LAYERS.search(name) and value in stages):
            continue
        new = UNSET.get(name) if not value and name in UNSET else _value(name, value, shrink)
        if new is not value and new != value:
            _set(config, name, new)
    _fit_lists(config, old)


def _set(config: PretrainedConfig, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except Exception:  # a config that checks its values one by one
        vars(config)[name] = value


def _value(name: str, value: Any, shrink: Shrink) -> Any:
    if shrink.deep and isinstance(value, float) and TIMES.search(name):
        return value / shrink.factor
    if _whole(value):
        return _number(name, value, shrink)
    if isinstance(value, list | tuple) and value and all(map(_whole, value)):
        if SIZES.search(name):
            return type(value)(_halved(list(value)))
        if shrink.deep:
            return value
        return type(value)(_numbers(name, list(value), shrink))
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(v, list | tuple) for v in value)
    ):
        return type(value)(_value(name, item, shrink) for item in value)
    return value


def _numbers(name: str, values: list[int], shrink: Shrink) -> list[int]:
    """A list of numbers: all widths of it are divided, or none."""
    if LAYERS.search(name) and re.search(r"attention|global|cross", name):
        return values  # numbers of layers, not how many there are
    if "channels" in name and values[0] < 5:  # those of an image
        return [values[0], *(_numbers(name, values[1:], shrink) if values[1:] else [])]
    shrink = replace(shrink, layers=max(3, shrink.layers))  # of a stage
    new = [_number(name, value, shrink) for value in values]
    divided = [value // shrink.factor for value in values]
    kept = [old == value for old, value in zip(new, values, strict=True)]
    if not any(kept) or all(kept) or not any(map(eq, new, divided)):
        return new
    return values if any(value % shrink.factor for value in values) else divided


def _section(key: Any, value: Any, shrink: Shrink) -> Any:
    """Parts that a head's width is cut into, for positions in time and space: as many, smaller."""
    if isinstance(value, dict):
        return {name: _section(name, item, shrink) for name, item in value.items()}
    if (
        "section" not in str(key)
        or not isinstance(value, list | tuple)
        or not all(map(_whole, value))
    ):
        return value
    total = sum(value) // shrink.factor
    parts = [item // shrink.factor for item in value]
    return type(value)([*parts[:-1], total - sum(parts[:-1])])


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(name: str, value: int, shrink: Shrink) -> int:
    if IDS.search(name) or value <= 0:
        return value
    if LAYERS.search(name):
        return value if shrink.deep else min(value, shrink.layers)
    if VOCABULARY.search(name) and "type_vocab" not in name:
        return min(value, MOST["vocabulary"])
    if name == "max_source_positions":  # of frames of audio, of which all are given
        return min(value, MOST["frames"])
    if POSITIONS.search(name):
        return min(value, MOST["positions"])
    if SIZES.search(name):
        return _halved([value])[0]
    for pattern, most in ((EXPERTS, MOST["experts"]), (CHOSEN, 2), (GROUPS, 2), (CHOSEN_GROUPS, 1)):
        if pattern.search(name):
            return min(value, most)
    if HEAD_WIDTHS.search(name):
        return value if shrink.heads or value % shrink.factor else value // shrink.factor
    if HEADS.search(name) and shrink.heads:
        return max(1, value // shrink.factor)
    if KEPT.search(name) and not WIDTHS.search(name):
        return value
    return _width(name, value, shrink.factor) if value >= 32 else value


def _width(name: str, value: int, factor: int) -> int:
    if "intermediate" in name:
        # Nothing else depends on it, and some kernels take whole groups of four numbers only.
        return -(-value // (4 * factor)) * 4
    return value if value % factor else value // factor


def _halved(sides: list[int]) -> list[int]:
    """Sides of an image, both made smaller until neither is large."""
    while max(sides) > MOST["image"] and not any(side % 2 for side in sides):
        sides = [side // 2 for side in sides]
    return sides


def _layers_needed(config: dict[str, Any]) -> int:
    """Two, or as many as there are kinds of layers, or numbers in a list of layers' numbers."""
    counts = [v for n, v in config.items() if LAYERS.search(n) and _whole(v)]
    needed = 2
    for name, value in config.items():
        if not isinstance(value, list | tuple) or not value or name.startswith("_"):
            continue
        if len(value) in counts and all(isinstance(item, str) for item in value):
            needed = max(needed, min(4, len(set(value))))
        elif any(_numbers_layers(name, value, count, 2) for count in counts):
            needed = max(needed, min(6, len(value)))
    return needed


def _fit_lists(config: PretrainedConfig, old: dict[str, Any]) -> None:
    """Lists with an entry per layer, and lists of layers' numbers, for the layers that are left."""
    counts = {n: v for n, v in old.items() if LAYERS.search(n) and _whole(v)}
    cut = [(v, getattr(config, n)) for n, v in counts.items() if getattr(config, n) < v]
    for name, value in old.items():
        if not isinstance(value, list | tuple) or name.startswith("_"):
            continue
        for count, left in cut:
            if len(value) == count and count > 1:
                _set(config, name, type(value)(_kinds(list(getattr(config, name)), left)))
                break
            if _numbers_layers(name, value, count, left):
                numbers = sorted({item * left // (count + 1) for item in value})
                numbers = numbers if value[0] <= value[-1] else numbers[::-1]
                _set(config, name, type(value)(numbers))
                break


def _numbers_layers(name: str, value: list[Any] | tuple[Any, ...], count: int, left: int) -> bool:
    """Whether a list holds numbers of layers, of which some are no longer there."""
    if not value or not all(map(_whole, value)) or not left <= max(value) <= count:
        return False
    rising = list(value) in (sorted(set(value)), sorted(set(value), reverse=True))
    return rising and re.search(r"ind(ex|ic)|layers?$|(layer|hook)_ids|_at$", name) is not None


def _kinds(entries: list[Any], count: int) -> list[Any]:
    """So many entries, of as many different kinds as there are, in their order."""
    firsts = [i for i, entry in enumerate(entries) if entry not in entries[:i]][:count]
    others = [i for i in range(len(entries)) if i not in firsts]
    return [entries[i] for i in sorted([*firsts, *others[: count - len(firsts)]])]


def _vocabulary(config: PretrainedConfig) -> int | None:
    """The size of the vocabulary of a config, or of the parts that speak for it."""
    own = getattr(config, "vocab_size", None)
    if _whole(own) and own > 0:
        return int(own)
    inside = [_vocabulary(part) for part in sub_configs(config).values()]
    return min((size for size in inside if size), default=None)


def _move_ids(config: PretrainedConfig, shrink: Shrink, vocabulary: int) -> None:
    for part in sub_configs(config).values():
        _move_ids(part, shrink, _vocabulary(part) or vocabulary)
    for name, value in list(vars(config).items()):
        if not re.search(r"token_ids?$|token_index$|_token_idx$", name):
            continue
        if value is None and re.match(r"(image|video|audio)_token_(id|index)$", name):
            # Without an id for them, a model that takes images cannot be given any.
            _set(config, name, _moved(10**6 + len(name), shrink, vocabulary))
        elif _whole(value):
            _set(config, name, _moved(value, shrink, vocabulary))
        elif isinstance(value, list | tuple) and all(map(_whole, value)):
            _set(config, name, type(value)(_moved(v, shrink, vocabulary) for v in value))


def _moved(value: int, shrink: Shrink, vocabulary: int) -> int:
    """Different ids stay different, and the same ones the same."""
    if value < vocabulary:
        return value
    new = shrink.ids.setdefault(value, vocabulary - 1 - len(shrink.ids))
    return new if 0 <= new < vocabulary else vocabulary - 1
