"""Rows as a page: what was caught, placed and falsely called, by family, by format, by tool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import every  # noqa: F401 - registers all families
from .asking import OF_PEERS, WITHOUT_CAUSE
from .case import FAMILIES, Case
from .holes import HOLES
from .peers import PEERS
from .pipelines import SAYS
from .rows import SAID, Row
from .subjects.packages import Package, known

HOW = Path(__file__).with_name("how.md")
NONE = "-"
CAUGHT = ("placed", "misplaced")
COUNTED = ("placed", "misplaced", "missed", "right", "alarm", "unverified", "refused", "broken")
WORST = 40
"""Cases that are listed by name, in each list."""
FAMILY_ROWS = 4
"""Families with fewer cases are not told apart as the weakest."""


@dataclass(frozen=True)
class Tally:
    """Rows of one kind, counted."""

    rows: tuple[Row, ...]

    @classmethod
    def of(cls, rows: Iterable[Row], owed: str) -> Tally:
        return cls(tuple(r for r in rows if r["owed"] == owed and r["outcome"] in COUNTED))

    def count(self, *outcomes: str) -> int:
        return sum(row["outcome"] in outcomes for row in self.rows)

    def share(self, count: int) -> str:
        return f"{100 * count / len(self.rows):.1f} %" if self.rows else NONE

    @property
    def in_module(self) -> str:
        """Share of the faults whose module is named; two traces or graphs name none."""
        able = [row for row in self.rows if _run(row) not in WITHOUT_CAUSE]
        right = sum(row["outcome"] in CAUGHT and row["part"] == "True" for row in able)
        return _percent(right, len(able))


def page(rows: Sequence[Row]) -> str:
    """The whole page, in Markdown."""
    kept = set().union(*(_subjects_of(one) for one in known() if one.kept))
    looked = [row for row in rows if _subject(row) not in kept]
    end = [row for row in rows if _subject(row) in kept]
    parts = [
        _head(rows),
        _short(rows),
        _peers_said(),
        _holes(rows),
        "## By run\n\n" + _by(rows, _run, lambda name: f"`{name}`: {SAYS.get(name, name)}"),
        "## Real weights\n\n" + _by(_real(rows), _subject, lambda name: name),
        "## Random weights\n\n" + _by(_tiny(rows), _subject, lambda name: name),
        _packages(rows),
        _kept(end),
        _families(rows, "fault"),
        _families(rows, "honest"),
        _others(rows),
        _told(rows),
        _worst(looked),
        HOW.read_text("utf-8"),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def summary(rows: Sequence[Row]) -> str:
    """A few lines for the terminal."""
    faults, honest = Tally.of(map(_text, rows), "fault"), Tally.of(map(_text, rows), "honest")
    caught, placed = faults.count(*CAUGHT), faults.count("placed")
    lines = [
        f"faults   {len(faults.rows):5} caught {faults.share(caught)}, "
        f"placed {faults.share(placed)}",
        f"honest   {len(honest.rows):5} false alarms {honest.count('alarm')}, "
        f"no verdict {honest.count('unverified', 'refused', 'broken')}",
    ]
    wrong = [row for row in rows if row["outcome"] in ("missed", "misplaced", "alarm", "broken")]
    lines += [f"  {row['outcome']:9} {row['id']} {row.get('why', '')}" for row in wrong]
    return "\n".join(lines) + "\n"


def _text(row: Row) -> Row:
    """A fresh row as the table would give it."""
    return {"owed": "", "part": "", **row} | {"part": str(row.get("part", ""))}


def _subject(row: Row) -> str:
    return Case.read(row["id"]).subject


def _run(row: Row) -> str:
    return Case.read(row["id"]).run


def _family(row: Row) -> str:
    return Case.read(row["id"]).family


def _real(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if _subject(row).startswith("real:")]


def _tiny(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not _subject(row).startswith("real:")]


def _subjects_of(package: Package) -> set[str]:
    """Names of the models that are made of a package's weights."""
    from .subjects.real import MODELS

    return {f"real:{name}" for name in MODELS.get(package.name, {})}


def _head(rows: Sequence[Row]) -> str:
    counted = [row for row in rows if row["outcome"] in COUNTED]
    real = _real(counted)
    honest = [row for row in real if row["owed"] == "honest"]
    seconds = sum(float(row["seconds"] or 0) for row in counted)
    void = sum(row["outcome"] == "void" for row in rows)
    places = Counter(row["on"] for row in counted)
    where = ", ".join(f"{count:,} with {name}" for name, count in places.most_common() if name)
    return f"""# The proving ground

Cases that no rule was made on: models are changed in ways that must be caught, and in ways that
must pass, and driftwalk is asked about each. This page says how it is; nothing was mended for it.

{len(counted):,} cases, {len(real):,} of them on real weights ({len(honest):,} honest ones there);
{void:,} more were void (a fault without any effect in float64, or a rewrite that is not the same
function). Asked {where}; driftwalk took {seconds / 3600:.1f} hours of one core.
`tox -e proving -- whole` makes this page anew from a clean clone; every row is in
[measurements/proving.tsv](measurements/proving.tsv)."""


def _short(rows: Sequence[Row]) -> str:
    """Driftwalk beside its peers: the table that is read first."""
    names = [peer.name for peer in PEERS]
    head = "| | driftwalk | " + " | ".join(names) + " |"
    lines = [head, "|---|" + "---|" * (len(names) + 1)]
    rows = [row for row in rows if _run(row) in OF_PEERS]
    faults, honest = Tally.of(rows, "fault"), Tally.of(rows, "honest")
    said = {name: [_peer_counts(t.rows, name) for t in (faults, honest)] for name in names}
    for title, own, mine in (
        ("faults it was asked about", f"{len(faults.rows):,}", lambda f, h: f"{f.total():,}"),
        (
            "**caught**",
            f"**{faults.share(faults.count(*CAUGHT))}**",
            lambda f, h: _percent(f["placed"] + f["differs"], f.total()),
        ),
        (
            "… and the right layer named",
            faults.share(faults.count("placed")),
            lambda f, h: _percent(f["placed"], f.total()),
        ),
        ("honest runs it was asked about", f"{len(honest.rows):,}", lambda f, h: f"{h.total():,}"),
        (
            "**honest runs called wrong**",
            f"**{honest.share(honest.count('alarm'))}**",
            lambda f, h: _percent(h["placed"] + h["differs"], h.total()),
        ),
        (
            "no verdict (unverified, refused, failed)",
            _percent(
                sum(t.count("unverified", "refused", "broken") for t in (faults, honest)),
                len(faults.rows) + len(honest.rows),
            ),
            lambda f, h: NONE,
        ),
    ):
        cells = [mine(*said[name]) for name in names]
        lines.append(f"| {title} | {own} | " + " | ".join(cells) + " |")
    return "\n".join(["## In ten seconds", "", *lines, "", PEERS_NOTE])


PEERS_NOTE = """Each tool at its defaults, by its own code, on the runs that peers can be asked
about (`fp32`, `bf16`, `fp16`, `int8`, `onnx`); what a peer cannot run does not count for it. Two
numbers belong together: a tool that calls everything wrong catches everything. All runs are further
down."""


def _peer_counts(rows: Iterable[Row], name: str) -> Counter[str]:
    """What a peer said of the cases that it could run."""
    place = sorted(peer.name for peer in PEERS).index(name)
    words = {letter: said for said, letter in SAID.items()}
    said = (words[row["peers"][place]] for row in rows if row["peers"])
    return Counter(one for one in said if one != "cannot")


def _percent(count: int, of: int) -> str:
    return f"{100 * count / of:.1f} %" if of else NONE


def _peers_said() -> str:
    lines = [
        "## The peers",
        "",
        "| tool | version | what it is | what it cannot do |",
        "|---|---|---|---|",
    ]
    lines += [f"| {p.name} | {p.version} | {p.says} | {p.cannot} |" for p in PEERS]
    return "\n".join(lines)


def _by(rows: Sequence[Row], key: Callable[[Row], str], title: Callable[[str], str]) -> str:
    names = list(dict.fromkeys(sorted(key(row) for row in rows)))
    lines = [
        "| | faults | caught | placed | right module | honest | false alarms | no verdict |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name in names:
        some = [row for row in rows if key(row) == name]
        lines.append(f"| {title(name)} | {_cells(some)} |")
    lines.append(f"| **all** | {_cells(rows)} |")
    return "\n".join(lines)


def _cells(rows: Sequence[Row]) -> str:
    faults, honest = Tally.of(rows, "fault"), Tally.of(rows, "honest")
    none = sum(t.count("unverified", "refused", "broken") for t in (faults, honest))
    alarms = honest.count("alarm")
    cells = (
        f"{len(faults.rows):,}",
        faults.share(faults.count(*CAUGHT)),
        faults.share(faults.count("placed")),
        faults.in_module,
        f"{len(honest.rows):,}",
        f"{alarms:,} ({honest.share(alarms)})",
        f"{none:,}",
    )
    return " | ".join(cells)


def _families(rows: Sequence[Row], owed: str) -> str:
    """One line a family, those that fare worst first."""
    lines = {
        "fault": [
            "## Faults, by family",
            "",
            "| what was done | cases | caught | placed | right module | no verdict |",
        ],
        "honest": [
            "## Honest changes, by family",
            "",
            "| what was done | cases | false alarms | no verdict |",
        ],
    }[owed]
    lines.append("|---|" + "--:|" * (lines[-1].count("|") - 2))
    tallies = {}
    for name, family in FAMILIES.items():
        tally = Tally.of((row for row in rows if _family(row) == name), owed)
        if tally.rows:
            tallies[name] = (family, tally)
    worst = "alarm" if owed == "honest" else "placed"
    key = lambda item: item[1][1].count(worst) / len(item[1][1].rows)  # noqa: E731
    for name, (family, tally) in sorted(tallies.items(), key=key, reverse=owed == "honest"):
        none = tally.count("unverified", "refused", "broken")
        if owed == "honest":
            cells = [f"{tally.count('alarm')} ({tally.share(tally.count('alarm'))})"]
        else:
            counts = (tally.count(*CAUGHT), tally.count("placed"))
            cells = [*(tally.share(count) for count in counts), tally.in_module]
        told = f"{family.says} (`{name}`)"
        lines.append(f"| {told} | {len(tally.rows)} | {' | '.join(cells)} | {none} |")
    return "\n".join(lines)


def _others(rows: Sequence[Row]) -> str:
    """What may pass or be refused, and what cannot be decided."""
    lines = [
        "## Odd, unsteady and undecidable cases",
        "",
        "| | cases | right | passed | called drift | other |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for owed, title in (
        ("odd", "must pass or be refused by name"),
        ("unsteady", "differ from call to call, or when watched: must be drift or unverified"),
        ("undecidable", "must be unverified"),
    ):
        tally = Tally.of(rows, owed)
        counts = [tally.count(one) for one in ("right", "missed", "alarm")]
        cells = (len(tally.rows), *counts, len(tally.rows) - sum(counts))
        lines.append(f"| {title} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _holes(rows: Sequence[Row]) -> str:
    """What was known to be answered wrongly, and what is answered today."""
    made = {row["id"]: row for row in rows}
    lines = ["## Holes that were known", "", "| what was done | case | answer |", "|---|---|---|"]
    for title, some in HOLES.items():
        lines.append(f"| **{title}** | | |")
        for words, names in some.items():
            for name in names:
                row = made.get(f"{name}/0")
                told = "not asked" if row is None else _answer(row)
                lines.append(f"| {words} | {name} | {told} |")
    return "\n".join(lines)


def _answer(row: Row) -> str:
    """An outcome with what else is wrong about it."""
    more = [row["told"]] if row["told"] else []
    if row["outcome"] in CAUGHT and row["part"] != "True":
        more.append("module wrong or not named")
    return "; ".join([row["outcome"], *more])


def _told(rows: Sequence[Row]) -> str:
    """What reports of faults say that is not so."""
    drifts = [row for row in rows if row["owed"] == "fault" and row["outcome"] in CAUGHT]
    counts = Counter(one for row in drifts for one in row["told"].split(",") if one)
    lines = ["## Told wrongly", "", f"Of {len(drifts):,} faults that were caught:", ""]
    names = {
        "ties in a run that drifts": "flips of the output are called ties, in a run that drifts",
        "another weight": "a weight that is not wrong is named as the cause",
        "the cause is no weight": "the report says that the cause is no weight, and it is one",
        "one cause of two": "both sides are wrong, and one of the two causes is told",
    }
    lines += [f"- {names[name]}: {counts[name]}" for name in names]
    parts = [row for row in drifts if row["outcome"] == "placed" and row["part"] != "True"]
    lines.append(
        f"- the layer is right, and the module inside is not, or none is named: {len(parts)}"
    )
    return "\n".join(lines)


def _packages(rows: Sequence[Row]) -> str:
    """Where the real weights come from, and which of them these rows lack."""
    asked = {_subject(row) for row in rows}
    lines = [
        "### The packages",
        "",
        "| package | version | weights | licence |",
        "|---|---|---|---|",
    ]
    for one in known():
        told = f"{one.kind}{'; kept for the end' if one.kept else ''}"
        told += "" if asked & _subjects_of(one) else "; **not asked**"
        lines.append(f"| {one.name} ({one.registry}) | {one.version} | {told} | {one.licence} |")
    return "\n".join(lines)


def _kept(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    note = "Two packages are run for this page alone: nobody looked into their cases."
    return f"## Kept for the end\n\n{note}\n\n" + _by(rows, _subject, lambda name: name)


def _worst(rows: Sequence[Row]) -> str:
    """The cases that fared worst, by name; those kept for the end are not among them."""
    parts = ["## The worst, by name"]
    for outcome, title, order in (
        ("alarm", "Honest, and called drift", lambda r: -float(r["used"] or 0)),
        ("missed", "Wrong, and passed", lambda r: -float(r["effect"] or 0)),
        ("misplaced", "Wrong, caught, and placed elsewhere", lambda r: -float(r["effect"] or 0)),
        ("broken", "No answer at all", lambda r: r["id"]),
    ):
        some = sorted((row for row in rows if row["outcome"] == outcome), key=order)
        if not some:
            continue
        counts = Counter(_family(row) for row in some)
        most = ", ".join(f"{name} {count}" for name, count in counts.most_common(12))
        parts.append(f"### {title}: {len(some)}\n\n{most}\n\n" + _list(some[:WORST]))
    return "\n\n".join(parts)


def _list(rows: Sequence[Row]) -> str:
    lines = ["| case | effect in float64 | times the allowance | named | right | why |"]
    lines += ["|---|--:|--:|---|---|---|"]
    for row in rows:
        why = row["why"].replace("|", "\\|").replace("<", "&lt;")
        cells = (row["id"], row["effect"], row["used"], row["cause"], row["right"], why)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
