"""Pixels and audio: their shapes, and the placeholder ids that stand for them in a text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from .config_sizes import AUDIO, TEXT, VISION, configs
from .optimum_shapes import optimum_shape
from .subject import Subject
from .wanted import Placeholder, Wanted

PIXELS = ("pixel_values", "pixel_values_videos")
SOUNDS = ("input_features", "input_values", "audio_values", "input_audio", "audio_features")
MEDIA = (*PIXELS, *SOUNDS)
_AROUND = re.compile(
    r"start|end|begin|bos|eos|break|newline|row|col|sep|pad|boi|eoi|boa|eoa|latent|prompt|delay|_gen"
)
_OF_KIND = {
    "image": re.compile(r"^(image|img|im|vision|media)\w*_token_(id|index|idx)$"),
    "video": re.compile(r"^video\w*_token_(id|index|idx)$"),
    "audio": re.compile(r"^(audio|speech|sound)\w*_token_(id|index|idx)$"),
}
TYPES = {"image": 1, "video": 2, "audio": 3}
_GRID = 2
"""Merged patches on each side of an image whose size is given as a grid."""
FRAMES_OF_AUDIO, SAMPLES = 100, 16000


def medium(name: str) -> str:
    """What an input shows: an image, a video, or audio."""
    if "video" in name:
        return "video"
    return "image" if name in PIXELS or "image" in name else "audio"


def pixels(subject: Subject, name: str) -> Wanted:
    """Pixels: of one image or clip for each row, in the layout that forward's other inputs tell."""
    height, width = subject.sides
    one = (subject.channels, height, width)
    if grid(subject, name) is not None:
        return Wanted("normal", _patches(subject))
    if medium(name) == "video" or _takes_clips(subject):
        return Wanted("normal", (subject.batch, subject.frames, *one))
    if (points := subject.value("image_grid_pinpoints")) and "image_sizes" in subject.parameters:
        tall, wide = _smallest(points)
        parts = -(-tall // height) * -(-wide // width) + 1
        return Wanted("normal", (subject.batch, parts, *one))
    if (count := placed_patches(subject)) is not None:
        return Wanted("normal", (subject.batch, count, subject.channels * subject.patch**2))
    if "spatial_shapes" in subject.parameters:
        count, size = _patches(subject)
        return Wanted("normal", (subject.batch, count // subject.batch, size))
    if "pixel_attention_mask" in subject.parameters:
        return Wanted("normal", (subject.batch, 1, *one))
    ask = name in subject.mains and subject.stored_sides is None
    known = optimum_shape(subject, name) if ask else None
    return Wanted("normal", known or (subject.batch, *one))


def _takes_clips(subject: Subject) -> bool:
    """Whether pixel_values are clips: the config counts frames, and no other input is for them."""
    counts = any(getattr(subject.config, k, None) for k in ("num_frames", "frames_per_clip"))
    return counts and "pixel_values_videos" not in subject.parameters


def _smallest(points: Any) -> tuple[int, int]:
    tall, wide = min((tuple(p) for p in points), key=lambda p: p[0] * p[1])
    return int(tall), int(wide)


def grid(subject: Subject, name: str) -> str | None:
    """The input that says how patches lie in an image, where pixels are given as patches."""
    word = "video" if medium(name) == "video" else "image"
    names = [f"{word}_grid_thw", f"{word}_grid_hw", f"{word}_grid_hws", "grid_thw", "grid_hw"]
    return next((n for n in names if n in subject.parameters), None)


PLACES = re.compile(r"(pixel|image|patch)_position_ids")
"""Inputs with the row and column of each patch."""


def placed_patches(subject: Subject) -> int | None:
    """Patches of an image, where each is given with its place: enough to be pooled."""
    if not any(PLACES.fullmatch(name) for name in subject.parameters):
        return None
    pooled = subject.number("pooling_kernel_size", "spatial_merge_size", near=VISION) or 1
    return (_GRID * pooled) ** 2


def grid_sides(subject: Subject) -> int:
    """Patches on a side of an image: enough for `_GRID` merged ones."""
    keys = ("spatial_merge_size", "merge_size", "downsample_ratio", "spatial_patch_merge_size")
    return _GRID * (subject.number(*keys, near=VISION) or 1)


def patches_of(subject: Subject) -> Wanted | None:
    """The patches that a vision tower is given with a grid of its own, under whatever name."""
    if "input_ids" in subject.parameters or grid(subject, "pixel_values") is None:
        return None
    return Wanted("normal", _patches(subject))


def _patches(subject: Subject) -> tuple[int, int]:
    times = subject.number("temporal_patch_size", near=VISION) or 1
    count = subject.batch * grid_sides(subject) ** 2
    return count, subject.channels * times * subject.patch**2


def sound(subject: Subject, name: str) -> Wanted:
    """Audio: a wave, or frames of features in the order that the config's keys tell."""
    batch = subject.batch
    frames = subject.number("max_source_positions", near=AUDIO)
    if name == "input_features" and frames and subject.number("num_mel_bins", near=AUDIO):
        # Two frames for each position of the encoder.
        return Wanted("normal", (batch, subject.bins, 2 * frames))
    most = getattr(subject.config, "max_length", None)
    bins = getattr(subject.config, "num_mel_bins", None)
    if name == "input_values" and bins and not _takes_waves(subject):
        return Wanted("normal", (batch, most if isinstance(most, int) else 100, subject.bins))
    if name == "input_features":
        return Wanted("normal", (batch, FRAMES_OF_AUDIO, subject.bins))
    known = optimum_shape(subject, name) if name in subject.mains else None
    return Wanted("normal", known or (batch, SAMPLES))


def _takes_waves(subject: Subject) -> bool:
    """Whether some layer slides over a single channel: what else has one is no wave."""
    parts = subject.module.modules()
    return any(isinstance(part, nn.Conv1d) and part.in_channels == 1 for part in parts)


def placeholders(subject: Subject, given: list[str]) -> tuple[Placeholder, ...]:
    """The ids that stand for these media in a text; one each, until a failure says how many.

    Those of media that are not given are named with none, so that chance does not draw them.
    """
    if subject.config is None or not given:
        return ()
    shown = set(map(medium, given))
    return tuple(
        Placeholder(token, int(kind in shown), number, _announced(subject, kind))
        for kind, number in TYPES.items()
        if (token := _token(subject, kind)) is not None
    )


def _token(subject: Subject, kind: str) -> int | None:
    for _, part in configs(subject.config):
        keys = [*vars(part), *getattr(part, "attribute_map", {})]
        for key in sorted(keys, key=len):
            if _OF_KIND[kind].match(key) and not _AROUND.search(key):
                number = getattr(part, key, None)
                if isinstance(number, int) and 0 <= number < (subject.table or number + 1):
                    return number
    return None


def _announced(subject: Subject, kind: str) -> int | None:
    """The id before the placeholders, where positions are counted from it."""
    if grid(subject, "pixel_values") is None or kind == "audio":
        return None
    return subject.number("vision_start_token_id", "image_start_token_id", near=TEXT)


def without_media(subject: Subject, wanted: Mapping[str, Wanted]) -> Iterator[dict[str, Wanted]]:
    """The same guess with fewer kinds of media: without audio, without pixels, without both."""
    given = [name for name in wanted if name in MEDIA and name not in subject.required]
    if "input_ids" not in wanted or not given:
        return
    alone = [[name] for name in given] if len(given) > 1 else []
    for kept in [*alone, []]:
        yield _keeping(subject, wanted, kept)


def _keeping(subject: Subject, wanted: Mapping[str, Wanted], kept: list[str]) -> dict[str, Wanted]:
    kinds = {TYPES[medium(name)] for name in kept}
    beside = re.compile(r"pixel|image|video|audio|feature|grid|mm_token")
    left = {
        n: o
        for n, o in wanted.items()
        if n in kept
        or n in subject.required
        or n == "input_ids"
        or not beside.search(n)
        or (kept and n not in MEDIA and _belongs(n, kept))
    }
    ids = left["input_ids"]
    marks = tuple(p if p.type in kinds else replace(p, each_row=0) for p in ids.placeholders)
    left["input_ids"] = replace(ids, placeholders=marks)
    return left


def _belongs(name: str, kept: list[str]) -> bool:
    """Whether a mask, a grid or a size is about one of the media that are kept."""
    kinds = {medium(other) for other in kept}
    if "mm_token" in name:
        return True
    about = "audio" if re.search(r"audio|feature", name) else "image"
    return about in kinds or ("video" in name and "video" in kinds)
