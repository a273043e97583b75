"""Where a model comes from: a hub id, a folder, a file, a factory, an nn.Module, or built in."""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from driftwalk.errors import ModelError, UsageError
from driftwalk.registry import PROGRAM_FILE, READ_BY_PICKLE

from .auto_classes import class_for
from .calls import first_line
from .demo import DEMOS, ByteTokenizer
from .formats.folders.declaring import Declaration, check_said, declared_in
from .formats.folders.loading import load as load_packed
from .functions import as_module, name_of
from .lending import is_large
from .loaded import LoadedModel
from .onnx.pairs.model import OnnxModel
from .shards import Files, what_is_wrong

__all__ = ["AnyModel", "LoadedModel", "open_model", "torch_model"]

AnyModel = LoadedModel | OnnxModel

GGUF_PREFIX, GGUF_SUFFIX = "gguf:", ".gguf"
_HALVES = (torch.float16, torch.bfloat16)
_IN_PYTHON = (
    "load it in Python and give the module, driftwalk.verify(module, ...), or a function that does "
    "so, as package.module:factory."
)
_PICKLE = (
    f"what torch.save wrote is a pickle, which can run any code and is never read; {_IN_PYTHON}"
)
_SCRIPT = f"TorchScript is taken as a module: {_IN_PYTHON}"
_FILES = {
    PROGRAM_FILE: f"{READ_BY_PICKLE}; {_IN_PYTHON}",
    **dict.fromkeys((".pt", ".pth", ".bin"), _PICKLE),
    **dict.fromkeys((".jit", ".ts"), _SCRIPT),
    ".safetensors": (
        "it holds weights and no architecture; give the folder with its config.json, or build the "
        "module and load them in package.module:factory."
    ),
}
"""What to do with a file that is no model, by how its name ends."""
_WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.safetensors.index.json", "*.bin.index.json")


def open_model(
    given: object,
    *,
    blocks: str | None = None,
    trust_remote_code: bool = False,
    mapped: bool = False,
) -> AnyModel:
    """Load whatever a user may call a model.

    `mapped`: that of a folder stays in its files, in the dtype it is stored in, large or not.
    """
    if isinstance(given, LoadedModel | OnnxModel):
        return given
    if isinstance(given, nn.Module) and not isinstance(given, torch.jit.ScriptModule):
        folder = getattr(getattr(given, "config", None), "name_or_path", "") or None
        return LoadedModel(given, type(given).__name__, blocks=blocks, folder=folder)
    if callable(given) and not isinstance(given, type):
        return LoadedModel(as_module(given), name_of(given), "function", blocks=blocks)
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if not isinstance(given, str) or not given.strip():
        raise UsageError(
            f"Cannot take {given!r} for a model; give a hub id, a folder, a GGUF file, an "
            "nn.Module, a function or 'package.module:factory'."
        )
    if given in DEMOS:
        tokenizer = ByteTokenizer()
        return LoadedModel(DEMOS[given](), given, "built in", None, tokenizer, blocks)
    if given.endswith(".onnx"):
        return OnnxModel(Path(given), given)
    if given.startswith(GGUF_PREFIX) or given.lower().endswith(GGUF_SUFFIX):
        from .gguf.source import open_gguf

        return open_gguf(Path(given.removeprefix(GGUF_PREFIX)), blocks)
    path = Path(given)
    if path.is_dir():
        return _from_pretrained(given, "folder", blocks, trust_remote_code, mapped)
    if path.exists() or path.suffix.lower() in _FILES:
        raise ModelError(_no_model(path))
    if ":" in given and "/" not in given and "\\" not in given:
        return _from_factory(given, blocks)
    if given.startswith((".", "/", "~")) or given.count("/") > 1:
        raise ModelError(f"There is no folder {given!r}.")
    return _from_pretrained(given, "hub", blocks, trust_remote_code, mapped)


def torch_model(
    given: object, *, blocks: str | None = None, trust_remote_code: bool = False
) -> LoadedModel:
    """The same for what torch must be able to run; a graph is refused."""
    model = open_model(given, blocks=blocks, trust_remote_code=trust_remote_code)
    if isinstance(model, OnnxModel):
        raise UsageError(model.refusal)
    return model


def _no_model(path: Path) -> str:
    """What to give instead of a file."""
    kind = path.suffix.lower()
    if not path.exists():
        return f"There is no file {str(path)!r}; and if there were: {_FILES[kind]}"
    if (path.parent / "config.json").is_file() and kind in (".safetensors", ".bin"):
        return f"{str(path)!r} is a file; give the folder it lies in, {str(path.parent)!r}."
    instead = "give the folder that holds config.json and weights."
    return f"{str(path)!r} is a file: {_FILES.get(kind, instead)}"


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
            f"{given!r}: the factory raised {type(error).__name__}: {first_line(error)}"
        ) from error
    if not isinstance(made, nn.Module) and callable(made) and not isinstance(made, type):
        made = as_module(made)
    if not isinstance(made, nn.Module):
        raise ModelError(f"{given!r} gave a {type(made).__name__}; a factory returns an nn.Module.")
    return LoadedModel(as_module(made), given, source="factory", blocks=blocks)


def _from_pretrained(
    where: str, source: str, blocks: str | None, trust_remote_code: bool, mapped: bool
) -> LoadedModel:
    import transformers

    if source == "folder":
        _check_folder(Path(where))
    files = Files(Path(where)) if source == "folder" else None
    transformers.utils.logging.disable_progress_bar()
    config = None
    try:
        config = transformers.AutoConfig.from_pretrained(where, trust_remote_code=trust_remote_code)
        kind = class_for(config, trust_remote_code)
        says = declared_in(getattr(config, "quantization_config", None), where)
        if says is not None:
            module, loading = load_packed(kind, config, where, torch.float32, says)
        else:
            module, loading = _loaded(kind, where, "auto", trust_remote_code)
            if not _may_stay(module, mapped):
                module, loading = _loaded(kind, where, torch.float32, trust_remote_code)
    except ModelError:
        raise
    except Exception as error:  # hub, config and weight errors come in dozens of types
        why = what_is_wrong(Path(where)) if files and config is not None else ""
        raise ModelError(_explain(where, source, error, trust_remote_code, why)) from error
    notes: tuple[str, ...] = () if says is None else (_packed_note(says),)
    if missing := sorted(loading.get("missing_keys", ())):
        notes += (
            f"The checkpoint lacks {len(missing)} weight(s), which were made up (seed 0): "
            f"{', '.join(missing[:4])}{', ...' if len(missing) > 4 else ''}.",
        )
    given = module, where, source, where, None, blocks, trust_remote_code, notes
    return LoadedModel(*given, files=files)


def as_saved(where: str, trust_remote_code: bool = False) -> nn.Module:
    """What a folder holds, in the dtypes and the format that it was saved in."""
    import transformers

    folder = Path(where)
    if not folder.is_dir():
        raise ModelError(f"There is no folder {where!r}.")
    _check_folder(folder)
    transformers.utils.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(where, trust_remote_code=trust_remote_code)
        kind = class_for(config, trust_remote_code)
        says = declared_in(getattr(config, "quantization_config", None), where)
        if says is not None:
            module, _ = load_packed(kind, config, where, "auto", says, as_candidate=True)
        else:
            module, _ = _loaded(kind, where, "auto", trust_remote_code)
    except ModelError:
        raise
    except Exception as error:  # config, weight and quantiser errors come in dozens of types
        raise ModelError(_explain(where, "folder", error, trust_remote_code, "")) from error
    return module


def _packed_note(says: Declaration) -> str:
    rounding = " Its inputs, too, are rounded where it is deployed; here they are not."
    return (
        f"The model's weights are those that its folder stores ({says.method}), as plain numbers."
        + (rounding if says.method == "fp8" else "")
    )


def _loaded(
    kind: Any, where: str, dtype: torch.dtype | str, trust_remote_code: bool
) -> tuple[nn.Module, dict[str, Any]]:
    """The model, and what transformers says of its weights; safetensors are mapped, not read."""
    options = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)  # weights the checkpoint lacks are at least the same each time
        module, loading = kind.from_pretrained(where, output_loading_info=True, **options)
    return module.eval(), loading


def _may_stay(module: nn.Module, any_size: bool = False) -> bool:
    """Whether a model is left in the dtype that it is stored in: a large one, or one of any size.

    A large one in half precision would take twice the memory in float32, and is lent its weights
    instead (lending.py). What it makes up itself (rotary frequencies) must be as fine as in a
    float32 model.
    """
    floats = {p.dtype for p in module.parameters() if p.is_floating_point()}
    if floats <= {torch.float32}:
        return True
    if getattr(module, "is_quantized", False):  # it can be cast by loading it so, or not at all
        return False
    stored = set(module.state_dict(keep_vars=True))
    made = (b for name, b in module.named_buffers() if name not in stored)
    fine = all(b.dtype.itemsize >= 4 for b in made if b.is_floating_point())
    return fine and (any_size or is_large(module)) and floats <= {torch.float32, *_HALVES}


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
    try:
        said = json.loads((folder / "config.json").read_bytes())
    except ValueError:
        return  # transformers says so
    if isinstance(said, dict):
        check_said(said.get("quantization_config"), str(folder))


def _explain(where: str, source: str, error: Exception, trusted: bool, why: str) -> str:
    text = str(error)
    if "trust_remote_code" in text and not trusted:
        return (
            f"Model {where!r} brings its own Python code, which is not run unless asked for. If "
            "you trust it: --trust-remote-code (trust_remote_code=True)."
        )
    if source == "folder":
        return f"Cannot load the model in {where!r}: {why or first_line(error)}"
    return (
        f"Cannot load {where!r}: it is no folder here, and the model hub did not give it "
        f"({first_line(error)}). Check the spelling and the network; offline, download it "
        f"elsewhere (hf download {where} --local-dir DIR) and give the folder. Built in: "
        f"{', '.join(DEMOS)}."
    )
