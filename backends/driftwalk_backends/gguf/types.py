"""How the numbers of a GGUF file's tensors are stored: so many in a block of so many bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockType:
    """One of ggml's types."""

    name: str
    numbers: int
    """In a block."""
    bytes: int
    """Of a block."""

    @property
    def is_plain(self) -> bool:
        """Whether each number stands for itself."""
        return self.numbers == 1


_PLAIN = {0: ("F32", 4), 1: ("F16", 2), 28: ("F64", 8), 30: ("BF16", 2)}
_WHOLE = {24: ("I8", 1), 25: ("I16", 2), 26: ("I32", 4), 27: ("I64", 8)}
_OF_32 = {
    2: ("Q4_0", 18),
    3: ("Q4_1", 20),
    6: ("Q5_0", 22),
    7: ("Q5_1", 24),
    8: ("Q8_0", 34),
    20: ("IQ4_NL", 18),
    39: ("MXFP4", 17),
}
_OF_256 = {
    10: ("Q2_K", 84),
    11: ("Q3_K", 110),
    12: ("Q4_K", 144),
    13: ("Q5_K", 176),
    14: ("Q6_K", 210),
    16: ("IQ2_XXS", 66),
    17: ("IQ2_XS", 74),
    18: ("IQ3_XXS", 98),
    19: ("IQ1_S", 50),
    21: ("IQ3_S", 110),
    22: ("IQ2_S", 82),
    23: ("IQ4_XS", 136),
    29: ("IQ1_M", 56),
    34: ("TQ1_0", 54),
    35: ("TQ2_0", 66),
}
TYPES: dict[int, BlockType] = {
    number: BlockType(name, count, size)
    for count, group in ((1, _PLAIN | _WHOLE), (32, _OF_32), (256, _OF_256))
    for number, (name, size) in group.items()
}
"""By the number that a file has for it."""

WHOLE_NUMBERS = frozenset(name for name, _ in _WHOLE.values())
GONE = {
    **dict.fromkeys((4, 5), "Q4_2 or Q4_3"),
    **dict.fromkeys((31, 32, 33, 36, 37, 38), "a repacked Q4_0 or IQ4_NL"),
}
"""Numbers of types that llama.cpp had once, and reads no longer."""
