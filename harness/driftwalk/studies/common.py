"""What every study's result has on top, and how it becomes JSON and is read back.

A study is a frozen, keyword-only dataclass that inherits `Study`, names its `kind`, and is listed
in `STUDIES`: then `save`, `load` and the command line know it. `running.head` fills the head.
Its `layers`, where it has some, each have a `point`; in JSON that is a name, as in result.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ..adapter import BackendInfo
from ..errors import UsageError, nearest
from ..files import read_json, writable_folder, write_atomically
from ..jsonable import decode, encode, to_text, versioned
from ..registry import load_target
from ..result import Tool

STUDY_SCHEMA_VERSION = 1

STUDIES: dict[str, str] = {
    "contrast": "driftwalk.studies.contrast_result:Contrast",
    "geometry": "driftwalk.studies.geometry_result:Geometry",
    "visibility": "driftwalk.studies.visibility_result:Visibility",
}
"""Kinds and their classes. A kind's page is `driftwalk_reports.studies.<kind>_page:render` and its
text `driftwalk_reports.studies.<kind>_text:render(study, color=...)`; its files are named by it."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Who made a study, of which model, on which backend, where and how."""

    kind: ClassVar[str]
    tool: Tool
    created: str
    command: str
    model: Mapping[str, str]
    backend: BackendInfo
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> str:
        """The finding that makes the command leave with exit code 1, as a sentence; or nothing."""
        return ""

    def save(self, folder: str | Path) -> Path:
        """Write `<kind>.json` and `<kind>.html`."""
        save(self, folder)
        return Path(folder)


S = TypeVar("S", bound=Study)


def to_dict(study: Study) -> dict[str, Any]:
    """The JSON document: what it is, then the head, then the study's own fields."""
    data: dict[str, Any] = {"kind": study.kind, "schema_version": STUDY_SCHEMA_VERSION}
    data |= encode(study)
    if "layers" in data:
        data["layers"] = [_named(layer) for layer in data["layers"]]
    return data


def _named(layer: dict[str, Any]) -> dict[str, Any]:
    point = layer["point"]
    return {"point": point["name"], "module": point["module"]} | {
        key: value for key, value in layer.items() if key != "point"
    }


def _nested(layer: Any) -> Any:
    if not isinstance(layer, dict):
        return layer
    return layer | {"point": {"name": layer.get("point"), "module": layer.get("module", "")}}


def to_json(study: Study) -> str:
    return to_text(to_dict(study))


def from_dict(data: Any) -> Study:
    """Rebuild a study of any known kind; one of a newer schema is refused by name."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str):
        raise UsageError("Not a driftwalk study: it has no kind.")
    if kind not in STUDIES:
        raise UsageError(f"Unknown kind of study {kind[:60]!r}. {nearest(kind, STUDIES)}")
    data = versioned(data, STUDY_SCHEMA_VERSION, "study")
    found: type[Study] = load_target(STUDIES[kind])
    layers = data.get("layers")
    if isinstance(layers, list):
        data = data | {"layers": [_nested(layer) for layer in layers]}
    return decode(found, data, kind)


def is_study(path: Path) -> bool:
    """Whether a file holds a study; of what cannot be read, its own reader tells why."""
    try:
        data = read_json(path)
    except UsageError:
        return False
    return isinstance(data, dict) and data.get("kind") in tuple(STUDIES)


def load(path: str | Path) -> Study:
    """Read the JSON file of a study."""
    return from_dict(read_json(path))


def save(study: Study, folder: str | Path) -> list[Path]:
    """Both files of a study; both texts are made before the first is written."""
    page = load_target(f"driftwalk_reports.studies.{study.kind}_page:render")(study)
    texts = {f"{study.kind}.json": to_json(study), f"{study.kind}.html": page}
    root = writable_folder(folder)
    return [write_atomically(root / name, text) for name, text in texts.items()]
