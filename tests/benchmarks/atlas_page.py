"""The rows of the atlas as pages: docs/atlas.md, and one HTML file to browse."""

from __future__ import annotations

import fnmatch
import html
import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
NOTES = Path(__file__).with_name("atlas_notes.toml")
PAGE = Path(__file__).with_name("atlas_page.html")
VERDICTS = ("pass", "drift", "unverified", "not exported", "died", "refused", "crash")
"""Of models that could be built and run; the rest says nothing about a candidate."""
SIGNS = {"pass": "✓", "drift": "✗", "unverified": "?"}
HEAD = """\
# The atlas

One class of every architecture of transformers, built tiny from its own config with random
weights (`tests/zoo`), on backends that people deploy. `tests/benchmarks/atlas.py` makes this page;
[the same to browse](atlas.html).

✓ within the allowance, ✗ drift, ? could not be verified, · no graph was made of it; nothing: not
run.
"""


def write(rows: Sequence[Row], page: Path) -> None:
    notes = tomllib.loads(NOTES.read_text("utf-8"))["note"]
    page.write_text(markdown(rows, notes), "utf-8")
    page.with_suffix(".html").write_text(browsable(rows, notes), "utf-8")


def markdown(rows: Sequence[Row], notes: Sequence[Row]) -> str:
    ran = [row for row in rows if row["verdict"] in VERDICTS]
    specs = list(dict.fromkeys(row["candidate"] for row in rows))
    parts = [HEAD, _versions(rows), "## How many\n", _counts(ran, specs), "## Drift\n"]
    parts += [_drifts(ran, notes), "## Not exported\n", _reasons(ran), "## All\n"]
    return "\n".join([*parts, _all(ran, specs)])


def _versions(rows: Sequence[Row]) -> str:
    told = Counter((row["date"], *(f"{n} {v}" for n, v in row["versions"].items())) for row in rows)
    lines = [f"- {', '.join(one)}: {count} runs" for one, count in told.items()]
    return "\n".join(["Versions:", "", *lines, ""])


def _counts(rows: Sequence[Row], specs: Iterable[str]) -> str:
    lines = [f"| | {' | '.join(VERDICTS)} | points compared |", "|---|" + "---:|" * 8]
    for spec in specs:
        own = [row for row in rows if row["candidate"] == spec]
        counts = Counter(row["verdict"] for row in own)
        seen = [row for row in own if "points" in row]
        points = f"{sum(r['compared'] for r in seen):,} of {sum(r['points'] for r in seen):,}"
        lines.append(f"| `{spec}` | {' | '.join(str(counts[v]) for v in VERDICTS)} | {points} |")
    return "\n".join([*lines, ""])


def note_on(row: Row, notes: Sequence[Row]) -> Row | None:
    """What is known of a drift; None: nothing yet."""

    def fits(note: Row) -> bool:
        pairs = ((row["name"], note["names"]), (row["candidate"], note["candidates"]))
        return all(any(fnmatch.fnmatch(text, glob) for glob in globs) for text, globs in pairs)

    return next((note for note in notes if fits(note)), None)


def _drifts(rows: Sequence[Row], notes: Sequence[Row]) -> str:
    lines = [
        "| architecture | candidate | root cause | used | whose | why |",
        "|---|---|---|---:|---|---|",
    ]
    found = sorted((r for r in rows if r["verdict"] == "drift"), key=lambda r: r["name"])
    for row in found:
        note = note_on(row, notes)
        why = (
            _cell(f"{note['text']} {note.get('reproduction', '')}") if note else "not explained yet"
        )
        where = _cell(" ".join(dict.fromkeys(filter(None, (row["root"], row["culprit"])))))
        whose = note["whose"] if note else ""
        lines.append(
            f"| {row['name']} | `{row['candidate']}` | {where or row['first']} | "
            f"{row['used']:.3g} x | {whose} | {why} |"
        )
    unknown = sum(note_on(row, notes) is None for row in found)
    return "\n".join(
        [f"{len(found)} runs; {unknown} of them are not explained yet.", "", *lines, ""]
    )


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|").replace("\n", " ")


def _reasons(rows: Sequence[Row]) -> str:
    """Why no graph was made, by the kind of error."""
    told: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row["verdict"] == "not exported":
            told[row["candidate"], _kind_of(row["reason"])] += 1
    lines = ["| candidate | reason | architectures |", "|---|---|---:|"]
    lines += [f"| `{spec}` | {_cell(why)} | {n} |" for (spec, why), n in told.most_common()]
    return "\n".join([*lines, ""])


def _kind_of(reason: str) -> str:
    if "random numbers" in reason:
        return "draws random numbers"
    behind = reason.partition("): ")[2] or reason
    return behind.split(":")[0][:60] if ":" in behind else behind[:60]


def _all(rows: Sequence[Row], specs: Sequence[str]) -> str:
    known = {(row["name"], row["candidate"]): row for row in rows}
    lines = [
        f"| architecture | {' | '.join(f'`{s}`' for s in specs)} |",
        "|---|" + "---|" * len(specs),
    ]
    lines += [
        f"| {name} | {' | '.join(_sign(known.get((name, s))) for s in specs)} |"
        for name in sorted({row["name"] for row in rows})
    ]
    return "\n".join([*lines, ""])


def _sign(row: Row | None) -> str:
    if row is None:
        return ""
    if row["verdict"] == "drift":
        return f"✗ {row['root'] or row['first']}"
    return SIGNS.get(row["verdict"], "·")


def browsable(rows: Sequence[Row], notes: Sequence[Row]) -> str:
    """One file, without anything from elsewhere: a table that can be searched."""
    body = []
    for row in sorted(rows, key=lambda r: (r["name"], r["candidate"])):
        note = note_on(row, notes) if row["verdict"] == "drift" else None
        where = row.get("root") or row.get("first") or ""
        why = f"{note['whose']}: {note['text']}" if note else row.get("reason", "")
        cells = (row["name"], row["candidate"], row["verdict"], where, why)
        texts = "".join(f"<td>{html.escape(str(text))}</td>" for text in cells)
        body.append(f'<tr class="{html.escape(row["verdict"].replace(" ", "-"))}">{texts}</tr>')
    told = html.escape(json.dumps(sorted({str(r["versions"]) for r in rows}))[:2000])
    return PAGE.read_text("utf-8").replace("@VERSIONS@", told).replace("@ROWS@", "\n".join(body))
