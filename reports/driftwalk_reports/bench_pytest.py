"""A benchmark in pytest-benchmark's own JSON, so that `pytest-benchmark compare` reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from driftwalk.tasks.bench.result import BenchReport, Case, Entry
from driftwalk.tasks.bench.timing_stats import summarise

from .door import renderer
from .numbers import cut
from .view import model_name

FORMAT_VERSION = "5.0.0"
"""Of pytest-benchmark, whose layout this is."""


@renderer
def render(report: BenchReport) -> str:
    """One group per case, one benchmark per backend."""
    model = cut(model_name(report.model), 80)
    document = {
        "machine_info": {
            "node": "driftwalk",
            "processor": report.environment.get("machine", ""),
            "machine": report.environment.get("machine", ""),
            "python_version": report.environment.get("python", ""),
            "system": report.environment.get("platform", ""),
            "cpu": {"brand_raw": report.environment.get("machine", "")},
        },
        "commit_info": {"id": "unknown", "dirty": False, "project": model, "branch": "unknown"},
        "benchmarks": [
            _benchmark(model, case, entry)
            for case in report.cases
            for entry in case.entries
            if entry.bench.samples
        ],
        "datetime": report.created,
        "version": FORMAT_VERSION,
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _benchmark(model: str, case: Case, entry: Entry) -> dict[str, Any]:
    shape = f"{case.batch}x{case.length}" if case.length else str(case.batch)
    spec = cut(entry.backend.spec, 80)
    name = f"{model}[{shape}-{spec}]"
    return {
        "group": f"{model} {shape}",
        "name": name,
        "fullname": f"driftwalk::{name}",
        "params": {"backend": spec, "batch": case.batch, "length": case.length},
        "param": f"{shape}-{spec}",
        "extra_info": {"tokens": case.tokens, "dtype": entry.backend.dtype},
        "options": {
            "disable_gc": False,
            "timer": "perf_counter",
            "min_rounds": len(entry.bench.samples),
            "max_time": 0.0,
            "min_time": 0.0,
            "warmup": True,
        },
        "stats": _stats(entry.bench.samples),
    }


def _stats(samples: Sequence[float]) -> dict[str, Any]:
    row = np.sort(np.asarray(samples, np.float64))
    found = summarise(samples)
    q1, q3 = found.q1, found.q3
    mean = float(row.mean())
    deviation = float(row.std(ddof=1)) if len(row) > 1 else 0.0
    fence = 1.5 * (q3 - q1)
    far = int(((row < q1 - fence) | (row > q3 + fence)).sum())
    wide = int((np.abs(row - mean) > deviation).sum())
    inside = row[(row >= q1 - fence) & (row <= q3 + fence)]
    return {
        "min": found.least,
        "max": float(row[-1]),
        "mean": mean,
        "stddev": deviation,
        "rounds": found.runs,
        "median": found.median,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": far,
        "stddev_outliers": wide,
        "outliers": f"{wide};{far}",
        "ld15iqr": float(inside[0]),
        "hd15iqr": float(inside[-1]),
        "ops": 1 / mean if mean > 0 else 0.0,
        "total": float(row.sum()),
        "data": [float(value) for value in samples],
        "iterations": 1,
    }
