"""Reports that only a browser is interested in, and how they become files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from driftwalk.adapter import BackendInfo
from driftwalk.layer_drift import Allowed, Blame, Culprit, Dtypes, LayerDrift, TruthErrors
from driftwalk.measure.decisions import Decisions, Flip
from driftwalk.measure.metric_list import Metrics, Nonfinite, Worst
from driftwalk.measure.norms import Norms
from driftwalk.measure.tokens import TokenErrors
from driftwalk.result import (
    Benchmark,
    Coverage,
    InputInfo,
    Observer,
    PolicyInfo,
    ProbeInfo,
    Report,
    Tool,
    load,
)
from driftwalk.states import Point
from driftwalk_reports import html, index
from unit.reports import cases

RESULTS = Path(__file__).resolve().parents[1] / "data" / "results"
"""What real runs gave."""
PAGES = RESULTS.parent / "pages"
"""The same for kinds of pages: two graphs, int8, SmolLM2 without a false alarm (screenshots.py)."""
WORDS = ("The", "Ġdrift", "Ġshows", "Ġhere", "Ġand", "Ġnot", "Ġthere", ".")
ROUNDOFF = 6e-8


def blamed(
    blocks: int = 12,
    width: int = 12,
    rows: int = 2,
    *,
    spec: str = "onnxruntime",
    fault: int | None = 3,
    seed: int = 0,
    model: str = "tiny-gpt2",
) -> Report:
    """A calibrated result with truth, blame and tokens at every point; the last row is padded."""
    random = np.random.default_rng(seed)
    names = ("embed", *(f"layer.{i}" for i in range(blocks)), "norm", "logits")
    layers = tuple(
        _layer(name, at, at - 1 - fault if fault is not None else -1, (rows, width), random)
        for at, name in enumerate(names)
    )
    found = fault is not None
    cause = f"layer.{fault}" if found else None
    benchmark = Benchmark(
        (0.011, 0.012, 0.0125, 0.014, 0.02), {name: 1e-3 + 1e-5 * i for i, name in enumerate(names)}
    )
    texts = [[WORDS[i % len(WORDS)] for i in range(width)] for _ in range(rows)]
    texts[-1][width // 2 :] = ["<pad>"] * (width - width // 2)
    return Report(
        finer_depth="module",
        tool=Tool("driftwalk", "0.1.0"),
        created="2026-01-02T03:04:05Z",
        command=f"driftwalk verify {model} --candidate {spec} --probe 'The drift'",
        model={"label": model, "sha256": "0" * 64},
        probe=ProbeInfo(
            "ab" * 32,
            f"{rows} texts",
            {"input_ids": InputInfo((rows, width), "int64")},
            tuple("".join(row).replace("Ġ", " ") for row in texts),
            tuple(tuple(row) for row in texts),
        ),
        reference=BackendInfo("torch", "torch", "cpu", "fp32", {"torch": "2.13"}, {"attn": "sdpa"}),
        candidate=BackendInfo(spec, spec, "cpu", "fp32", {"onnxruntime": "1.31"}, {"opt": "all"}),
        policy=PolicyInfo("calibrated"),
        verdict="drift" if found else "pass",
        layers=layers,
        coverage=Coverage(len(layers), len(layers)),
        outputs=Decisions(18, 1, 0, 0.9, 0.01, 0.2, (Flip((0, 3), 5, 7, 0.5, False),) * found),
        observer={"candidate": Observer(True)},
        timings={"reference": {"load": 1.5, "trace": 0.2}, "candidate": {"trace": 0.1}},
        benchmarks={"reference": benchmark, "candidate": replace(benchmark, layers={})},
        environment={"python": "3.11", "cpu": "aarch64, asimd"},
        cause=cause,
        culprit=Culprit(f"h.{fault}.mlp", 40.0, 7, (0, 3), f"h.{fault}.mlp is wrong in channel 7")
        if found
        else None,
    )


def _layer(
    name: str, at: int, since: int, shape: tuple[int, int], random: np.random.Generator
) -> LayerDrift:
    """One point; `since` counts the layers since the fault, negative before it."""
    guilty, late = since == 0, since >= 0
    scale = 10.0 + at
    own = ROUNDOFF * scale * (1e4 if guilty else 1.0) * float(random.uniform(0.9, 1.1))
    handed = ROUNDOFF * scale * (8e3 if since > 0 else 1.0) * (1.1 ** max(0, since))
    total, allowed = math.hypot(own, handed), ROUNDOFF * scale * 8
    most = 0.1 * total
    names = {"reference": ROUNDOFF * scale, "candidate": total, "allowed": allowed}
    norms = {side: Norms(x, x / 10, x / 5, x / 3) for side, x in names.items()}
    norms["yardstick"] = norms["reference"]
    worst = Worst((0, 1, 2), 1.5, 1.5 + most)
    error = total / scale
    return LayerDrift(
        Point(name, f"transformer.{name}"),
        at,
        (*shape, 16),
        Dtypes("fp32", "fp32"),
        "drift" if late else "ok",
        Metrics(
            most, 0.1, most / 9, most / 7, error, 1.0, 90.0, 40.0, 8.0, 9 * late, 384,
            Nonfinite(), worst,
        ),
        Allowed(allowed, 0.0, 1.0, total / allowed, 8.0, "l2"),
        TruthErrors(
            ROUNDOFF * scale, total, ROUNDOFF * scale, scale, total / allowed * 8,
            "reference" if late else "tie", norms,
        ),
        Blame(
            own, handed, 1.1, own / (ROUNDOFF * scale), guilty,
            {"introduced": Norms(own, own, own), "allowed": Norms(allowed, allowed, allowed)},
            _tokens(own, shape, random),
        ),
        _tokens(total, shape, random),
    )  # fmt: skip


def _tokens(total: float, shape: tuple[int, int], random: np.random.Generator) -> TokenErrors:
    """Errors per token whose squares add up; the second half of the last row is padding."""
    width = shape[1]
    parts = random.uniform(0.1, 1.0, shape)
    parts[-1, width // 2 :] = np.nan
    parts *= total / math.sqrt(float(np.nansum(parts**2)))
    return tuple(tuple(None if math.isnan(x) else x for x in row) for row in parts.tolist())


def named(names: Mapping[str, str] | Callable[[str], str], report: Report) -> Report:
    """The same report with other names at some points."""
    call = names if callable(names) else lambda name: names.get(name, name)
    layers = (
        replace(x, point=Point(call(x.point.name), call(x.point.module))) for x in report.layers
    )
    return replace(report, layers=tuple(layers), cause=call(report.cause) if report.cause else None)


def mixed() -> Report:
    """Everything a sort must put somewhere: numbers, infinities, points without a number."""
    report = cases.nonfinite()
    layers = list(report.layers)
    assert layers[1].metrics
    assert layers[1].tolerance
    layers[1] = replace(
        layers[1],
        verdict="drift",
        metrics=replace(layers[1].metrics, rel_l2=math.inf, max_abs=math.inf),
        tolerance=replace(layers[1].tolerance, needed=math.inf),
    )
    layers[5] = replace(cases.drifting().layers[5], index=5)
    layers[7] = LayerDrift(layers[7].point, 7, (2, 4, 16), Dtypes("fp32", None), "missing")
    return replace(report, layers=tuple(layers))


def long_names() -> Report:
    """Names of 200 characters that offer no place to break a line."""
    report = named(lambda name: name + "x" * (200 - len(name)), blamed())
    return replace(
        report,
        command=f"driftwalk verify {'y' * 200} --candidate {'z' * 200}",
        model={"label": "m" * 200},
        candidate=replace(
            report.candidate, spec="s" * 200, versions={"v" * 200: "w" * 200}, device="d" * 200
        ),
        probe=replace(report.probe, tokens=(("t" * 200,) * 12,) * 2, texts=("u" * 200,)),
        environment={"e" * 200: "f" * 200},
        notes=("n" * 200,),
        benchmarks={"b" * 200: Benchmark((0.1, 0.2), {})},
    )


@cache
def many() -> Report:
    return blamed(blocks=300)


def small() -> Report:
    """Everything a page can show, little of each."""
    return blamed(blocks=2, width=4, fault=1)


def unverified() -> Report:
    return cases.bad_reference()


SCRIPT = "</script><img src=x onerror=alert(1)>"
QUOTED = """it's "the" `model` ${1} {{7*7}} &lt;b&gt;"""
POISON = "</code><img src=x onerror=alert(2)><script>alert(3)</script>"


def hostile() -> Report:
    """Layer, token, text, model, notes, command and specs that try to be more than text."""
    report = named({"layer.3": SCRIPT}, blamed())
    tokens = ((SCRIPT, *report.probe.tokens[0][1:]), *report.probe.tokens[1:])
    return replace(
        report,
        model={"label": QUOTED},
        command=f"driftwalk verify {POISON}",
        notes=(POISON,),
        probe=replace(report.probe, tokens=tokens, texts=(SCRIPT,), origin=POISON),
        candidate=replace(report.candidate, spec=POISON, versions={POISON: POISON}),
        environment={POISON: POISON},
        culprit=replace(report.culprit, sentence=POISON) if report.culprit else None,
    )


def clashing() -> Report:
    """Layers named like parts of the page itself."""
    ids = ("tip", "nothing", "heat-data", "filter", "shown", "points")
    return named({f"layer.{i}": name for i, name in enumerate(ids)}, blamed())


def family(count: int = 4, blocks: int = 6, width: int = 12) -> list[Report]:
    """One question put to several candidates; the first drifts."""
    return [
        blamed(
            blocks, width, 1 if width > 100 else 2, spec=f"cand{i}", fault=None if i else 3, seed=i
        )
        for i in range(count)
    ]


CASES: dict[str, Callable[[], Report]] = {
    "pass": cases.passing,
    "drift": cases.drifting,
    "nan": cases.nonfinite,
    "costly": cases.costly,
    "misstored": cases.misstored,
    "unverified": unverified,
    "nothing": cases.nothing,
    "blamed": blamed,
    "small": small,
    "apart": cases.blamed,
    "mixed": mixed,
    "long": long_names,
    "many": many,
    "hostile": hostile,
    "clashing": clashing,
    **{
        f"real-{path.stem}": partial(load, path)
        for path in (*sorted(RESULTS.glob("*.json")), *sorted(PAGES.glob("*.json")))
    },
}


def write(path: Path) -> None:
    """The page of the case that the file is named after."""
    path.write_text(html.render(CASES[path.stem]()), "utf-8")


def write_all(folder: Path, reports: Sequence[Report]) -> Path:
    """The pages of several candidates and their index, laid out as `publish` does."""
    places = [f"{number:02d}" for number in range(len(reports))]
    for place, report in zip(places, reports, strict=True):
        others = [
            (f"../{other}/report.html", item)
            for other, item in zip(places, reports, strict=True)
            if other != place
        ]
        (folder / place).mkdir(parents=True)
        (folder / place / "report.html").write_text(html.render(report, others), "utf-8")
    entries = [(f"{place}/report.html", item) for place, item in zip(places, reports, strict=True)]
    path = folder / "index.html"
    path.write_text(index.render(entries), "utf-8")
    return path
