"""Shapes of pixels and waves that optimum's generators of dummy inputs know.

Only shapes are taken from them: the values of a default probe come from one seeded generator, so
they do not change with optimum's version.
"""

from __future__ import annotations

from .subject import Subject


def optimum_shape(subject: Subject, name: str) -> tuple[int, ...] | None:
    """The shape that optimum gives an input; None where it does not know the architecture."""
    try:
        from optimum.utils import NormalizedConfigManager, input_generators
    except ImportError:
        return None
    vision = input_generators.DummyVisionInputGenerator
    audio = input_generators.DummyAudioInputGenerator
    config, rows, length = subject.config, subject.batch, subject.length
    try:
        normalized = NormalizedConfigManager.get_normalized_config_class(config.model_type)(config)
        kind = next(kind for kind in (vision, audio) if name in kind.SUPPORTED_INPUT_NAMES)
        made = kind("default", normalized, batch_size=rows, sequence_length=length)
        return tuple(int(n) for n in made.generate(name, framework="np").shape)
    except (KeyError, AttributeError, TypeError, ValueError, StopIteration):
        return None
