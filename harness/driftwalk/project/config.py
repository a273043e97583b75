"""The configuration of a project: `[tool.driftwalk]` of pyproject.toml, or driftwalk.toml.

Command line and pytest plugin read the same file. All paths in it, and whatever a spec or a
factory names, are seen from the folder that the file is in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, chdir, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..budget import parse_size
from ..errors import UsageError, nearest
from ..registry import known_backends
from ..spec import Spec
from ..tolerance import DEFAULT_POLICY, Policy, make_policy, parse_rule
from .toml_table import Table, read_toml

OWN, SHARED = "driftwalk.toml", "pyproject.toml"
DEFAULT_CANDIDATE = "onnxruntime"

COMMON = (
    *("reference", "candidates", "policy", "rules", "allow-missing", "depth", "expected"),
    *("budget", "max-format-kl", "min-format-snr"),
)
"""For all models, or for one."""
TOP = (*COMMON, "golden", "probes", "models")
MODEL = ("model", "name", *COMMON, "probes", "prompts", "blocks", "trust-remote-code")
PROBE = ("prompts", "ids", "file", "set", "batch", "length", "seed")
GIVEN = ("prompts", "ids", "file", "set")


@dataclass(frozen=True)
class Common:
    """What a run is judged by."""

    reference: str | None = None
    candidates: tuple[str, ...] = (DEFAULT_CANDIDATE,)
    policy: Policy = field(default_factory=lambda: make_policy(DEFAULT_POLICY))
    allow_missing: tuple[str, ...] = ()
    depth: str = "block"
    expected: Path | None = None
    budget: str | int | None = None
    """Of memory; `--budget` goes before it."""
    max_format_kl: float | None = None
    min_format_snr: float | None = None

    @property
    def format_limits(self) -> tuple[str, ...]:
        """What a format may cost, in words."""
        kl, snr = self.max_format_kl, self.min_format_snr
        most = () if kl is None else (f"KL divergence at most {kl:g}",)
        return most if snr is None else (*most, f"SNR at least {snr:g} dB")

    @property
    def arguments(self) -> dict[str, Any]:
        """For `verify` and `verify_all`, all but the candidates."""
        return {
            "reference": self.reference,
            "policy": self.policy,
            "depth": self.depth,
            "allow_missing": self.allow_missing,
            "budget": self.budget,
            "max_format_kl": self.max_format_kl,
            "min_format_snr": self.min_format_snr,
        }


@dataclass(frozen=True)
class Inputs:
    """A probe by name, or a set of probes; nothing given is the seeded default."""

    name: str = ""
    given: Any = None
    set: str | None = None
    """As `verify(probes=...)` takes it."""
    batch: int | None = None
    length: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Run:
    """One model on one probe: what `verify_all` is asked."""

    model: str
    title: str
    common: Common
    inputs: Inputs = Inputs()
    blocks: str | None = None
    trust_remote_code: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """For `verify` and `verify_all`, all but the model and the candidates."""
        return self.common.arguments | {
            "probe": self.inputs.given,
            "probes": self.inputs.set,
            "blocks": self.blocks,
            "trust_remote_code": self.trust_remote_code,
            "batch": self.inputs.batch,
            "length": self.inputs.length,
            "seed": self.inputs.seed,
        }

    def named(self, described: Mapping[str, str]) -> dict[str, str]:
        """A report's model under the name that the configuration gives it."""
        label = described.get("label", self.model)
        source = {"source": label} if label != self.title else {}
        return {**described, "label": self.title, **source}


@dataclass(frozen=True)
class Config:
    """A whole file; without one, the defaults."""

    path: Path | None = None
    common: Common = field(default_factory=Common)
    runs: tuple[Run, ...] = ()
    golden: str = "golden"
    """The folder for golden traces, beside the tests that use them."""

    def at_home(self) -> AbstractContextManager[None]:
        """In the folder of the file: what it names is found from there."""
        return chdir(self.path.resolve().parent) if self.path else nullcontext()


def find_config(start: Path) -> Path | None:
    """The nearest file in `start` or above it, no farther than the repository's root."""
    for folder in (start, *start.parents):
        if (folder / OWN).is_file():
            return folder / OWN
        shared = folder / SHARED
        if shared.is_file() and _section(shared) is not None:
            return shared
        if (folder / ".git").exists():
            break
    return None


def load_config(path: str | Path) -> Config:
    """Read a file; every mistake in it is named with its place."""
    file = Path(path)
    data: object = _section(file) if file.name == SHARED else read_toml(file)
    if data is None:
        raise UsageError(f"{file}: has no table [tool.driftwalk].")
    where = "tool.driftwalk" if file.name == SHARED else ""
    if not isinstance(data, dict):
        raise UsageError(f"{file}: {where} should be a table.")
    top = Table(data, file, where).allow(TOP)
    common, probes = _common(top, Common()), top.table("probes")
    inputs = {name: _inputs(probes, name) for name in probes.data}
    runs = [run for table in top.tables("models") for run in _runs(table, common, inputs)]
    titles = [run.title for run in runs]
    twice = next((title for title in titles if titles.count(title) > 1), "")
    if twice:
        top.refuse(f"two models are called {twice!r}; give each a 'name' of its own.")
    golden = top.text("golden", "golden")
    if Path(golden).is_absolute() or ".." in Path(golden).parts:
        top.refuse(f"'golden' should be a folder below the tests, found {golden!r}.")
    return Config(file, common, tuple(runs), golden)


def _section(file: Path) -> Any:
    """`[tool.driftwalk]`, or None where there is no such table."""
    tool = read_toml(file).get("tool")
    return tool.get("driftwalk") if isinstance(tool, dict) else None


def _common(table: Table, base: Common) -> Common:
    """What a table says, on top of what holds for all."""
    from ..verification import DEPTHS

    reference = table.text("reference", base.reference)
    candidates = table.texts("candidates", base.candidates)
    if not candidates:
        table.refuse("'candidates' is empty; name at least one backend.")
    if reference:
        _check_spec(table, "reference", reference)
    for spec in candidates:
        _check_spec(table, "candidates", spec)
    depth = table.text("depth", base.depth)
    if depth not in DEPTHS:
        table.refuse(f"'depth' is {depth!r}. {nearest(depth, DEPTHS)}")
    expected = table.text("expected", None)
    return Common(
        reference,
        candidates,
        _policy(table, base.policy),
        table.texts("allow-missing", base.allow_missing),
        depth,
        table.file.resolve().parent / expected if expected else base.expected,
        _budget(table, base.budget),
        _limit(table, "max-format-kl", base.max_format_kl, least=0.0),
        _limit(table, "min-format-snr", base.min_format_snr),
    )


def _limit(table: Table, key: str, base: float | None, least: float | None = None) -> float | None:
    """A number, or what holds for all."""
    if key not in table.data:
        return base
    found = table.number(key)
    if least is not None and found < least:
        table.refuse(f"{key!r} should be {least:g} or more, found {found:g}.")
    return found


def _budget(table: Table, base: str | int | None) -> str | int | None:
    """A size of memory, checked."""
    given: str | int | None = table.data.get("budget", base)
    try:
        if given is not None:
            parse_size(given)
    except UsageError as error:
        table.refuse(f"'budget': {error}")
    return given


def _check_spec(table: Table, key: str, spec: str) -> None:
    """A typo is found before anything is loaded, and no framework is imported for it."""
    try:
        name = Spec.parse(spec).name
    except UsageError as error:
        table.refuse(f"{key!r}: {error}")
    if name not in known_backends():
        table.refuse(f"{key!r}: unknown backend {name!r}. {nearest(name, known_backends())}")


def _policy(table: Table, base: Policy) -> Policy:
    """A table's own policy and rules; who gives neither, takes what holds for all."""
    named, rules = table.text("policy", None), table.table("rules")
    try:
        policy = make_policy(named) if named else base
        # Globs and numbers as on the command line, where they are one text.
        for glob, value in rules.data.items():
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                rules.refuse(f"{glob!r} should be ATOL, 'ATOL,RTOL' or 'dtype'.")
        own = tuple(parse_rule(f"{glob}={value}") for glob, value in rules.data.items())
    except UsageError as error:
        table.refuse(f"{'policy' if not rules.data else 'policy or rules'!r}: {error}")
    return Policy("rules", (*own, *policy.rules), policy.calibrated) if own else policy


def _inputs(probes: Table, name: str) -> Inputs:
    """One of the probes."""
    if not name.strip() or "/" in name:
        probes.refuse(f"{name!r} cannot be the name of a probe.")
    table = probes.table(name).allow(PROBE)
    if sum(key in table.data for key in GIVEN) > 1:
        table.refuse("give one of 'prompts', 'ids', 'file' and 'set'.")
    given: Any = None
    if "prompts" in table.data:
        given = _prompts(table)
    if "ids" in table.data:
        given = _ids(table)
    if (file := table.text("file", None)) is not None:
        given = table.file.resolve().parent / file
    several = _set(table)
    shaped = [key for key in ("batch", "length", "seed") if key in table.data]
    if shaped and (given is not None or (several is not None and shaped != ["seed"])):
        table.refuse(f"{shaped[0]!r} shapes the default probe; here the inputs are given.")
    return Inputs(
        name,
        given,
        several,
        table.whole("batch", 1, None),
        table.whole("length", 1, None),
        table.whole("seed", 0, 0),
    )


def _set(table: Table) -> str | None:
    """A set of probes: one that is built in, or a path, found from the folder of the file."""
    asked = table.text("set", None)
    if asked is None or asked == "suggest" or asked.startswith("builtin:"):
        return asked
    return str(table.file.resolve().parent / asked)


def _prompts(table: Table) -> list[str]:
    return list(table.texts("prompts")) or table.refuse("'prompts' is empty.")


def _ids(table: Table) -> list[list[int]]:
    rows = table.data["ids"]
    if isinstance(rows, list) and rows and not isinstance(rows[0], list):
        rows = [rows]
    fits = isinstance(rows, list) and rows and all(isinstance(row, list) and row for row in rows)
    if not fits or not all(type(i) is int for row in rows for i in row):
        table.refuse("'ids' should be a list of whole numbers, or rows of them.")
    return rows  # type: ignore[no-any-return]


def _runs(table: Table, base: Common, probes: Mapping[str, Inputs]) -> Iterator[Run]:
    """One model: a run for each of its probes."""
    table.allow(MODEL, needed=("model",))
    model = table.text("model", "")
    name = table.text("name", model)
    common, blocks = _common(table, base), table.text("blocks", None)
    trusted = table.typed("trust-remote-code", bool, False)
    for inputs in _chosen(table, probes):
        title = f"{name}/{inputs.name}" if inputs.name else name
        yield Run(model, title, common, inputs, blocks, trusted)


def _chosen(table: Table, probes: Mapping[str, Inputs]) -> list[Inputs]:
    """The model's own prompts, the probes it names, or all there are; else the default one."""
    if "prompts" in table.data:
        if "probes" in table.data:
            table.refuse("give one of 'prompts' and 'probes'.")
        return [Inputs(given=_prompts(table))]
    names = table.texts("probes", tuple(probes))
    for name in names:
        if name not in probes:
            table.refuse(f"there is no probe {name!r}. {nearest(name, probes)}")
    return [probes[name] for name in names] or [Inputs()]
