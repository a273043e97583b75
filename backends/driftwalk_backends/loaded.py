"""A torch model in memory, and what is known of it."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from driftwalk.decoding import Decoding
from driftwalk.errors import ModelError, UsageError
from driftwalk.exercised import Exercised
from driftwalk.formats import Declared
from driftwalk.states import Probe
from driftwalk.weight_source import WeightSource

from .calls import first_line, inputs_for, kept_in, on_device
from .crosscheck import Run, find_layout
from .demo import ByteTokenizer
from .exercised import Watch
from .fingerprint import Evidence, Hashing, digest_of, has_known_code, tensor_hashes, versions
from .functions import is_closed
from .layout import Layout
from .lending import Lend, Weights, is_large, lendable
from .precision import converted, has_experts, is_in
from .randomness import drawing_modules, has_drawn, random_note
from .reading import Reading
from .shards import Files
from .tensors import TORCH_DTYPES
from .untouched import untouched
from .weights import module_weights


@dataclass(eq=False, repr=False)
class LoadedModel:
    """A model in memory, with what is needed to make probes for it and copies of it."""

    module: nn.Module
    label: str
    source: str = "nn.Module"
    folder: str | None = None
    """Where its tokenizer may lie: a folder, a hub id, or a GGUF file."""
    own_tokenizer: ByteTokenizer | None = None
    blocks: str | None = None
    """The stack of blocks, where a user named it by hand."""
    trust_remote_code: bool = False
    loading_notes: tuple[str, ...] = ()
    like: LoadedModel | None = None
    """The model that this one is compared with, whose points it should have."""
    files: Files | None = None
    """Where its weights lie, if in a folder."""
    gguf: Path | None = None
    """The GGUF file it was read from, its tokenizer too (gguf/source.py)."""
    given_layout: Layout | None = None
    """Its points, where another machine has found them."""
    decoding: Decoding | None = None
    """How sequences are fed to it, unless a backend was told otherwise; None: without a cache."""
    declared: Declared | None = None
    """What an artefact declares of its weights, for a model that was made by it (formats/)."""

    def __post_init__(self) -> None:
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._watch = Watch()
        self.weights = Weights()
        """Those of a large model, as its copies have them."""
        self._hashing: Hashing | None = None
        self._reading: Reading | None = None
        self._drew = False
        self.drawing: tuple[str, ...] = ()
        """The modules that draw random numbers, as far as was seen; `""` is the model itself."""
        if hasattr(self.module, "_orig_mod"):  # what torch.compile makes of a module
            raise UsageError(
                f"{self.label} is compiled already, and its layers cannot be seen. Give the module "
                "that was compiled, and say how: the backend torch,compile=inductor."
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report must say of the model: how it was loaded, what of it has no point."""
        notes = (note for layout in self._layouts.values() for note in layout.notes)
        drawn = (random_note(self.drawing),) if self.drawing else ()
        return (*self.loading_notes, *dict.fromkeys(notes), *drawn)

    @property
    def config(self) -> Any:
        """The transformers config, or None for a plain module."""
        return getattr(self.module, "config", None)

    @cached_property
    def hashes(self) -> Mapping[str, bytes]:
        """Of every parameter and buffer, by name."""
        return tensor_hashes(self.module) if self._hashing is None else self._hashing.result()

    @cached_property
    def fingerprint(self) -> str:
        return digest_of(self.module, self.hashes)

    @property
    def has_known_code(self) -> bool:
        """Whether a result computed from this model may be stored and trusted later."""
        return has_known_code(self.module)

    @cached_property
    def evidence(self) -> Evidence:
        """What this process saw the model give: the proof that a stored result is still its own."""
        return Evidence(self)

    def begin(self) -> None:
        """A run begins: a large model is hashed meanwhile."""
        self.forget()
        if "hashes" not in vars(self) and is_large(self.module):
            self._hashing = Hashing(self.module)

    def end(self) -> None:
        """A run ends: an error where its weights were changed meanwhile."""
        if self.files is not None:
            self.files.check()

    def forget(self) -> None:
        """What was seen or made of it says nothing about the next run: it may change in between."""
        self.evidence.forget()
        if self.weights.forget():
            gc.collect()  # copies of it hold themselves by their hooks
        for one in (self._hashing, self._reading):
            if one is not None:
                one.stop()
        self._hashing = self._reading = None

    @property
    def arithmetic(self) -> str:
        """What bits depend on beside the model and the probe: others are stored apart."""
        return self.arithmetic_on("cpu")

    def arithmetic_on(self, device: str) -> str:
        """The same for a device."""
        if device.startswith("cuda"):
            return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
        return f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"

    @property
    def versions(self) -> dict[str, str]:
        """The packages whose code this model runs."""
        return versions("torch", "transformers", "driftwalk")

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer; a missing one is an error that says what to give instead."""
        if self.own_tokenizer is not None:
            return self.own_tokenizer
        instead = "Give token ids or arrays instead of text, or leave the probe out."
        remedy = f"Save one beside the weights (tokenizer.save_pretrained). {instead}"
        if self.gguf is not None:
            remedy = instead
        if not self.folder:
            raise ModelError(f"{self.label} came without a tokenizer. {instead}")
        from transformers import AutoTokenizer

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                where = self.folder
                options: dict[str, Any] = {"trust_remote_code": self.trust_remote_code}
                if self.gguf is not None:
                    where, options = str(self.gguf.parent), {"gguf_file": self.gguf.name}
                made = AutoTokenizer.from_pretrained(where, **options)
        except Exception as error:  # AutoTokenizer raises whatever its parts raise
            raise ModelError(
                f"No tokenizer could be loaded for {self.label}: {first_line(error)}. {remedy}"
            ) from error
        # transformers 5 makes up a tokenizer where none is stored: special tokens, and maybe "▁".
        if len(set(made.get_vocab()) - set(made.all_special_tokens)) < 2:
            raise ModelError(f"{self.label} came without a tokenizer. {remedy}")
        return made

    def at(
        self,
        dtype: str,
        device: str,
        attn: str | None = None,
        *,
        for_export: bool = False,
        lend: Lend = "off",
        places: Mapping[str, torch.device] | None = None,
    ) -> nn.Module:
        """The module in a dtype on a device: itself where it already is, else a copy.

        `lend` says whether its weights may be lent instead of copied (lending.py), `places` which
        of its tensors lie elsewhere (placement.py).
        """
        if self.files is not None and self._reading is None and is_large(self.module):
            self.files.watch()
            self._reading = Reading(self.module.parameters())
            weakref.finalize(self, self._reading.stop)
        # Of the ways to run a mixture of experts, one has no data-dependent shapes to trace.
        experts = "batched_mm" if for_export and has_experts(self.module) else None
        as_it_is = attn is None and experts is None and places is None
        if as_it_is and is_in(self.module, dtype, device):
            return self.module
        if attn is not None and not hasattr(self.module, "set_attn_implementation"):
            raise UsageError(f"attn={attn}: {self.label} is not a transformers model.")
        try:
            options: dict[str, Any] = {"weights": self.weights, "lend": lend, "places": places}
            return converted(self.module, dtype, device, attn, experts, **options)
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"{self.label} in {dtype} does not fit on {device}: {first_line(error)}"
            ) from error
        except (ValueError, ImportError) as error:
            raise ModelError(f"{self.label} cannot take attn={attn}: {error}") from error

    def copied_bytes(self, dtype: str, attn: str | None, lend: Lend, lent: bool) -> int:
        """Bytes that `at` takes on the CPU, at the worst: a copy is made before it is cast.

        `lent`: if models of any size count as large.
        """
        if attn is None and is_in(self.module, dtype, "cpu"):
            return 0
        held = [*self.module.parameters(), *self.module.buffers()]
        if lend == "on" or (lend == "large" and (lent or is_large(self.module))):
            apart = {id(weight) for weight in lendable(self.module)}
            held = [tensor for tensor in held if id(tensor) not in apart]
        width = TORCH_DTYPES[dtype].itemsize
        floats = (t.numel() * max(width, t.dtype.itemsize) for t in held if t.is_floating_point())
        return sum(floats) + sum(t.nbytes for t in held if not t.is_floating_point())

    def on_host(self) -> nn.Module:
        """The module on the CPU: itself where it is there."""
        weights = list(self.module.parameters())
        host = all(weight.device.type == "cpu" for weight in weights)
        # Half precision is slow on a CPU, which matters in a large model.
        large = self.weights.lends(self.module, "large")
        slow = large and any(weight.dtype.itemsize == 2 for weight in weights)
        return self.module if host and not slow else self.at("fp32", "cpu", lend="large")

    def inputs(self, module: nn.Module, probe: Probe, device: torch.device | str) -> dict[str, Any]:
        """The probe's arrays as tensors on the device, floats in a dtype that the module takes."""
        return inputs_for(module, probe, device)

    def layout(self, module: nn.Module, inputs: Mapping[str, Any], run: Run) -> Layout:
        """The model's points; found once for each set of input names, on the first run."""
        if self.given_layout is not None:
            return self.given_layout
        # A flag may lead another way through the model.
        key = tuple(
            name if isinstance(value, torch.Tensor) else f"{name}={kept_in(name, value)}"
            for name, value in sorted(inputs.items())
        )

        def restored(**extra: Any) -> Any:
            with untouched(module):  # or blocks would not run again in a model that remembers
                output = run(**extra)
                self._drew = self._drew or has_drawn()
                return output

        if key not in self._layouts:
            # The first of these runs serves to see which weights the probe uses, too.
            watched = self._watch.first_run(module, inputs, restored)
            like = None if self.like is None else self.like._layouts.get(key)
            # Of a model that nobody can look into, only the outputs have a partner.
            alone = self.like is not None and is_closed(self.like.module)
            self._layouts[key] = find_layout(module, watched, self.blocks, like, alone)
            if self._drew and not self.drawing:
                self.drawing = drawing_modules(module, restored)
        return self._layouts[key]

    @property
    def outputs_skipped(self) -> tuple[str, ...]:
        """What of the model's output is no point, in the runs in which points were found."""
        layouts = self._layouts.values()
        return tuple(dict.fromkeys(n for layout in layouts for n in layout.outputs.skipped))

    def own_weights(self) -> WeightSource:
        """All it computes with that is stored, and what it makes up itself."""
        return module_weights(self.module, self.label, buffers=True)

    def exercised(self, module: nn.Module, inputs: Mapping[str, Any], run: Run) -> Exercised | None:
        """What these inputs use of the model; run once more if no run of theirs was watched."""
        if self._watch.known(inputs) is None:
            self._watch.run(module, inputs, run)
        return self._watch.known(inputs)

    def exercised_by(self, probe: Probe) -> Exercised | None:
        """What a probe uses of the model; None where it was not run with it."""
        return self._watch.known(on_device(probe, "cpu"))

    def add_up(self) -> None:
        """From now on, keep what all runs that are watched use together."""
        self._watch.add_up()

    def added_up(self) -> Exercised | None:
        """What they used; None where there was none."""
        return self._watch.added_up()

    def looking_up(self, probes: Sequence[Probe]) -> AbstractContextManager[None]:
        """Add up what runs of some probes use, as far as that costs no run of its own."""
        return self._watch.looking_up(on_device(probe, "cpu") for probe in probes)

    def describe(self) -> dict[str, str]:
        parameters = sum(p.numel() for p in self.module.parameters())
        confirmed = {layout.confirmed for layout in self._layouts.values()}
        return {
            "label": self.label,
            "source": self.source,
            "class": type(self.module).__name__,
            "parameters": str(parameters),
            "fingerprint": self.fingerprint,
            "hidden_states": "; ".join(sorted(confirmed)),
        }
