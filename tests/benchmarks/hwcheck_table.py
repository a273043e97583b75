"""The tables of docs/hwcheck.md for one device: what each check took and found, and for what.

    python tests/benchmarks/hwcheck_table.py cuda quick [GOLDEN]

Prints Markdown.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import driftwalk
from driftwalk.tasks.hardware.result import DeviceResult, HardwareReport


def head(report: HardwareReport) -> list[str]:
    (device,) = report.devices
    told = {**device.identity, **device.details}
    return [
        f"### `{device.device}`, `{report.level}`: {report.verdict}, {report.seconds:.0f} s",
        "",
        "; ".join(f"{name} {value}" for name, value in told.items()),
        "",
        "| check | verdict | took | |",
        "|---|---|--:|---|",
        *(f"| {c.name} | {c.verdict} | {c.seconds:.1f} s | {c.sentence} |" for c in device.checks),
    ]


def repeats(device: DeviceResult) -> list[str]:
    lines = ["", "| repeats of | runs | that differ | bits |", "|---|--:|--:|---|"]
    for name in ("repeat", "load"):
        check = device.check(name)
        for case in check.cases if check else ():
            wrong = sum(m.case == case.name for m in device.mismatches)
            lines.append(f"| {case.name} | {case.repeats} | {wrong} | `{case.digest[:12]}` |")
    return lines


def units(device: DeviceResult) -> list[str]:
    """By kind and dtype: how many cases, how many repeats, the largest error of the allowed."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    left = []
    check = device.check("units")
    for case in check.cases if check else ():
        kind, dtype, *_ = (*case.name.split(), "")
        if not case.repeats:
            left.append(f"{case.name}: {case.note}")
            continue
        key = (kind, "words" if kind in ("copy", "memory") else dtype)
        found[key].append((case.repeats, case.worst or 0.0))
    lines = ["", "| unit | dtype | cases | repeats | largest error, of the allowed |"]
    lines.append("|---|---|--:|--:|--:|")
    for (kind, dtype), made in found.items():
        worst = max(value for _, value in made)
        total = sum(count for count, _ in made)
        shown = f"{worst:.2f}" if worst else ""
        lines.append(f"| {kind} | {dtype} | {len(made)} | {total} | {shown} |")
    return [*lines, *(f"- not run: {text}" for text in left)]


def sensors(device: DeviceResult) -> list[str]:
    names = dict.fromkeys(name for reading in device.readings for name in reading.values)
    lines = ["", "| sensor | least | most |", "|---|--:|--:|"]
    for name in names:
        told = [r.values[name] for r in device.readings if name in r.values]
        lines.append(f"| {name} | {min(told):.0f} | {max(told):.0f} |")
    held = {reason for reading in device.readings for reason in reading.throttled}
    return [*lines, f"- clocks held down: {', '.join(sorted(held)) or 'never'}"] if names else []


def main() -> int:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    level = sys.argv[2] if len(sys.argv) > 2 else "quick"
    golden = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    report = driftwalk.hwcheck(device, level, golden=golden)
    (found,) = report.devices
    from driftwalk_reports.hardware import invariance_table, look

    lines = [*head(report), *repeats(found), *units(found), *sensors(found)]
    matrix = look(report).devices[0].matrix
    if matrix is not None:
        lines += ["", invariance_table(matrix)]
    sys.stdout.write("\n".join(lines) + "\n")
    return report.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
