"""What an input is, by its name and the sizes of the config; and which inputs a model is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .documented import COUNTS, annotated, documented, of_kind
from .media import (
    MEDIA,
    PIXELS,
    PLACES,
    SOUNDS,
    grid,
    grid_sides,
    patches_of,
    pixels,
    placed_patches,
    placeholders,
    sound,
)
from .subject import Subject
from .wanted import Wanted

NEVER = re.compile(
    r"labels?$|^(return|output|use|interpolate|do)_|past_key_values|cache|^mems$|loss|encoder_outputs"
    r"|head_mask|_lengths?$(?<!feature_lengths)|mm_encoder_outputs"
)
"""Inputs that only training or a run of several calls has, and switches."""
_SERIES = (
    *("past_time_features", "past_observed_mask", "static_categorical_features"),
    *("static_real_features", "future_values", "future_time_features"),
)
_PATH = (*("states", "actions", "rewards", "returns_to_go"), *("timesteps",))


def names_for(subject: Subject) -> list[str]:
    """The inputs of a first guess: the main ones, those required, and what a tower needs to run."""
    takes = subject.parameters
    names = [*subject.mains, *subject.required]
    if any(name in MEDIA for name in names) and subject.vocabulary and "input_ids" in takes:
        names.append("input_ids")
    if "input_ids" in names:
        names += _media(subject)
    if any(name in ("input_ids", "input_ids_masked") for name in names):
        names += ["attention_mask", "bbox"]
    if any(name in PIXELS for name in names):
        names += [n for p in PIXELS if p in names and (n := grid(subject, p))]
        names += [name for name in takes if PLACES.fullmatch(name)]
        names += ["image_sizes"] if subject.value("image_grid_pinpoints") else []
        names += ["spatial_shapes", "pixel_attention_mask"] if "spatial_shapes" in takes else []
    if _placeholders(subject, names):
        names.append("mm_token_type_ids")
    if "past_values" in names:
        names += [name for name in _SERIES if _has_series(subject, name)]
    if "states" in names:
        names += _PATH
    if getattr(subject.config, "is_encoder_decoder", False):
        names.append("decoder_input_ids")
    known = [n for n in dict.fromkeys(names) if n in takes or n in subject.mains]
    return [n for n in known if n in subject.required or not NEVER.search(n)]


def _media(subject: Subject) -> list[str]:
    """Images and audio beside a text: of pixels one kind, images before videos."""
    shown = [name for name in PIXELS if name in subject.parameters][:1]
    heard = [name for name in SOUNDS if name in subject.parameters][:1]
    return shown + heard


def _placeholders(subject: Subject, names: list[str]) -> bool:
    marks = placeholders(subject, [name for name in names if name in MEDIA])
    return any(mark.each_row for mark in marks)


def _has_series(subject: Subject, name: str) -> bool:
    if name not in subject.parameters:
        return False
    if name == "static_categorical_features":
        return bool(subject.number("num_static_categorical_features"))
    if name == "static_real_features":
        return bool(subject.number("num_static_real_features"))
    return name == "past_observed_mask" or bool(subject.value("lags_sequence"))


def wanted_for(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted | None:
    """What is wanted of an input; `beside` are those that are already known."""
    for pattern, rule in _RULES:
        if re.fullmatch(pattern, name) and (one := rule(subject, name, beside)) is not None:
            return one
    if (one := documented(subject, name)) is not None:
        return one
    kind = annotated(subject, name)
    if "Tensor" not in kind:
        return None
    shape = (subject.batch, subject.length)
    whole = re.search(r"Long|Int|Bool", kind) or name.endswith("mask") or COUNTS.search(name)
    return of_kind(subject, name, kind, shape if whole else (*shape, subject.width))


Rule = Callable[[Subject, str, Mapping[str, Wanted]], Wanted | None]


def _ids(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted | None:
    if subject.vocabulary is None:
        return None
    length = subject.room(subject.length)
    if name.startswith("decoder"):
        length = subject.room(length, "max_target_positions")
    given = [other for other in names_for(subject) if other in MEDIA]
    marks = placeholders(subject, given) if name == "input_ids" else ()
    return Wanted("ids", (subject.batch, length), subject.vocabulary, placeholders=marks)


def _mask(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted | None:
    ids = beside.get("input_ids")
    if ids is not None:
        return Wanted("mask", ids.shape, like_ids=True)
    main = next((one for n, one in beside.items() if one.main), None)
    if main is None or len(main.shape) < 2:
        return None
    # Of a wave every sample has a place in the mask; of frames each frame.
    return Wanted("ones", main.shape[:2])


def _decoder_mask(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted | None:
    ids = beside.get("decoder_input_ids")
    return None if ids is None else Wanted("ones", ids.shape)


def _types(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted:
    ids = beside.get("input_ids")
    shape = ids.shape if ids is not None else (subject.batch, subject.length)
    return Wanted("types" if name == "mm_token_type_ids" else "zeros", shape, like_ids=True)


def _boxes(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted:
    ids = beside.get("input_ids")
    shape = ids.shape if ids is not None else (subject.batch, subject.length)
    most = subject.number("max_2d_position_embeddings") or 1001
    return Wanted("boxes", (*shape, 4), min(1000, most - 1), like_ids=True)


def _pixels(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted:
    return pixels(subject, name)


def _flat(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted:
    """Patches that begin with their row and column."""
    size = subject.channels * subject.patch**2
    return Wanted("uniform", (subject.batch, subject.length, size + 2))


def _sound(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted:
    return sound(subject, name)


def _pixel_mask(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted:
    shape = beside["pixel_values"].shape if "pixel_values" in beside else (1, 1, *subject.sides)
    if len(shape) == 3:
        return Wanted("ones", shape[:2])
    return Wanted("ones", (*shape[:-3], *shape[-2:]))


def _seen_mask(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted | None:
    """Which of the images in a row each position of its text sees: all of them."""
    ids, images = beside.get("input_ids"), beside.get("pixel_values")
    if ids is None or images is None or len(images.shape) != 5:
        return None
    return Wanted("ones", (*ids.shape, images.shape[1]))


def _spatial(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted:
    side = grid_sides(subject)
    return Wanted("given", (subject.batch, 2), values=((side, side),) * subject.batch)


def _places(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted | None:
    count = placed_patches(subject)
    return None if count is None else Wanted("places", (subject.batch, count, 2))


def _grids(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted:
    side = grid_sides(subject)
    row = (1, side, side) if name.endswith("thw") else (side, side)
    return Wanted("given", (subject.batch, len(row)), values=(row,) * subject.batch)


def _image_sizes(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted:
    size = subject.sides
    points = subject.value("image_grid_pinpoints")
    if points:
        tall, wide = min((tuple(p) for p in points), key=lambda p: p[0] * p[1])
        size = (int(tall), int(wide))
    return Wanted("given", (subject.batch, 2), values=(size,) * subject.batch)


def _frames_mask(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted | None:
    heard = next((one for n, one in beside.items() if n in SOUNDS), None)
    if heard is None:
        return None
    frames = heard.shape[-1] if len(heard.shape) < 3 else max(heard.shape[1:])
    if len(heard.shape) == 3 and subject.bins in heard.shape[1:]:
        frames = heard.shape[2] if heard.shape[1] == subject.bins else heard.shape[1]
    return Wanted("ones", (subject.batch, frames))


def _embeds(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted:
    if (patches := patches_of(subject)) is not None:
        return patches
    length = subject.room(subject.length)
    return Wanted("normal", (subject.batch, length, subject.width))


def _series(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted | None:
    """Time series: a past with its lags, a future, and features of time beside both."""
    batch = subject.batch
    context = subject.number("context_length") or subject.length
    lags = subject.value("lags_sequence") or ()
    past = context + (max(lags) if lags else 0)
    future = subject.number("prediction_length") or 1
    times = subject.value("num_time_features")
    times = 1 if times is None else int(times)
    many = subject.number("num_input_channels") or 0
    if lags:
        many = subject.number("input_size") or 1
    each = (many,) if many > 1 or (many and not lags) else ()
    if name.endswith("time_features"):
        return Wanted("normal", (batch, past if name.startswith("past") else future, times))
    if name.startswith("static"):
        count = subject.number(f"num_{name}")
        if count is None:
            return None
        kinds = subject.value("cardinality") or [2]
        return Wanted("ids" if "categorical" in name else "normal", (batch, count), min(kinds))
    if name.endswith("mask"):
        beside_it = beside.get(name.replace("observed_mask", "values"))
        return Wanted("ones", beside_it.shape if beside_it else (batch, past, *each))
    return Wanted("normal", (batch, past if name.startswith("past") else future, *each))


def _padding(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted | None:
    """A mark of what is padding in another input: nothing is."""
    of = beside.get(name.removesuffix("_padding"))
    return None if of is None else Wanted("zeros", of.shape)


def _path(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted:
    """A path of states and actions."""
    shape = (subject.batch, subject.length)
    if name == "timesteps":
        return Wanted("ids", shape, subject.number("max_ep_len") or 2)
    key = {"states": "state_dim", "actions": "act_dim"}.get(name, "")
    return Wanted("normal", (*shape, (subject.number(key) if key else None) or 1))


def _points(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted:
    """One point of a prompt for each image."""
    return Wanted("uniform", (subject.batch, 1, 1, 2))


def _point_labels(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted:
    return Wanted("ones", (subject.batch, 1, 1))


def _masked_patches(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted:
    height, width = subject.sides
    count = (height // subject.patch) * (width // subject.patch)
    if (times := subject.number("tubelet_size")) is not None:
        count *= max(1, subject.frames // times)
    return Wanted("bools", (subject.batch, count))


def _steps(subject: Subject, name: str, beside: Mapping[str, Wanted]) -> Wanted:
    ids = beside.get("input_ids")
    shape = ids.shape if ids is not None else (subject.batch, subject.length)
    return Wanted("steps", shape, like_ids=True)


_RULES: tuple[tuple[str, Rule], ...] = (
    (r"input_ids|decoder_input_ids|\w+_input_ids", _ids),
    (r"attention_mask", _mask),
    (r"decoder_attention_mask", _decoder_mask),
    (r"(mm_)?token_type_ids", _types),
    (r"bbox", _boxes),
    (r"position_ids", _steps),
    (r"pixel_values(_videos)?|images?|videos?", _pixels),
    (r"flattened_patches", _flat),
    (r"image_attention_mask", _seen_mask),
    (r"spatial_shapes", _spatial),
    (PLACES.pattern, _places),
    (r"pixel_(attention_)?mask", _pixel_mask),
    (r"(image_|video_)?grid_(thw|hws?)", _grids),
    (r"(image|original|target)_sizes", _image_sizes),
    (r"input_features|input_values|audio_values|input_audio", _sound),
    (r"(input_)?features?_(attention_)?mask|padding_mask", _frames_mask),
    (r"(encoder_|decoder_)?(hidden_states|inputs_embeds)", _embeds),
    (r"(past|future)_(values|time_features|observed_mask)|static_\w+_features", _series),
    (r"\w+_padding", _padding),
    (r"states|actions|rewards|returns_to_go|timesteps", _path),
    (r"input_points", _points),
    (r"input_labels", _point_labels),
    (r"bool_masked_pos", _masked_patches),
)


def first_guess(subject: Subject) -> dict[str, Wanted]:
    """What is wanted of each input of a first guess."""
    wanted: dict[str, Wanted] = {}
    for name in names_for(subject):
        one = wanted_for(subject, name, wanted)
        if one is not None:
            wanted[name] = replace(one, main=not wanted)
    return wanted


def own_dummies(subject: Subject) -> dict[str, Wanted]:
    """Ids and masks that a class of transformers has itself for such tries."""
    own = [kind for kind in type(subject.module).__mro__ if "dummy_inputs" in vars(kind)]
    if not own or own[0].__name__ == "PreTrainedModel":
        return {}
    module: Any = subject.module
    try:
        given = dict(module.dummy_inputs)
    except Exception:  # code that nobody runs
        return {}
    wanted: dict[str, Wanted] = {}
    for name, value in given.items():
        if name in subject.parameters and getattr(value, "ndim", 0) == 2:
            rows = tuple(tuple(map(int, row)) for row in value.tolist())
            wanted[name] = Wanted("given", tuple(value.shape), values=rows)
    return wanted
