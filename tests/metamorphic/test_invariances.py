"""What must not matter to a verdict: order, repetition, what is stored, rows, depth, blame."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import driftwalk
from driftwalk.result import Report
from metamorphic.subjects import (
    COPY,
    IDS,
    OTHER_DRAW,
    PAIRS,
    TABLE,
    Subject,
    cases,
    metrics,
    numbers,
    right,
    run,
    scaled,
    used,
    verified,
)

QUICK = [one for one in TABLE if not one.is_slow]
SUMMED = 1e-12
"""Relative: the same numbers, summed in another order."""


def first_of_each_model() -> list[Subject]:
    models = dict.fromkeys(model for model, _ in PAIRS)
    return [next(one for one in QUICK if one.model == name and one.faulty) for name in models]


@cases([one for one in QUICK if one.faulty])
def test_a_second_run_that_calibrates_afresh_gives_the_same_bits(subject: Subject) -> None:
    first, second = verified(subject), run(subject, cache=False)
    assert second.verdict == first.verdict
    assert numbers(second.layers) == numbers(first.layers)


@cases([Subject("llama", COPY, True), Subject("llama", "emulated:bf16")])
def test_what_is_stored_does_not_matter(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTWALK_CACHE", str(tmp_path))
    cold = run(subject)
    assert list(tmp_path.rglob("*.json")), "nothing was stored"
    warm = run(subject)
    for report in (warm, verified(subject)):
        assert report.verdict == cold.verdict
        assert numbers(report.layers) == numbers(cold.layers)


def test_the_order_of_candidates_does_not_matter() -> None:
    model, probe = right("llama"), {"input_ids": IDS}
    candidates = {"copy": right("llama"), "fault": scaled("llama", 1.05), "bf16": "emulated:bf16"}

    def in_order(names: list[str]) -> dict[str, Report]:
        given = [candidates[name] for name in names]
        reports = driftwalk.verify_all(model, given, probe=probe, blame=False)
        return dict(zip(names, reports, strict=True))

    forwards, backwards = in_order(list(candidates)), in_order(list(candidates)[::-1])
    for name, candidate in candidates.items():
        alone = driftwalk.verify(model, candidate, probe=probe, blame=False)
        for report in (forwards[name], backwards[name]):
            assert report.verdict == alone.verdict == ("drift" if name == "fault" else "pass")
            assert numbers(report.layers) == numbers(alone.layers)


@pytest.mark.parametrize("times", [1.0, 1.05])
def test_the_order_of_a_set_does_not_matter(times: float) -> None:
    model, port = right("llama"), scaled("llama", times)
    probes = [{"input_ids": IDS}, {"input_ids": IDS[:, :5] + 1}, {"input_ids": IDS[:1] - 2}]
    forwards, backwards = (
        driftwalk.verify(model, port, probes=order, blame=False) for order in (probes, probes[::-1])
    )
    rows, turned = (
        {row.sha256: (row.verdict, row.used, row.kl, row.flips) for row in report.probes}
        for report in (forwards, backwards)
    )
    assert len(rows) == 3
    assert rows == turned
    assert forwards.probe.sha256 == backwards.probe.sha256
    assert numbers(forwards.layers) == numbers(backwards.layers)
    for probe in probes:
        alone = driftwalk.verify(model, port, probe=probe, blame=False)
        assert rows[alone.probe.sha256][:2] == (alone.verdict, max(used(alone.layers).values()))


@cases(QUICK)
def test_the_order_of_rows_does_not_matter(subject: Subject) -> None:
    straight = verified(subject)
    turned = run(subject, probe={name: array[::-1].copy() for name, array in subject.probe.items()})
    assert turned.verdict == straight.verdict
    was, now = metrics(straight.layers), metrics(turned.layers)
    assert was.keys() == now.keys()
    for name, given in was.items():
        assert now[name] == pytest.approx(given, rel=SUMMED), name
    of_tokens = [(a.tokens, b.tokens) for a, b in zip(straight.layers, turned.layers, strict=True)]
    assert all(a is not None and tuple(a) == tuple(b)[::-1] for a, b in of_tokens)
    assert used(turned.layers) == pytest.approx(used(straight.layers), rel=OTHER_DRAW)


@cases(first_of_each_model())
def test_the_depth_does_not_matter(subject: Subject) -> None:
    blocks, modules = verified(subject), run(subject, depth="module")
    assert modules.verdict == blocks.verdict
    found = metrics(modules.layers)
    assert len(found) > len(blocks.layers)
    for name, given in metrics(blocks.layers).items():
        assert found[name] == given, name


@cases(first_of_each_model())
def test_blame_does_not_matter(subject: Subject) -> None:
    without, blamed = verified(subject), run(subject, blame="auto")
    assert blamed.cause is not None
    assert blamed.verdict == without.verdict == "drift"
    assert numbers(blamed.layers) == numbers(without.layers)


def test_rows_beside_a_probe_do_not_matter_to_its_verdict() -> None:
    model = right("llama")
    probes = [IDS[:1], IDS, np.concatenate([IDS, IDS[::-1] + 1])]
    for times, verdict in ((1.0, "pass"), (1.05, "drift")):
        for ids in probes:
            given = {"probe": {"input_ids": ids}, "blame": False}
            assert driftwalk.verify(model, scaled("llama", times), **given).verdict == verdict
