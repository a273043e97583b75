"""What a model is, as a hash: weights, structure, and every plain number in its modules.

A cached export or truth is reused only for the same fingerprint, so whatever can change a result
without changing a weight (an epsilon, a scale, an activation) must be in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from enum import Enum
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from driftwalk.workers import in_threads

_VERSIONED = ("torch.", "transformers.", "driftwalk_backends.demo")
"""Code whose version is known; the source of anything else may change under the same name."""

_PIECE = 1 << 23
"""Bytes of a GPU's memory that each thread looks at together."""


def fingerprint(module: nn.Module) -> str:
    """sha256 over structure, plain attributes and all parameters and buffers."""
    digest = hashlib.sha256()
    for path, part in module.named_modules():
        digest.update(f"{path}|{_qualified(type(part))}|{part.extra_repr()}|".encode())
        passing = {"training"} if _is_patched(part) else {"training", "forward"}
        for name in sorted(vars(part).keys() - passing):
            if not name.startswith("_"):
                digest.update(f"{name}={_plain(vars(part)[name])};".encode())
    config: Any = getattr(module, "config", None)
    if hasattr(config, "to_json_string"):
        digest.update(config.to_json_string(use_diff=False).encode())
    tensors = [*module.named_parameters(), *module.named_buffers()]
    hashes = in_threads(lambda named: _hash(named[1]), tensors, lambda named: named[1].numel())
    for (name, tensor), own in zip(tensors, hashes, strict=True):
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode() + own)
    return digest.hexdigest()


def has_known_code(module: nn.Module) -> bool:
    """Whether every module's code comes from a versioned package, unpatched and unhooked."""
    return all(
        _qualified(type(part)).startswith(_VERSIONED)
        and not _is_patched(part)
        and all(
            map(_is_versioned, [*part._forward_hooks.values(), *part._forward_pre_hooks.values()])
        )
        for part in module.modules()
    )


def versions(*packages: str) -> dict[str, str]:
    """Installed versions, without importing anything."""
    found = {package: _version(package) for package in packages}
    return {package: version for package, version in found.items() if version is not None}


@cache
def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _is_patched(part: nn.Module) -> bool:
    """Transformers 4.57 wraps `forward` for hidden states, and puts the class's own back after."""
    own = vars(part).get("forward")
    method = (getattr(own, "__self__", None), getattr(own, "__func__", None))
    return own is not None and method != (part, type(part).forward)


def _is_versioned(hook: Any) -> bool:
    """Transformers leaves hooks of its own on a model that was asked for hidden states."""
    return str(getattr(hook, "__module__", "")).startswith(_VERSIONED)


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _plain(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return repr(value)
    if isinstance(value, tuple | list):
        return "[" + ",".join(_plain(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_plain(item)}" for key, item in value.items()) + "}"
    if isinstance(value, set | frozenset):
        return "set(" + ",".join(sorted(map(_plain, value))) + ")"
    if isinstance(value, partial):
        return f"partial({_plain(value.func)},{_plain(value.args)},{_plain(value.keywords)})"
    if isinstance(value, torch.Tensor):
        return f"tensor({value.dtype},{tuple(value.shape)},{_hash(value).hex()})"
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        data = np.ascontiguousarray(value).tobytes()
        return f"numpy({value.dtype},{value.shape},{hashlib.sha256(data).hexdigest()})"
    if isinstance(value, complex | bytes | Enum):
        return repr(value)
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"<{getattr(value, '__module__', '')}.{name}>"


def _hash(tensor: torch.Tensor) -> bytes:
    """sha256 over the bytes of a tensor, wherever it is."""
    digest = hashlib.sha256()
    for piece in _pieces(tensor.detach().contiguous().reshape(-1).view(torch.uint8)):
        digest.update(piece.numpy().data)
    return digest.digest()


def _pieces(flat: torch.Tensor) -> Iterator[torch.Tensor]:
    """Bytes on the host; those of a GPU by way of pinned memory, to which it copies many times
    faster than to other."""
    if flat.device.type != "cuda":
        yield flat.cpu()
        return
    through = torch.empty(_PIECE, dtype=torch.uint8, pin_memory=True)
    for start in range(0, len(flat), _PIECE):
        piece = flat[start : start + _PIECE]
        yield through[: len(piece)].copy_(piece)
