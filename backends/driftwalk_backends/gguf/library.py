"""llama.cpp by its own C interface: a file is opened, a row of tokens run, tensors are looked at.

llama.cpp calls back before each tensor it computes and asks whether somebody wants to see it; those
that are wanted are copied as soon as they are there, before their memory is used again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, BackendUnavailable

INSTALL = "Install it: pip install 'driftwalk[llamacpp]' (llama.cpp is compiled on the way)."
KEPT = {"fp32": 0, "fp16": 1}
"""ggml's numbers of the types that keys and values are kept in."""
_ERROR, _MOST_SAID = 4, 20
_F32 = 4
"""Bytes of a number that is looked at."""
_POINTER, _TEXT = ctypes.c_void_p, ctypes.c_char_p
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_get_name": (_TEXT, (_POINTER,)),
    "ggml_op_desc": (_TEXT, (_POINTER,)),
    "ggml_nelements": (ctypes.c_int64, (_POINTER,)),
    "ggml_nbytes": (ctypes.c_size_t, (_POINTER,)),
    "ggml_is_contiguous": (ctypes.c_bool, (_POINTER,)),
    "ggml_backend_tensor_get": (None, (_POINTER, _POINTER, ctypes.c_size_t, ctypes.c_size_t)),
}


@dataclass(frozen=True, eq=False)
class Seen:
    """A tensor as llama.cpp computed it: its name, by what operation, a row for each token."""

    name: str
    operation: str
    array: Array


Wants = Callable[[str, str], bool]
"""Whether a tensor of this name and operation is to be looked at."""


def why_not() -> str:
    """Why llama.cpp cannot be used here; empty where it can."""
    try:
        _library()
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "llama_cpp"
        what = "is not installed" if missing else f"cannot be imported: {error}"
        return f"llama-cpp-python {what}."
    except (OSError, RuntimeError, AttributeError) as error:
        return f"llama-cpp-python cannot be loaded: {error}."
    return ""


@cache
def _library() -> tuple[Any, Any]:
    """llama.cpp's functions, and ggml's; its own words go into a list, and not to the terminal."""
    from llama_cpp import _ggml, llama_cpp

    ggml = _ggml.libggml
    for name, (gives, takes) in _FUNCTIONS.items():
        function = getattr(ggml, name)
        function.restype, function.argtypes = gives, list(takes)
    llama_cpp.llama_log_set(_heard, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp, ggml


_said: list[str] = []


def _hear(level: int, text: bytes, _: Any) -> None:
    if level == _ERROR and len(_said) < _MOST_SAID:
        _said.append(text.decode("utf-8", "replace").strip())


_heard = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_hear)
"""Kept: C calls it as long as the process lives."""


def system() -> str:
    """What of this CPU llama.cpp was compiled for: `NEON = 1 | FP16_VA = 1 | ...`."""
    llama, _ = _library()
    return str(llama.llama_print_system_info().decode("utf-8", "replace")).strip(" |")


def sums_in_half() -> bool:
    """Whether products of F16 weights are summed in half precision, as on ARM CPUs that can."""
    return "FP16_VA = 1" in system()


def leaves_out_amx() -> bool:
    """Whether llama.cpp was compiled with kernels for AMX, which are not used here.

    They take inputs of F16 weights as they are, so that what is rounded depends on the machine; and
    with weights of 4 and 8 bits they ended the process on a Xeon in a virtual machine (SIGILL at
    `tilezero`, llama-cpp-python 0.3.36, GCC 12.2), with driftwalk or without.
    """
    return "AMX_INT8 = 1" in system()


class Llama:
    """A file that llama.cpp has opened."""

    def __init__(self, path: Path, threads: int, keeps: str, flash: bool) -> None:
        if why := why_not():
            raise BackendUnavailable(f"Backend 'llamacpp' is not usable here: {why} {INSTALL}")
        self._llama, self._ggml = _library()
        self._path, self._threads, self._keeps, self._flash = path, threads, keeps, flash
        options = self._llama.llama_model_default_params()
        options.n_gpu_layers = 0
        if leaves_out_amx():
            options.use_extra_bufts = False
        _said.clear()
        self._model = self._llama.llama_model_load_from_file(str(path).encode(), options)
        if not self._model:
            raise BackendError(f"llama.cpp cannot load {path.name}: {_why()}")
        vocabulary = self._llama.llama_model_get_vocab(self._model)
        self.vocabulary = int(self._llama.llama_vocab_n_tokens(vocabulary))

    def close(self) -> None:
        if self._model:
            self._llama.llama_model_free(self._model)
            self._model = None

    def run(
        self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], wants: Wants | None
    ) -> list[tuple[Array, list[Seen]]]:
        """For each row of tokens and their positions: logits, and what was wanted, in order."""
        seen: list[Seen] = []
        failed: list[BaseException] = []
        length = max((len(tokens) for tokens, _ in rows), default=1)

        def called(tensor: int, asked: bool, _: Any) -> bool:
            try:
                return self._met(tensor, asked, wants, seen)
            except BaseException as error:  # never through C
                failed.append(error)
                return False

        context = self._context(length, called if wants is not None else None)
        batch = self._llama.llama_batch_init(length, 0, 1)
        made = []
        try:
            for tokens, places in rows:
                seen.clear()
                self._llama.llama_memory_clear(self._llama.llama_get_memory(context), True)
                _fill(batch, tokens, places)
                code = self._llama.llama_decode(context, batch)
                if failed:
                    raise failed[0]
                if code:
                    raise BackendError(f"llama.cpp gave up on {self._path.name} ({code}): {_why()}")
                found = self._llama.llama_get_logits(context)
                if not found:
                    raise BackendError(f"llama.cpp gave no logits for {self._path.name}.")
                shape = (len(tokens), self.vocabulary)
                made.append((np.ctypeslib.as_array(found, shape).copy(), list(seen)))
        finally:
            self._llama.llama_batch_free(batch)
            self._llama.llama_free(context)
        return made

    def _context(self, length: int, called: Any) -> Any:
        options = self._llama.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = length
        options.n_seq_max = 1
        options.n_threads = options.n_threads_batch = self._threads
        options.flash_attn_type = 1 if self._flash else 0
        options.type_k = options.type_v = KEPT[self._keeps]
        options.offload_kqv = False
        with suppress(AttributeError):  # a newer field: as many logits as tokens
            options.n_outputs_max = length
        self._callback = self._llama.ggml_backend_sched_eval_callback(called or (lambda *_: False))
        if called is not None:
            options.cb_eval = self._callback
        _said.clear()
        context = self._llama.llama_init_from_model(self._model, options)
        if not context:
            raise BackendError(f"llama.cpp cannot run {self._path.name}: {_why()}")
        return context

    def _met(self, tensor: int, asked: bool, wants: Wants | None, seen: list[Seen]) -> bool:
        name, operation = (
            one(tensor).decode("utf-8", "replace")
            for one in (self._ggml.ggml_get_name, self._ggml.ggml_op_desc)
        )
        wanted = wants is not None and wants(name, operation)
        if asked or not wanted:
            return wanted or not asked
        count, size = self._ggml.ggml_nelements(tensor), self._ggml.ggml_nbytes(tensor)
        if self._ggml.ggml_is_contiguous(tensor) and size == count * _F32:
            array = np.empty(count, np.float32)
            self._ggml.ggml_backend_tensor_get(tensor, array.ctypes.data, 0, size)
            seen.append(Seen(name, operation, array))
        return True


def _fill(batch: Any, tokens: Sequence[int], places: Sequence[int]) -> None:
    """One sequence, of which all logits are wanted."""
    batch.n_tokens = len(tokens)
    for i, (token, place) in enumerate(zip(tokens, places, strict=True)):
        batch.token[i], batch.pos[i], batch.logits[i] = token, place, 1
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0


def _why() -> str:
    """What llama.cpp said first of what went wrong, in one line."""
    return (_said[0] if _said else "it does not say why")[:400]
