"""Images and sound in files, made into inputs by the processor that lies beside the weights."""

from __future__ import annotations

import wave
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import DriftwalkError, ProbeError
from driftwalk.input_files import IMAGES, SOUNDS, InputFiles

from .calls import first_line, forward_of
from .default_probe.search import default_inputs
from .loaded import LoadedModel

_STORED = ("processor_config.json", "preprocessor_config.json")
_WHOLE = {1: np.uint8, 2: np.int16, 4: np.int32}
"""The numbers of a .wav file, by their bytes."""


def processed(model: LoadedModel, given: InputFiles) -> tuple[dict[str, Array], bool]:
    """What the model's processor makes of images and sound; and whether it made it of texts, too.

    A folder with a whole processor takes texts and media together; of the others the texts are left
    to the tokenizer.
    """
    images, sounds = given.of_kind(IMAGES), given.of_kind(SOUNDS)
    if not images and not sounds:
        return {}, False
    name, path = (*images, *sounds)[0]
    processor = _processor(model, name, path, "Image" if images else "Sound")
    both = bool(given.texts) and hasattr(processor, "tokenizer")
    asked: dict[str, Any] = {"text": list(given.texts), "padding": True} if both else {}
    if images:
        asked["images"] = [_image(file) for _, file in images]
    if sounds:
        read = [(file, *_sound(file)) for _, file in sounds]
        rate = read[0][2]
        own = getattr(processor, "feature_extractor", processor)
        wanted = getattr(own, "sampling_rate", rate)
        for file, _, found in read:
            if found != wanted:
                raise ProbeError(
                    f"{file.name!r} has {found} samples a second; {model.label} wants {wanted}. "
                    f"Convert it: ffmpeg -i {file.name} -ar {wanted} out.wav"
                )
        heard = "audio" if hasattr(processor, "tokenizer") else "raw_speech"
        asked |= {heard: [sound for _, sound, _ in read], "sampling_rate": rate}
    try:
        made = processor(**asked, return_tensors="np")
    except Exception as error:  # whatever a processor raises
        raise ProbeError(
            f"The processor of {model.label} cannot take {path.name!r}: {first_line(error)}"
        ) from error
    return _taken(model, made, [one for one, _ in (*images, *sounds)]), both


def _taken(model: LoadedModel, made: Mapping[str, Any], names: Sequence[str]) -> dict[str, Array]:
    """What forward takes of it; a name for a file that is not among that is a mistake."""
    known = forward_of(model.module).names
    taken = {name: np.asarray(value) for name, value in made.items() if name in known}
    for name in names:
        if name not in taken:
            raise ProbeError(
                f"The processor of {model.label} gives no input {name!r}; it gives "
                f"{', '.join(taken) or 'none that the model takes'}."
            )
    return taken


def _processor(model: LoadedModel, name: str, path: Path, kind: str) -> Any:
    folder = Path(model.folder or "")
    if model.folder is None or (
        folder.is_dir() and not any((folder / f).is_file() for f in _STORED)
    ):
        raise ProbeError(
            f"{model.label} has no processor that could read {path.name!r} (no {_STORED[1]}). Give "
            f"{name} as --input {name}=FILE.npy{_shape(model, name)}."
        )
    import transformers

    auto = ["AutoProcessor", "AutoImageProcessor" if kind == "Image" else "AutoFeatureExtractor"]
    why = ""
    for one in auto:
        try:
            made = getattr(transformers, one).from_pretrained(
                model.folder, trust_remote_code=model.trust_remote_code
            )
        except Exception as error:  # they raise whatever their parts raise
            why = first_line(error)
            continue
        if not hasattr(made, "get_vocab"):  # of a model of texts, AutoProcessor is its tokenizer
            return made
    raise ProbeError(
        f"The processor of {model.label} cannot be loaded: {why or 'it reads texts only'}. Give "
        f"{name} as --input {name}=FILE.npy{_shape(model, name)}."
    )


def _shape(model: LoadedModel, name: str) -> str:
    """In words, the shape of an input that the model takes; nothing where that is not known."""
    try:
        array = default_inputs(model, 1, 16, 0).get(name)
    except DriftwalkError:
        return ""
    return "" if array is None else f", {array.dtype.name} of shape {list(array.shape)}"


def _image(path: Path) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ProbeError(f"Reading {path.name!r} needs Pillow: pip install pillow.") from None
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ProbeError(f"Cannot read the image {str(path)!r}: {first_line(error)}") from None


def _sound(path: Path) -> tuple[Array, int]:
    """One channel from -1 to 1, the mean of all that there are; and its rate."""
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            data = file.readframes(file.getnframes())
        kind = np.dtype(_WHOLE[width]).newbyteorder("<")
        whole = np.frombuffer(data, kind).reshape(-1, channels).astype(np.float64)
    except (OSError, EOFError, wave.Error, KeyError, ValueError) as error:
        raise ProbeError(
            f"Cannot read the sound {str(path)!r}: {first_line(error)}. Whole numbers of 8, 16 or "
            "32 bits (PCM) are read."
        ) from None
    half = 2.0 ** (8 * width - 1)
    sound: Array = ((whole - (half if width == 1 else 0.0)) / half).mean(axis=1)
    return sound.astype(np.float32), rate
