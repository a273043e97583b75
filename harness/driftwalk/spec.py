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
_DEVICE = re.compile(r"[a-z]+\Z")


@dataclass(frozen=True)
class Spec:
    """A parsed spec; `device` and `dtype` are empty where the backend's default is meant."""

    name: str
    device: str = ""
    dtype: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Parse `torch:cuda:1:fp16,attn=eager`."""
        head, *option_texts = text.strip().split(",")
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

    def __str__(self) -> str:
        head = ":".join(part for part in (self.name, self.device, self.dtype) if part)
        return ",".join([head, *(f"{key}={value}" for key, value in self.options.items())])


def _parse_options(text: str, items: Iterable[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in items:
        key, separator, value = item.partition("=")
        key = key.strip()
        if not separator or not key:
            raise UsageError(f"Cannot read option {item!r} in spec {text!r}; write option=value.")
        if key in options:
            raise UsageError(f"Option {key!r} stands twice in spec {text!r}.")
        options[key] = value.strip()
    return options
