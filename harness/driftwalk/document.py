"""Every kind of result as a document: one head, one way to store and to read, one table of kinds.

To add a kind: a frozen, keyword-only dataclass that inherits `Document` and names its `kind`, what
renders it, and one entry in `KINDS`. Its JSON Schema is then made of the dataclass by
`python -m driftwalk_reports.schema`, and `driftwalk report` renders stored files of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, cast

from .errors import UsageError, nearest
from .files import read_json
from .json_tables import to_text
from .jsonable import VERSION, decode, encode
from .registry import REPORT_PUBLISHER, load_target

BENCH_VERSION = f"bench_{VERSION}"
TO_JSON = "driftwalk.document:to_json"


@dataclass(frozen=True)
class Kind:
    """One kind of result: what reads it, and what it can be written as."""

    data: str
    """Its dataclass, as `module:Class`."""
    text: str
    """What renders it for a terminal: `render(document, color=...)`."""
    formats: Mapping[str, tuple[str, str]]
    """The name of each file, and what renders it. All kinds have `json` and `html`."""
    head: tuple[str, ...] = ("kind", VERSION)
    """What a file says first."""
    always: tuple[str, ...] | None = None
    """Which of these every file says, where older ones say less."""
    known_by: str = ""
    """A key that only files of this kind have, where older ones do not say their kind."""
    beside: bool = False
    """Whether several, of other candidates, get a folder each and an index above them."""
    version: int = 1

    @property
    def type(self) -> type[Document]:
        return cast("type[Document]", load_target(self.data))


def _reports(stem: str, page: str, **more: tuple[str, str]) -> dict[str, tuple[str, str]]:
    """The formats that all kinds have, under one stem, and more."""
    page = f"driftwalk_reports.{page}"
    return {"json": (f"{stem}.json", TO_JSON), "html": (f"{stem}.html", page), **more}


def _study(name: str) -> Kind:
    return Kind(
        f"driftwalk.tasks.studies.results:{name.title()}",
        f"driftwalk_reports.studies.{name}:render",
        _reports(name, f"studies.{name}:render_page"),
    )


RESULT = "result"
KINDS: dict[str, Kind] = {
    RESULT: Kind(
        "driftwalk.result:Report",
        "driftwalk_reports.terminal:render",
        {
            "json": ("result.json", TO_JSON),
            "html": ("report.html", "driftwalk_reports.html:render"),
            "md": ("summary.md", "driftwalk_reports.markdown:render"),
            "junit": ("junit.xml", "driftwalk_reports.junit:render"),
            "csv": ("layers.csv", "driftwalk_reports.table:render"),
        },
        head=(VERSION,),
        beside=True,
    ),
    "bench": Kind(
        "driftwalk.tasks.bench.result:BenchReport",
        "driftwalk_reports.bench:render",
        _reports(
            "bench",
            "bench:render_page",
            md=("bench.md", "driftwalk_reports.bench:render_markdown"),
            pytest=("pytest-benchmark.json", "driftwalk_reports.bench:render_pytest"),
        ),
        head=("kind", VERSION, BENCH_VERSION),
        always=(BENCH_VERSION,),
        known_by=BENCH_VERSION,
    ),
    "hardware": Kind(
        "driftwalk.tasks.hardware.result:HardwareReport",
        "driftwalk_reports.hardware:render",
        _reports(
            "hwcheck",
            "hardware:render_page",
            md=("hwcheck.md", "driftwalk_reports.hardware:render_markdown"),
        ),
    ),
    "fleet": Kind(
        "driftwalk.tasks.fleet.result:FleetReport",
        "driftwalk_reports.fleet:render",
        _reports(
            "fleet",
            "fleet:render_page",
            md=("fleet.md", "driftwalk_reports.fleet:render_markdown"),
        ),
    ),
    "selftest": Kind(
        "driftwalk.tasks.selftest.result:SelfTest",
        "driftwalk_reports.selftest:render",
        _reports("selftest", "selftest:render_page"),
        always=(VERSION,),
        known_by="trials",
    ),
    "weights": Kind(
        "driftwalk.tasks.weights.result:WeightReport",
        "driftwalk_reports.weights:render",
        _reports("weights", "weights:render_page"),
    ),
    "repair": Kind(
        "driftwalk.tasks.repair.result:Repair",
        "driftwalk_reports.repair:render",
        _reports(
            "repair",
            "repair:render_page",
            md=("repair.md", "driftwalk_reports.repair:render_markdown"),
        ),
    ),
    "bisect": Kind(
        "driftwalk.tasks.bisect.result:Bisection",
        "driftwalk_reports.bisect:render",
        _reports(
            "bisect",
            "bisect:render_page",
            md=("bisect.md", "driftwalk_reports.bisect:render_markdown"),
        ),
    ),
    "reduction": Kind(
        "driftwalk.tasks.reduce.result:Reduction",
        "driftwalk_reports.reduction:render",
        _reports(
            "reduction",
            "reduction:render_page",
            md=("issue.md", "driftwalk_reports.reduction:render_markdown"),
        ),
    ),
    "generation": Kind(
        "driftwalk.tasks.generation.result:Generation",
        "driftwalk_reports.generation:render",
        _reports(
            "generation",
            "generation:render_page",
            md=("generation.md", "driftwalk_reports.generation:render_markdown"),
            junit=("junit.xml", "driftwalk_reports.junit:render_generation"),
        ),
        beside=True,
    ),
    "contrast": _study("contrast"),
    "geometry": _study("geometry"),
    "visibility": _study("visibility"),
}

FLEET_JOB = "fleet job"
_OTHER_FILES = {
    "driftwalk.signature": "a signature; `driftwalk compare` reads it",
    "bundle_version": "a bundle that `driftwalk extract` wrote; run its replay.py",
    "points": "the manifest of a trace; `driftwalk compare` reads its folder",
}
"""Files of ours that are no results: the kind, or a key that only they have, and what to do."""


@dataclass(frozen=True)
class Tool:
    name: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Document:
    """The head of every result: who made it, when, by which command, of which model, and where."""

    kind: ClassVar[str]
    FIRST: ClassVar[tuple[str, ...]] = ()
    """The keys that come first in JSON, in this order."""
    tool: Tool
    created: str
    command: str
    model: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def placed(self, folder: Path) -> Self:
        """As its page in `folder` shows it: links to what is not there are left out."""
        return self

    def save(self, folder: str | Path, formats: Iterable[str] | None = None) -> Path:
        """Write the JSON file, the page and all other formats, or some of them."""
        load_target(REPORT_PUBLISHER)((self,), folder, formats)
        return Path(folder)


D = TypeVar("D", bound=Document)


def to_dict(document: Document) -> dict[str, Any]:
    """The JSON document: what it is, then what it says; where and with which notes comes last."""
    data: dict[str, Any] = encode(document)
    last = {name: data.pop(name) for name in ("environment", "notes")}
    kind = KINDS[document.kind]
    head = {key: document.kind if key == "kind" else kind.version for key in kind.head}
    return head | dict.fromkeys(document.FIRST) | data | last


def to_json(document: Document) -> str:
    return to_text(to_dict(document))


def read(expected: type[D], data: Any) -> D:
    """Rebuild a document of one class; what is damaged, foreign or newer is refused by name."""
    kind = kind_of(data)
    if kind != expected.kind:
        raise UsageError(
            f"Not a driftwalk result of kind {expected.kind!r}: its kind is {kind!r}. "
            "`driftwalk report` renders all kinds."
        )
    return decode(expected, data, kind)


def from_dict(data: Any) -> Document:
    """Rebuild a document of whatever kind; a job of a fleet holds that of another command."""
    if isinstance(data, dict) and data.get("kind") == FLEET_JOB:
        data = data.get("result")
    return read(KINDS[kind_of(data)].type, data)


def load(path: str | Path) -> Any:
    """Read a stored result of any kind, of this or any older version."""
    return from_dict(read_json(path))


def load_documents(
    paths: Iterable[str | Path], kinds: Iterable[str] = tuple(KINDS)
) -> list[Document]:
    """Every result of the files and folders named, in the order they were named."""
    names = [KINDS[kind].formats["json"][0] for kind in kinds]
    documents: list[Document] = []
    for file in (file for path in paths for file in _result_files(Path(path), names)):
        data = read_json(file)
        # `verify --json` prints a list; an empty one is no result, and `from_dict` says so.
        documents += map(from_dict, data if isinstance(data, list) and data else [data])
    return documents


def _result_files(path: Path, names: Sequence[str]) -> list[Path]:
    """A file itself; of a folder those of these names, else those one level below, sorted."""
    if not path.is_dir():
        return [path]
    try:
        for folders in ([path], sorted(path.iterdir())):
            files = [at / name for at in folders for name in names if (at / name).is_file()]
            if files:
                return files
    except OSError as error:
        raise UsageError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None
    raise UsageError(
        f"No {names[0]} in {str(path)!r}, nor one folder below"
        + (f"; nor {', '.join(names[1:])}" if names[1:] else "")
        + ". `driftwalk verify ... --report DIR` writes one."
    )


def kind_of(data: Any) -> str:
    """The kind of a JSON document that can be read here; anything else is a UsageError."""
    if not isinstance(data, dict):
        raise UsageError("Not a driftwalk result: it is no JSON object.")
    kind = data.get("kind")
    if kind is None:
        marked = [name for name, one in KINDS.items() if one.known_by and one.known_by in data]
        kind = next(iter([*marked, *(key for key in _OTHER_FILES if key in data)]), RESULT)
    if isinstance(kind, str) and kind in _OTHER_FILES:
        raise UsageError(f"Not a driftwalk result, but {_OTHER_FILES[kind]}.")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(f"Unknown kind of result {str(kind)[:60]!r}. {nearest(str(kind), KINDS)}")
    newest = KINDS[kind].version
    version = data.get(VERSION, data.get(BENCH_VERSION))
    if not isinstance(version, int) or isinstance(version, bool):
        raise UsageError(f"Not a driftwalk result: it has no {VERSION}.")
    if version > newest:
        raise UsageError(
            f"This result of kind {kind!r} has schema version {version}; this driftwalk reads up "
            f"to {newest}. Upgrade driftwalk to read it."
        )
    return kind
