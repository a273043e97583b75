"""What to run next: commands made of the one that was typed, each of which works as printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from driftwalk.dtypes import FORMATS
from driftwalk.layer_drift import LayerDrift
from driftwalk.result import Report

from . import tolerances
from .numbers import count, cut

_TAKEN = (
    "--candidate -c --reference -r --prompt -p --ids --input --probe --policy --rule "
    "--allow-missing --blocks --batch --length --shape --seed --trust-remote-code"
)
BOTH_TAKE = frozenset(_TAKEN.split(" "))
"""Options of `verify` that `bisect` has, too."""
_FLAGS = (
    "--blame --no-blame --cache --no-cache --bench --spill --stream --propagation --patch "
    "--trust-remote-code --json --list --strict"
)
FLAGS = frozenset(_FLAGS.split(" "))
"""Options of `verify` without a value."""
_OF_PROBES = (
    *("--prompt", "-p", "--ids", "--input", "--probe"),
    *("--batch", "--length", "--seed", "--blocks"),
)
"""Options of model and probe that other commands have, too."""
MOST_RULES = 8
"""More than so many are one rule, for all points."""


@dataclass(frozen=True)
class Step:
    """Something to do next, and the command that does it, where there is one."""

    text: str
    command: str = ""


def steps(report: Report) -> Iterator[Step]:
    """Run it again; look closer; allow what is meant; find what causes the rest."""
    if report.command:
        yield Step("Run it again", report.command)
    words = _verify_words(report.command)
    if report.probe_set is not None:
        words = _alone(report, words)
        if words:
            yield Step("Run the worst probe alone", shlex.join(words))
    first, root = report.first_divergence, report.root_cause
    if first is not None and report.verdict == "drift" and words and report.finer_depth:
        inside = root or first
        where = cut(inside.point.name, 80) if inside else "the layers"
        deeper = [*_without(words, "--depth"), "--depth", report.finer_depth]
        yield Step(f"Look inside {where}", _join(report, deeper))
    if first is not None and (small := _reduction(report, words)):
        yield Step("Shrink it to a script for an issue", small)
    if first is not None and first.verdict == "nonfinite" and report.candidate.dtype == "fp16":
        yield Step("fp16 ends at 65504: try bf16, which has the range of fp32.")
    if report.verdict == "drift" and words:
        yield from _allowed(report, words)
    if first is not None and report.verdict == "drift" and words and _has_switches(report):
        yield Step("Find which optimisation causes it", _join(report, _bisecting(words)))


def _alone(report: Report, words: Sequence[str]) -> list[str]:
    """The words of a `verify` of the worst probe alone; none where it has no file of its own."""
    folder, row = _values(words, "--report"), report.worst
    if row is None or not row.file or not folder:
        return []
    dropped = ("--probes", "--report", "--min-coverage", "--candidate", "-c")
    kept = [word for word in _without(words, *dropped) if word != "--strict"]
    probe = f"{folder[-1].rstrip('/')}/{row.file}"
    return [*kept, "--candidate", report.candidate.spec, "--probe", probe]


def _has_switches(report: Report) -> bool:
    """Whether the candidate is at fault, and optimises what it runs."""
    flags = report.candidate.flags
    optimises = report.candidate.name == "onnxruntime" and flags.get("opt", "off") != "off"
    return report.at_fault != "reference" and (optimises or "compile" in flags)


def _bisecting(words: Sequence[str]) -> list[str]:
    """The words of a `verify` as those of a `bisect`, with the options that both take."""
    kept, place = ["driftwalk", "bisect"], 2
    while place < len(words):
        name, equals, _ = words[place].partition("=")
        has_value = name.startswith("-") and name not in FLAGS and not equals
        if not name.startswith("-") or name in BOTH_TAKE:
            kept += words[place : place + 1 + has_value]
        place += 1 + has_value
    return kept


def _reduction(report: Report, words: Sequence[str]) -> str:
    """The command that reduces the drift; empty where nothing can be taken out of the candidate."""
    cannot = report.verdict != "drift" or report.at_fault in ("reference", "both")
    cuts = report.candidate.name == "onnxruntime" or "compile" in report.candidate.flags
    if cannot or not cuts or not words or words[2].startswith("-"):
        return ""
    if report.candidate.flags.get("quantised"):
        return ""
    made = ["driftwalk", "reduce", words[2], "--candidate", report.candidate.spec]
    for name in _OF_PROBES:
        made += [word for value in _values(words, name) for word in (name, value)]
    return shlex.join([*made, *(word for word in words if word == "--trust-remote-code")])


def _allowed(report: Report, words: Sequence[str]) -> Iterator[Step]:
    """What to do where the drift is meant; nothing where no option would let the run pass."""
    if _values(words, "--expected"):
        if not report.as_expected:
            yield Step("If this difference is meant, widen its entry in the file of --expected.")
        return
    beyond = [layer for layer in report.layers if not layer.ok]
    alone = [layer for layer in beyond if layer.verdict in ("missing", "extra")]
    differing = [layer for layer in beyond if layer not in alone]
    if not beyond or not all(map(_can_be_allowed, differing)):
        return
    options = [word for rule in _rules(differing, words) for word in ("--rule", rule)]
    for layer in alone:
        options += ["--allow-missing", tolerances.glob_of(layer.point.name)]
    where = "this point" if len(beyond) == 1 else f"these {count(len(beyond))} points"
    text = f"If this difference is meant, allow it at {where}"
    # Of rules, the first that matches counts: new ones come before those that were typed.
    typed = [place for place, word in enumerate(words) if word.partition("=")[0] == "--rule"]
    place = typed[0] if typed else len(words)
    yield Step(text, _join(report, [*words[:place], *options, *words[place:]]))


def _can_be_allowed(layer: LayerDrift) -> bool:
    """Whether a tolerance lets a point pass: whole numbers are equal or not, and NaN never does."""
    floats = {layer.dtypes.reference, layer.dtypes.candidate} <= {*FORMATS}
    measured = layer.bounds is None and bool(tolerances.passing_tolerance(layer))
    return layer.verdict == "drift" and floats and measured


def _rules(layers: Sequence[LayerDrift], words: Sequence[str]) -> list[str]:
    """A rule for each point; points whose names differ in their last digit share one."""
    groups: dict[str, list[LayerDrift]] = {}
    for layer in layers:
        groups.setdefault(re.sub(r"\d$", "", layer.point.name), []).append(layer)
    # Nodes of a graph are judged by no rule but one for all.
    nodes = "op" in _values(words, "--depth")
    if groups and (nodes or len(groups) > MOST_RULES):
        return [f"*={_widest(layers)}"]
    return [f"{_glob(group)}={_widest(group)}" for group in groups.values()]


def _glob(layers: Sequence[LayerDrift]) -> str:
    names = [layer.point.name for layer in layers]
    if len(names) == 1:
        return tolerances.glob_of(names[0])
    return f"{tolerances.glob_of(names[0][:-1])}[{''.join(sorted(name[-1:] for name in names))}]"


def _widest(layers: Sequence[LayerDrift]) -> str:
    pairs = [(*tolerances.passing_tolerance(layer), "0")[:2] for layer in layers]
    atol, rtol = (max(numbers, key=float) for numbers in zip(*pairs, strict=True))
    return f"{atol},{rtol}" if float(rtol) else atol


def _verify_words(command: str) -> list[str]:
    """The words of a `driftwalk verify MODEL`; none for any other command.

    `--only` runs a part of a configuration, which has its own depth and rules. `$'` begins a word
    with escapes, which are left alone.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return []
    ours = words[:2] == ["driftwalk", "verify"] and not _values(words, "--only")
    return words if ours and len(words) > 2 and "--" not in words and "$'" not in command else []


def _join(report: Report, words: Sequence[str]) -> str:
    """A command for the candidate of this report alone."""
    if len(_values(words, "--candidate", "-c")) > 1:
        others = _without(words, "--candidate", "-c")
        words = [*others, "--candidate", report.candidate.spec]
    return shlex.join(words)


def _values(words: Sequence[str], *names: str) -> list[str]:
    """What an option was given: `--depth D`, `--depth=D`."""
    after = [value for name, value in pairwise(words) if name in names]
    joined = (word.partition("=") for word in words)
    return after + [value for name, equals, value in joined if equals and name in names]


def _without(words: Sequence[str], *names: str) -> list[str]:
    kept, place = [], 0
    while place < len(words):
        if words[place] in names:
            place += 1  # and its value
        elif words[place].partition("=")[0] not in names:
            kept.append(words[place])
        place += 1
    return kept
