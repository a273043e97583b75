"""Backend specs, `name[:device][:dtype][,option=value...]`, as data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .errors import UsageError, nearest

DTYPE_NAMES = ("fp64", "fp32", "fp16", "bf16", "tf32", "fp8")
_DTYPE_ALIASES = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
}
TAKES_TEXT = ("trace", "command", "gguf", "llamacpp")
"""Backends that read all that follows their name as one text: a path, a command line."""
NEEDS_TEXT = ("trace", "command")
"""Those of them that are nothing without."""
_BEHIND_TEXT = {
    "trace": ("map", "whole"),
    "command": ("map",),
    "gguf": (),
    "llamacpp": ("threads", "kv", "attn"),
}
"""The options that may stand behind such a text."""
_LAST = re.compile(r"(.*),\s*([a-z]+)=(\"(?:[^\"]|\"\")*\"|[^,\"]*)", re.DOTALL)
_DEVICE = re.compile(r"[a-z]+\Z")

THREADS_HELP = "number of CPU threads (default: the runtime's own choice)"
"""Of an option that several backends take."""


@dataclass(frozen=True)
class Spec:
    """A parsed spec; `device` and `dtype` are empty where the backend's default is meant."""

    name: str
    device: str = ""
    dtype: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    """Of `trace:PATH`, `command:LINE`, `gguf:FILE`, `llamacpp:FILE`: what follows the name."""

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Parse `torch:cuda:1:fp16,attn=eager`."""
        first, _, rest = text.strip().partition(":")
        if first in TAKES_TEXT:
            return cls._with_text(first, rest.strip())
        head, *option_texts = _split(text.strip())
        name, *parts = head.split(":")
        if not name:
            raise UsageError(f"Backend spec {text!r} has no name; write name[:device][:dtype].")
        device = dtype = ""
        for part in parts:
            word = _DTYPE_ALIASES.get(part.lower(), part.lower())
            if word in DTYPE_NAMES and not dtype:
                dtype = word
            elif word.isdecimal() and device and ":" not in device and not dtype:
                device = f"{device}:{word}"
            elif _DEVICE.match(word) and not device and not dtype:
                device = word
            else:
                raise UsageError(
                    f"Cannot read {part!r} in backend spec {text!r}; write "
                    f"name[:device][:dtype][,option=value], dtypes: {', '.join(DTYPE_NAMES)}."
                )
        return cls(name, device, dtype, _parse_options(text, option_texts))

    def allow_options(self, known: Iterable[str]) -> None:
        """Refuse an option the backend does not know."""
        names = list(known)
        for option in self.options:
            if option not in names:
                what = nearest(option, names) if names else "It takes none."
                raise UsageError(f"Backend {self.name!r} has no option {option!r}. {what}")

    def choice(self, option: str, allowed: tuple[str, ...], default: str) -> str:
        """The value of an option that must be one of a few words."""
        value = self.options.get(option, default)
        if value not in allowed:
            raise UsageError(
                f"Option {option}={value} of backend {self.name!r}: expected one of "
                f"{', '.join(allowed)}."
            )
        return value

    def count(self, option: str) -> int | None:
        """The value of an option that must be a positive number; None where it is left out."""
        text = self.options.get(option)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < 1:
            raise UsageError(f"Option {option}={text}: expected a whole number, 1 or more.")
        return int(text)

    @classmethod
    def _with_text(cls, name: str, text: str) -> Spec:
        """Of a backend that takes a text: the options at its end, each once, and the rest."""
        options: dict[str, str] = {}
        while last := _LAST.fullmatch(text):
            if last[2] in options or last[2] not in _BEHIND_TEXT[name]:
                break
            options, text = {last[2]: _unquoted(last[3].strip()), **options}, last[1].strip()
        return cls(name, options=options, text=text)

    def __str__(self) -> str:
        if self.text or self.name in NEEDS_TEXT:
            tail = "".join(f",{key}={_quoted(value)}" for key, value in self.options.items())
            return f"{self.name}:{self.text}{tail}"
        head = ":".join(part for part in (self.name, self.device, self.dtype) if part)
        return ",".join([head, *(f"{key}={_quoted(v)}" for key, v in self.options.items())])


def _split(text: str) -> list[str]:
    """Cut at commas, but not inside a value that stands in quotes: `file="a, b.onnx"`."""
    parts, quoted, inside = [""], False, False
    for letter in text:
        opens = parts[-1].rstrip().endswith("=") and parts[-1].count("=") == 1
        if letter == '"' and (quoted or opens):
            quoted, inside = True, not inside
        if letter == "," and not inside:
            parts.append("")
            quoted = False
        else:
            parts[-1] += letter
    if inside:
        raise UsageError(f"A quote is opened and not closed in spec {text!r}.")
    return parts


def _quoted(value: str) -> str:
    """In quotes where it would be read as something else; a quote inside stands twice."""
    plain = "," not in value and not value.startswith('"') and value == value.strip()
    return value if plain else '"' + value.replace('"', '""') + '"'


def _unquoted(value: str) -> str:
    if len(value) > 1 and value.startswith('"') and value.endswith('"'):
        return value[1:-1].replace('""', '"')
    return value


def _parse_options(text: str, items: Iterable[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in items:
        key, separator, value = item.partition("=")
        key = key.strip()
        if not separator or not key:
            hint = ' (a value with a comma stands in quotes: file="a,b.onnx")' if options else ""
            raise UsageError(
                f"Cannot read option {item!r} in spec {text!r}; write option=value{hint}."
            )
        if key in options:
            raise UsageError(f"Option {key!r} stands twice in spec {text!r}.")
        options[key] = _unquoted(value.strip())
    return options
