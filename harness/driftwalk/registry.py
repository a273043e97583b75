"""Names to "module:attribute", imported late: what exists, without importing any framework."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import BackendUnavailable, UsageError, nearest
from .spec import Spec

if TYPE_CHECKING:
    from .adapter import Backend

ENTRY_POINT_GROUP = "driftwalk.backends"

BUILT_IN: dict[str, str] = {
    "torch": "driftwalk_backends.torch_eager:TorchEager",
    "emulated": "driftwalk_backends.emulated:Emulated",
    "onnxruntime": "driftwalk_backends.onnx.runtime:OnnxRuntime",
    "openvino": "driftwalk_backends.openvino_runtime:OpenVino",
    "executorch": "driftwalk_backends.pte.backend:ExecuTorch",
    "gguf": "driftwalk_backends.gguf.in_torch:GgufInTorch",
    "llamacpp": "driftwalk_backends.gguf.llamacpp:LlamaCpp",
    "truth": "driftwalk_backends.truth:Truth",
    "trace": "driftwalk_backends.recorded:Recorded",
    "command": "driftwalk_backends.command:Command",
}

KINDS: dict[str, str] = {
    **dict.fromkeys(("torch", "emulated", "truth"), "driftwalk_backends.kinds:torch_backend"),
    "onnxruntime": "driftwalk_backends.kinds:onnxruntime_backend",
    "executorch": "driftwalk_backends.kinds:executorch_backend",
}
"""What makes a backend of a spec and a model, where a name stands for more than its class."""

PROGRAM_FILE = ".pt2"
READ_BY_PICKLE = (
    "torch.export.load reads an exported program by pickle, which can run any code, so it is never "
    "read here"
)
_PROGRAM = (
    f"{READ_BY_PICKLE}. If you trust it, load it in Python, and give driftwalk.verify(model, "
    "candidate) the program: candidate = torch.export.load(FILE).module()."
)

MIXED = "driftwalk_backends.mixture:Mixed"
"""Eager PyTorch with a dtype for each point: a yardstick only, it has no spec."""

PROBES = "driftwalk_backends.probes:probe_for"
"""What makes a probe for a model of whatever a user may give."""

REPORT_INDEX = ("index.html", "driftwalk_reports.index:render")
SHAPES_TEXT = "driftwalk_reports.shapes:render"
REPORT_PUBLISHER = "driftwalk.publish:publish"


@cache
def known_backends() -> dict[str, str]:
    """Every registered backend name and its target; third parties cannot shadow built-in ones."""
    from importlib.metadata import entry_points  # costs more than the rest of `--help`

    found = {entry.name: entry.value for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return {**BUILT_IN, **{name: found[name] for name in sorted(found) if name not in BUILT_IN}}


def load_target(target: str) -> Any:
    """Import `module:attribute`."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def backend_class(name: str) -> type[Backend]:
    """The class behind a backend name; an unknown name lists the known ones."""
    known = known_backends()
    if name.lower().endswith(PROGRAM_FILE):
        raise UsageError(f"{name!r} is a file, and no backend: {_PROGRAM}")
    if name not in known:
        raise UsageError(f"Unknown backend {name!r}. {nearest(name, known)}")
    try:
        loaded = load_target(known[name])
    except ImportError as error:
        raise BackendUnavailable(
            f"Backend {name!r} cannot be imported: {error}. "
            "`driftwalk backends` shows what is usable here."
        ) from error
    return loaded  # type: ignore[no-any-return]


def create(spec: str | Spec, model: object) -> Backend:
    """Make the backend a spec names. Nothing is loaded and no device is touched yet."""
    parsed = Spec.parse(spec) if isinstance(spec, str) else spec
    make: Any = backend_class(parsed.name)
    if parsed.name in KINDS:
        make = load_target(KINDS[parsed.name])
    made: Backend = make(parsed, model)
    made.make_probe = lambda given: load_target(PROBES)(model, given)
    return made
