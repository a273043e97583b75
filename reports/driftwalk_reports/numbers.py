"""How numbers and foreign names are written, the same in every report."""
# ruff: noqa: RUF001 - the typographic signs are meant

from __future__ import annotations

import math
import re
from collections.abc import Iterable

NOTHING = "–"

# Control and ANSI characters, bidirectional overrides, line separators, lone surrogates and
# non-characters: they can rewrite a terminal, reorder a page, or make XML and UTF-8 invalid.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufdd0-\ufdef\ufeff\ufffe\uffff]"
)


def clean(text: object, most: int | None = None) -> str:
    """A foreign string, harmless to print: unsafe characters shown as escapes, the middle cut."""
    return cut(_UNSAFE.sub(lambda found: _escape(found.group()), str(text)), most)


def cut(text: str, most: int | None) -> str:
    """A text of at most so many characters, without its middle where that is too long."""
    if most is None or len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def _escape(character: str) -> str:
    short = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    code = ord(character)
    return short or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits; integers up to a million stay readable."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    text = f"{value:z.{digits}g}"
    return f"{value:.0f}" if "e+0" in text and abs(value) < 1e6 else text


def apart(a: float, b: float, least: int = 3) -> tuple[str, str]:
    """Two numbers with as many digits as it takes to see that they differ."""
    texts = (number(a, least), number(b, least))
    for digits in range(least + 1, 18):
        if texts[0] != texts[1] or a == b:
            break
        texts = (number(a, digits), number(b, digits))
    return texts


def round_up(value: float, digits: int = 2) -> str:
    """The shortest text of that many digits that is no smaller than the value."""
    if value == 0 or not math.isfinite(value):
        return number(value)
    exponent = math.floor(math.log10(value)) - digits + 1
    steps = int(value / 10.0**exponent)
    while float(f"{steps}e{exponent}") < value:
        steps += 1
    return number(float(f"{steps}e{exponent}"), digits)


def share(part: float) -> str:
    """A fraction of one, in percent; small is not called zero, and nearly all not all."""
    percent = 100 * part
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.1f} %" if percent < 10 and percent != round(percent) else f"{percent:.0f} %"


def part_of(value: float | None) -> str:
    """A share that may be tiny or large, in percent, to two digits."""
    return NOTHING if value is None else f"{number(100 * value, 2)} %"


def used(needed: float) -> str:
    """How much of its allowance a point used: percent while within, a factor beyond."""
    if math.isnan(needed):
        return NOTHING
    if needed <= 1:
        return "< 1 %" if 0 < needed < 0.01 else f"{100 * needed:.0f} %"
    return f"{round_up(needed, 3)} ×" if math.isfinite(needed) else "∞ ×"


def times(value: float) -> str:
    """A factor."""
    return f"{number(value)} ×"


def count(value: int) -> str:
    return f"{value:,}" if value >= 10_000 else str(value)


def seconds(value: float) -> str:
    if not math.isfinite(value):
        return NOTHING
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.3g} ms" if value < 0.9995 else f"{value:.3g} s"


def cosine(value: float) -> str:
    """Near one, the distance from one is what can be read."""
    if 0.999 < value < 1:
        return f"1 − {1 - value:.2g}"
    return f"{value:.6g}"


def ints(values: Iterable[int]) -> str:
    return f"[{', '.join(str(value) for value in values)}]"


def names(given: Iterable[str], most: int = 4) -> str:
    """`a, b, c and 5 more`."""
    cleaned = [cut(name, 80) for name in given]
    more = len(cleaned) - most
    return ", ".join(cleaned[:most]) + (f" and {more} more" if more > 0 else "")
