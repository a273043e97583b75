"""The rows of a run as a page: counts, and everything that is not as it should be, with reasons."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_GROUPS = (
    ("out of time", r"still running"),
    ("a package that is not installed", r"ImportError|requires the \w+ library"),
    ("its own default config does not build", r"own default config"),
    ("no default probe", r"default probe"),
    ("not run by transformers itself", r"failed on the probe under transformers"),
    ("the captured states are not the model's hidden_states", r"hidden_states"),
    ("a point twice in one run", r"twice"),
    ("a block that was not there when points were found", r"was not there|ran that"),
    (
        "no stack of blocks found",
        r"no (stack|repeated)|blocks? (was|were|could) (not )?found|--blocks",
    ),
    ("the model failed on the probe", r"failed on the probe"),
    ("outputs that are no arrays", r"output"),
    ("randomness, or an unstable run", r"random|not the same|again|differ"),
    ("the truth is in doubt", r"truth|yardstick"),
    ("non-finite values", r"finite|NaN|nan"),
)


def group(reason: str) -> str:
    """The kind of a reason: what belongs together in a table."""
    return next((name for name, pattern in _GROUPS if re.search(pattern, reason)), "other")


def outcome(row: Row) -> str:
    """A row in a few words."""
    if "died" in row:
        return f"died: {row['died']}"
    if not row.get("built"):
        return "not built"
    if not row.get("probe"):
        return "no default probe"
    steps = ("self", "bf16", "eager", "fault")
    words = [f"{step} {row[step]['verdict']}" for step in steps if step in row]
    return ", ".join(words) or "runs"


def page(rows: list[Row], version: str) -> str:
    """Markdown for one version of transformers."""
    built = [row for row in rows if row.get("built") or "died" in row]
    broken = [row for row in built if row.get("own")]
    can_run = [row for row in built if not row.get("own")]
    runs = [row for row in built if row.get("probe")]
    lines = [f"## transformers {version}", "", "| | classes | |", "|---|---|---|"]
    lines += [
        _line("known", rows, rows),
        _line("built from a shrunk default config", built, rows),
        _line("… of these, not run by transformers with their own default config", broken, built),
        _line("run by transformers with driftwalk's default probe", runs, can_run),
        _line("traced, and pass against their copy", _with(runs, "self", "pass"), runs),
    ]
    for step, title in (("bf16", "`emulated:bf16` passes"), ("eager", "`torch,attn=eager` passes")):
        asked = [row for row in runs if step in row and not _cannot(row[step])]
        if not asked:
            continue
        lines.append(_line(title, _with(asked, step, "pass"), asked))
        alarms = _with(asked, step, "drift")
        true = [row for row in alarms if row[step].get("true")]
        lines.append(_line("… false alarms", [r for r in alarms if r not in true], asked))
        if true:
            lines.append(_line("… true: they differ in transformers' own float64", true, asked))
    faults = [row for row in runs if "fault" in row and "effect" in row["fault"]]
    caught = _with(faults, "fault", "drift")
    lines += [
        _line("a seeded fault that shows in an output: caught", caught, faults),
        _line("… and placed", [r for r in caught if r["fault"]["placed"]], faults),
        _line("crashed or ran out of time", [r for r in rows if "died" in r], rows),
    ]
    return "\n".join([*lines, "", *_rest(rows)]) + "\n"


def _cannot(said: Row) -> bool:
    """Whether a class has no other attention to be run with."""
    return said["verdict"] == "refused" and "attn=" in said.get("reason", "")


def _with(rows: Iterable[Row], step: str, verdict: str) -> list[Row]:
    return [row for row in rows if row.get(step, {}).get("verdict") == verdict]


def _line(title: str, some: list[Row], of: list[Row]) -> str:
    share = f"{100 * len(some) / len(of):.1f} % of {len(of):,}" if of else ""
    return f"| {title} | {len(some):,} | {share} |"


def _rest(rows: list[Row]) -> list[str]:
    """All classes that something is wrong with, by kind of reason."""
    lines: list[str] = []
    lists: tuple[tuple[str, Callable[[Row], str | None]], ...] = (
        ("Not built", lambda r: r["reason"] if r.get("built") is False else None),
        ("Own default config does not run on ids of a text", lambda r: r.get("own")),
        ("No default probe", _no_probe),
        ("Crashed or out of time", lambda r: r.get("died")),
        ("Not passed against a copy", lambda r: _wrong(r, "self")),
        ("`emulated:bf16`", lambda r: _wrong(r, "bf16")),
        ("`torch,attn=eager`", lambda r: _wrong(r, "eager")),
        ("Faults", _fault),
    )
    for title, reason in lists:
        wrong = [(row["name"], said) for row in rows if (said := reason(row)) is not None]
        if not wrong:
            continue
        kinds = Counter(group(said) for _, said in wrong)
        counts = ", ".join(f"{kind}: {count}" for kind, count in kinds.most_common())
        lines += [f"### {title}: {len(wrong)}", "", counts, "", "| class | reason |", "|---|---|"]
        lines += [f"| {name} | {_cell(said)} |" for name, said in wrong]
        lines.append("")
    return lines


def _no_probe(row: Row) -> str | None:
    return row["reason"] if row.get("probe") is False and not row.get("own") else None


def _wrong(row: Row, step: str) -> str | None:
    said = row.get(step)
    if said is None or said["verdict"] == "pass" or _cannot(said):
        return None
    if said.get("true"):
        dtype = "float32" if "in_float32" in said else "float64"
        differ = said[f"in_{dtype}"]
        how = f"{differ:.1e} of an output" if differ < 1e30 else "NaN"
        return f"true: in transformers' own {dtype} run they differ, too ({how})"
    return f"{said['verdict']}: {said.get('reason', '')}"


def _fault(row: Row) -> str | None:
    said = row.get("fault")
    if said is None or "effect" not in said or said.get("placed"):
        return None
    if said["verdict"] != "drift":
        return f"not caught ({said['verdict']}): {said['parameter']}, effect {said['effect']:.1e}"
    return f"not placed: {said['parameter']}, accused {said['cause']} ({said['module']})"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")[:240]


HEAD = """# Every model class of transformers

Each class that the installed transformers exports is built tiny from its default config, by rules
(`tests/zoo/shrinking.py`; nothing knows a model by name), and given to driftwalk with the default
probe. `tox -e zoo` makes this page anew.
"""


def write(path: Path, text: str, version: str) -> None:
    """Put this version's part into the page, beside those of other versions."""
    old = path.read_text("utf-8") if path.exists() else HEAD
    _, *parts = re.split(r"^(?=## )", old, flags=re.M)
    kept = [part for part in parts if not part.startswith(f"## transformers {version}\n")]
    parts = sorted([*kept, text], reverse=True)
    path.write_text("\n".join([HEAD.rstrip() + "\n", *(p.rstrip() + "\n" for p in parts)]), "utf-8")
