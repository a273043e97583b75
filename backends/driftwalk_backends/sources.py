"""Where a model comes from: a hub id, a folder, a factory, an nn.Module, or the built-in ones."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from driftwalk.errors import ModelError, UsageError
from driftwalk.exercised import Exercised
from driftwalk.states import Probe

from .crosscheck import Run, find_layout
from .demo import DEMOS, ByteTokenizer
from .evidence import Evidence, arithmetic
from .exercised import Watch
from .fingerprint import fingerprint, has_known_code, versions
from .points import Layout
from .precision import converted, has_experts, is_in
from .tensors import from_numpy
from .untouched import untouched

_AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForMaskedLM",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForQuestionAnswering",
    "AutoModelForImageClassification",
    "AutoModel",
)
GRAPH = "ONNX graph"
"""The source of a model that is no torch model (onnx/pairs/model.py)."""
_WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.safetensors.index.json", "*.bin.index.json")


class LoadedModel:
    """A model in memory, with what is needed to make probes for it and copies of it."""

    def __init__(
        self,
        module: nn.Module,
        label: str,
        *,
        source: str = "nn.Module",
        folder: str | None = None,
        tokenizer: ByteTokenizer | None = None,
        blocks: str | None = None,
        trust_remote_code: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.module = module
        self.label = label
        self.source = source
        self._notes = notes
        self._folder = folder
        self._tokenizer = tokenizer
        self._blocks = blocks
        self._trust_remote_code = trust_remote_code
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._watch = Watch()
        if hasattr(module, "_orig_mod"):  # what torch.compile makes of a module
            raise UsageError(
                f"{label} is compiled already, and its layers cannot be seen. Give the module that "
                "was compiled, and say how: the backend torch,compile=inductor."
            )

    @property
    def blocks(self) -> str | None:
        """The stack of blocks, where a user named it by hand."""
        return self._blocks

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report must say of the model: how it was loaded, what of it has no point."""
        found = (note for layout in self._layouts.values() for note in layout.notes)
        return (*self._notes, *dict.fromkeys(found))

    @property
    def config(self) -> Any:
        """The transformers config, or None for a plain module."""
        return getattr(self.module, "config", None)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.module)

    @property
    def has_known_code(self) -> bool:
        """Whether a result computed from this model may be stored and trusted later."""
        return has_known_code(self.module)

    @cached_property
    def evidence(self) -> Evidence:
        """What this process saw the model give: the proof that a stored result is still its own."""
        return Evidence(self)

    @property
    def arithmetic(self) -> str:
        """What bits depend on beside the model and the probe."""
        return arithmetic()

    @property
    def versions(self) -> dict[str, str]:
        """The packages whose code this model runs."""
        return versions("torch", "transformers", "driftwalk")

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer; a missing one is an error that says what to give instead."""
        if self._tokenizer is not None:
            return self._tokenizer
        instead = "Give token ids or arrays instead of text, or leave the probe out."
        remedy = f"Save one beside the weights (tokenizer.save_pretrained). {instead}"
        if not self._folder:
            raise ModelError(f"{self.label} came without a tokenizer. {instead}")
        from transformers import AutoTokenizer

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = AutoTokenizer.from_pretrained(
                    self._folder, trust_remote_code=self._trust_remote_code
                )
        except Exception as error:  # AutoTokenizer raises whatever its parts raise
            raise ModelError(
                f"No tokenizer could be loaded for {self.label}: {_first_line(error)}. {remedy}"
            ) from error
        # transformers 5 makes up a tokenizer where none is stored: special tokens, and maybe "▁".
        if len(set(found.get_vocab()) - set(found.all_special_tokens)) < 2:
            raise ModelError(f"{self.label} came without a tokenizer. {remedy}")
        return found

    def at(
        self, dtype: str, device: str, attn: str | None = None, *, for_export: bool = False
    ) -> nn.Module:
        """The module in a dtype on a device: itself where it already is, else a copy."""
        # Of the ways to run a mixture of experts, one has no data-dependent shapes to trace.
        experts = "batched_mm" if for_export and has_experts(self.module) else None
        if attn is None and experts is None and is_in(self.module, dtype, device):
            return self.module
        if attn is not None and not hasattr(self.module, "set_attn_implementation"):
            raise UsageError(f"attn={attn}: {self.label} is not a transformers model.")
        try:
            return converted(self.module, dtype, device, attn, experts)
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"{self.label} in {dtype} does not fit on {device}: {_first_line(error)}"
            ) from error
        except (ValueError, ImportError) as error:
            raise ModelError(f"{self.label} cannot take attn={attn}: {error}") from error

    def layout(self, module: nn.Module, inputs: Mapping[str, Any], run: Run) -> Layout:
        """The model's points; found once for each set of input names, on the first run."""
        key = tuple(sorted(inputs))

        def alone(**extra: Any) -> Any:
            with untouched(module):  # or blocks would not run again in a model that remembers
                return run(**extra)

        if key not in self._layouts:
            # The first of these runs serves to see which weights the probe uses, too.
            watched = self._watch.first_run(module, inputs, alone)
            self._layouts[key] = find_layout(module, watched, self._blocks)
        return self._layouts[key]

    @property
    def outputs_skipped(self) -> tuple[str, ...]:
        """What of the model's output is no point, in the runs in which points were found."""
        layouts = self._layouts.values()
        return tuple(dict.fromkeys(n for layout in layouts for n in layout.outputs.skipped))

    def exercised(
        self, module: nn.Module, inputs: Mapping[str, torch.Tensor], run: Run
    ) -> Exercised | None:
        """What these inputs use of the model; run once more if no run of theirs was watched."""
        if self._watch.known(inputs) is None:
            self._watch.run(module, inputs, run)
        return self._watch.known(inputs)

    def exercised_by(self, probe: Probe) -> Exercised | None:
        """What a probe uses of the model; None where it was not run with it."""
        return self._watch.known({name: from_numpy(a) for name, a in probe.inputs.items()})

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


def open_model(
    given: object, *, blocks: str | None = None, trust_remote_code: bool = False
) -> LoadedModel:
    """Load whatever a user may call a model."""
    if isinstance(given, LoadedModel):
        return given
    if isinstance(given, nn.Module):
        folder = getattr(getattr(given, "config", None), "name_or_path", "") or None
        return LoadedModel(given, type(given).__name__, blocks=blocks, folder=folder)
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if not isinstance(given, str) or not given.strip():
        raise UsageError(
            f"Cannot take {given!r} for a model; give a hub id, a folder, an nn.Module or "
            "'package.module:factory'."
        )
    if given in DEMOS:
        tokenizer = ByteTokenizer()
        return LoadedModel(
            DEMOS[given](), given, source="built in", tokenizer=tokenizer, blocks=blocks
        )
    if given.endswith(".onnx"):
        from .onnx.pairs.model import OnnxModel

        return OnnxModel(Path(given), given)
    path = Path(given)
    if path.is_dir():
        return _from_pretrained(str(path), given, "folder", blocks, trust_remote_code)
    if path.exists():
        raise ModelError(
            f"{given!r} is a file; give the folder that holds config.json and weights."
        )
    if ":" in given and "/" not in given and "\\" not in given:
        return _from_factory(given, blocks)
    if given.startswith((".", "/", "~")) or given.count("/") > 1:
        raise ModelError(f"There is no folder {given!r}.")
    return _from_pretrained(given, given, "hub", blocks, trust_remote_code)


def _from_factory(given: str, blocks: str | None) -> LoadedModel:
    module_name, _, attribute = given.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module_name), attribute)()
    except ModuleNotFoundError as error:
        raise ModelError(
            f"{given!r}: {error}. Run from the folder that holds it, or install it; "
            "write package.module:factory."
        ) from error
    except AttributeError as error:
        raise ModelError(f"{given!r}: {error}.") from error
    except (Exception, SystemExit) as error:  # a script that ends here would end the run, code 0
        raise ModelError(
            f"{given!r}: the factory raised {type(error).__name__}: {_first_line(error)}"
        ) from error
    if not isinstance(made, nn.Module):
        raise ModelError(f"{given!r} gave a {type(made).__name__}; a factory returns an nn.Module.")
    return LoadedModel(made, given, source="factory", blocks=blocks)


def _from_pretrained(
    where: str, label: str, source: str, blocks: str | None, trust_remote_code: bool
) -> LoadedModel:
    import transformers

    if source == "folder":
        _check_folder(Path(where))
    transformers.utils.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(where, trust_remote_code=trust_remote_code)
        kind = _class_for(config, trust_remote_code)
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)  # weights the checkpoint lacks are at least the same each time
            module, loading = kind.from_pretrained(
                where,
                dtype=torch.float32,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
    except Exception as error:  # hub, config and weight errors come in dozens of types
        raise ModelError(_explain(where, source, error, trust_remote_code)) from error
    notes: tuple[str, ...] = ()
    if missing := sorted(loading.get("missing_keys", ())):
        notes = (
            f"The checkpoint lacks {len(missing)} weight(s), which were made up (seed 0): "
            f"{', '.join(missing[:4])}{', ...' if len(missing) > 4 else ''}.",
        )
    return LoadedModel(
        module.eval(),
        label,
        source=source,
        folder=where,
        blocks=blocks,
        trust_remote_code=trust_remote_code,
        notes=notes,
    )


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"Folder {str(folder)!r} has no config.json, so it is not a saved transformers model. "
            "Write one with model.save_pretrained(folder)."
        )
    if not any(next(folder.glob(pattern), None) for pattern in _WEIGHT_PATTERNS):
        raise ModelError(
            f"Folder {str(folder)!r} has a config.json but no weights (model.safetensors or "
            "pytorch_model.bin). Was the download complete?"
        )


def _class_for(config: Any, trust_remote_code: bool) -> Any:
    """The class the checkpoint was saved from, so that its head is kept; else an Auto class."""
    import transformers

    if not (trust_remote_code and getattr(config, "auto_map", None)):
        for name in config.architectures or ():
            kind = getattr(transformers, name, None)
            if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
                return kind
    for name in _AUTO_CLASSES:
        auto = getattr(transformers, name)
        if name in (getattr(config, "auto_map", None) or {}) or type(config) in auto._model_mapping:
            return auto
    return transformers.AutoModel


def _explain(where: str, source: str, error: Exception, trusted: bool) -> str:
    text = str(error)
    if "trust_remote_code" in text and not trusted:
        return (
            f"Model {where!r} brings its own Python code, which is not run unless asked for. If "
            "you trust it: --trust-remote-code (trust_remote_code=True)."
        )
    if source == "folder":
        return f"Cannot load the model in {where!r}: {_first_line(error)}"
    return (
        f"Cannot load {where!r}: it is no folder here, and the model hub did not give it "
        f"({_first_line(error)}). Check the spelling and the network; offline, download it "
        f"elsewhere (hf download {where} --local-dir DIR) and give the folder. Built in: "
        f"{', '.join(DEMOS)}."
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]
