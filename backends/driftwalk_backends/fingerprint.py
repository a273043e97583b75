"""What a model is, as a hash, and what it gives: what makes stored results believable.

A cached export or truth is reused only for the same fingerprint: weights, structure, and every
plain number in the modules, so that whatever can change a result without changing a weight (an
epsilon, a scale, an activation) is in it.

But no fingerprint can tell whether a function was patched, a method replaced, autocast switched on.
So every state and output of the model itself, in plain eager PyTorch, is hashed when something is
stored, and must come out the same, bit by bit, when it is used: the evidence.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import Enum
from functools import cache, partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from driftwalk.adapter import Backend, ShowsModel
from driftwalk.dtypes import Array, dtype_name
from driftwalk.errors import DriftwalkError
from driftwalk.states import Probe, State, Trace
from driftwalk.workers import in_threads, workers

from .calls import call, explaining, quietly
from .eager_run import as_arrays, watched
from .fetching import pieces, pinned
from .tensors import parts_of

if TYPE_CHECKING:
    from .loaded import LoadedModel

_VERSIONED = ("torch.", "transformers.", "driftwalk_backends.demo")
"""Code whose version is known; the source of anything else may change under the same name."""

_ORIGIN = re.compile(r'("_name_or_path": )"(?:[^"\\]|\\.)*"')
"""Where a configuration was loaded from, as its JSON has it."""


def fingerprint(module: nn.Module) -> str:
    """sha256 over structure, plain attributes and all parameters and buffers."""
    return digest_of(module, tensor_hashes(module))


def tensor_hashes(module: nn.Module, names: Collection[str] | None = None) -> dict[str, bytes]:
    """A hash of each parameter and buffer, or of those with some names."""
    tensors = [(n, t) for n, t in _tensors(module) if names is None or n in names]
    hashes = in_threads(lambda named: _hash(named[1]), tensors, lambda named: named[1].numel())
    return {name: own for (name, _), own in zip(tensors, hashes, strict=True)}


class Hashing:
    """`tensor_hashes` that are made while others work: those of a large model take seconds."""

    def __init__(self, module: nn.Module) -> None:
        self._pool = ThreadPoolExecutor(workers(), thread_name_prefix="hashing")
        self._hashes = {n: self._pool.submit(_hash, tensor) for n, tensor in _tensors(module)}

    def result(self) -> dict[str, bytes]:
        made = {name: one.result() for name, one in self._hashes.items()}
        self.stop()
        return made

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def digest_of(module: nn.Module, hashes: Mapping[str, bytes]) -> str:
    """One hash over structure, plain attributes and the tensors that have a hash.

    The same wherever the model was loaded from: a trace is read on other machines, too.
    """
    digest = hashlib.sha256()
    for path, part in module.named_modules():
        digest.update(f"{path}|{_qualified(type(part))}|{part.extra_repr()}|".encode())
        passing = {"training"} if _is_patched(part) else {"training", "forward"}
        if isinstance(part, torch.jit.ScriptModule):
            passing |= {"forward"}
            with suppress(RuntimeError):  # a list of modules has no forward
                digest.update(str(part.graph).encode())
        for name in sorted(vars(part).keys() - passing):
            if not name.startswith("_"):
                value = "" if name == "name_or_path" else vars(part)[name]
                digest.update(f"{name}={_plain(value)};".encode())
    config: Any = getattr(module, "config", None)
    if hasattr(config, "to_json_string"):
        digest.update(_ORIGIN.sub(r'\1""', config.to_json_string(use_diff=False)).encode())
    for name, tensor in _tensors(module):
        if name in hashes:
            shape = tuple(tensor.shape)
            digest.update(f"{name}|{tensor.dtype}|{shape}|".encode() + hashes[name])
    return digest.hexdigest()


def has_known_code(module: nn.Module) -> bool:
    """Whether every module's code comes from a versioned package, unpatched and unhooked."""
    return all(map(_is_known, parts_of(module)))


def _is_known(part: nn.Module) -> bool:
    kind: Any = type(part)
    if not _is_known_class(kind) or _is_patched(part):
        return False
    # Transformers leaves hooks of its own on a model that was asked for hidden states.
    hooks = (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    return all(str(getattr(hook, "__module__", "")).startswith(_VERSIONED) for hook in hooks)


@cache
def _is_known_class(kind: type) -> bool:
    return _qualified(kind).startswith(_VERSIONED)


def versions(*packages: str) -> dict[str, str]:
    """Installed versions, without importing anything."""
    found = {package: _version(package) for package in packages}
    return {package: version for package, version in found.items() if version is not None}


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _is_patched(part: nn.Module) -> bool:
    """Transformers 4.57 wraps `forward` for hidden states, and puts the class's own back after."""
    if isinstance(part, torch.jit.ScriptModule):
        return True  # its code is its own, whatever its class is
    own = vars(part).get("forward")
    if own is None:
        return False
    method = (getattr(own, "__self__", None), getattr(own, "__func__", None))
    return method != (part, type(part).forward)


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
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    for piece in pieces(flat, pinned(2)) if flat.is_cuda else [flat.cpu()]:
        digest.update(piece.numpy().data)
    return digest.digest()


def evidence_dtype(dtype: str) -> str:
    """What the model is run in to prove a result in `dtype`: float32, unless that is too coarse."""
    return "fp64" if dtype == "fp64" else "fp32"


class Evidence:
    """Hashes of one model's own states, by probe, dtype and device, for as long as one run lasts.

    On the CPU the model is run for them where nobody has; on a GPU somebody must have.
    """

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._traces: dict[tuple[str, str, str], Trace] = {}
        self._hashes: dict[tuple[str, str, str], str] = {}

    def offer(self, backend: Backend, trace: Trace) -> None:
        """Keep a trace, if it is of the model itself: then it need not be run once more."""
        if isinstance(backend, ShowsModel) and backend.shows(self._model):
            where = trace.probe.sha256, trace.backend.dtype, trace.backend.device
            self._traces[where] = trace
            self._hashes.pop(where, None)

    def trace(self, probe: Probe, dtype: str, device: str = "cpu") -> Trace | None:
        """The run in `dtype` whose very bits `of` proves; None where there is none.

        Of a result in another dtype than the evidence, no bits of that dtype are proved.
        """
        proved = dtype == evidence_dtype(dtype)
        return self._traces.get((probe.sha256, dtype, device)) if proved else None

    def of(self, probe: Probe, dtype: str, device: str = "cpu") -> str:
        """The hash for a probe, fit to prove a result in `dtype`.

        Empty where the model cannot be run so: nothing proves what was made of it, nor is stored.
        """
        where = probe.sha256, evidence_dtype(dtype), device
        if where not in self._hashes:
            trace = self._traces.get(where)
            if trace is None and device != "cpu":
                return ""
            try:
                seen = (trace, trace.outputs) if trace else self._run(probe, where[1])
            except DriftwalkError:
                return ""
            self._hashes[where] = hash_of(*seen)
        return self._hashes[where]

    def forget(self) -> None:
        """What was seen says nothing about the next run: the model may change in between."""
        self._traces.clear()
        self._hashes.clear()

    def _run(self, probe: Probe, dtype: str) -> tuple[list[State], Mapping[str, Array]]:
        """All states and outputs, as the `torch` backend gives them on the CPU."""
        module = self._model.at(dtype, "cpu", lend="large")
        states: list[State] = []
        with quietly(module), explaining(self._model.label, f"torch:cpu:{dtype}"):
            inputs = self._model.inputs(module, probe, torch.device("cpu"))
            run = partial(call, module, inputs)
            layout = self._model.layout(module, inputs, run)
            outputs = as_arrays(lambda sink: watched(module, layout, sink, run), states.append)
        return states, outputs


_WORTH_A_THREAD = 1 << 16
"""Bytes that are hashed in less time than it takes to wake a thread."""


def hash_of(states: Iterable[State], outputs: Mapping[str, Array]) -> str:
    """One hash over names, dtypes, shapes and bytes of all states and outputs."""
    named = [(f"state {state.point.name}", state.array) for state in states]
    named += [(f"output {name}", array) for name, array in outputs.items()]
    # The last state often is an output as well: the same memory is read once.
    different = {_place(array): array for _, array in named}
    hashes = in_threads(
        _hash_of, list(different.values()), lambda array: array.nbytes, least=_WORTH_A_THREAD
    )
    hash_at = dict(zip(different, hashes, strict=True))
    digest = hashlib.blake2b(digest_size=32)
    for name, array in named:
        digest.update(f"{name}|{dtype_name(array)}|{array.shape}|".encode())
        digest.update(hash_at[_place(array)])
    return digest.hexdigest()


def _place(array: Array) -> tuple[object, ...]:
    where = array.__array_interface__
    return where["data"], where["strides"], where["shape"], where["typestr"]


def _hash_of(array: Array) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()
