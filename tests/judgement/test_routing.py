"""Choices inside a model are decisions: ties, changes, margins, and routers at fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import driftwalk
import routed_models as routed
import zoo
from driftwalk.chosen import Choice, other_rows
from driftwalk.judge import routers, routing
from driftwalk.judge.constants import TIE_REACH
from driftwalk.judge.margins import HonestChoice
from driftwalk.judge.routing import Routed, excused_rows
from driftwalk.layer_drift import Allowed, Dtypes, LayerDrift
from driftwalk.registry import create
from driftwalk.routing import Flips
from driftwalk.states import Point
from driftwalk.verification import Addition, verify_all
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_reports import html, markdown, terminal

LAYER = 2


def told(report):
    return " ".join(terminal.render(report).split())


def flips(report):
    found = [place.candidate for place in report.routing.places]
    names = ("others", "ties", "followed", "changes")
    return {name: sum(getattr(one, name) for one in found) for name in names}


def test_drift_after_a_tie_is_told_as_such():
    """Seed 1 of Qwen3-MoE: tokens go to other experts than in the truth, and all is right."""
    model = routed.build("Qwen3-MoE", 1)
    first, again = (driftwalk.verify(model, "emulated:bf16,attn=eager") for _ in range(2))
    assert first.ok, first.first_divergence
    routing = first.routing
    assert (routing.verdict, routing.seen, routing.dtype) == ("ties", "recorded", "bf16")
    counted = flips(first)
    assert counted["others"] == counted["ties"] + counted["followed"] > 0
    assert counted["changes"] == 0
    parts = {part.point: part for part in routing.parts}
    assert list(parts) == [layer.point.name for layer in first.layers]
    assert parts["layer.0"].routing > 5 * parts["layer.0"].arithmetic > 0
    assert all(part.used < 1 for part in routing.parts)
    for layer in first.layers:  # the two parts make up the error
        part, error = parts[layer.point.name], layer.truth.candidate / layer.truth.scale
        assert abs(part.routing - part.arithmetic) <= 1.001 * error
        assert error <= 1.001 * (part.routing + part.arithmetic)
    assert again.routing == routing  # from the stored calibration
    assert "ties, not bugs" in told(first)
    assert "of the choices in" in told(first) or "of all choices" in told(first)
    assert "What the model chooses" in html.render(first)
    assert "not the truth's" in markdown.render(first)


CASES = [
    ("Mixtral", routed.TOP_K, "choice"),
    ("Qwen3-MoE", routed.NORM, "weights"),
    ("AFMoE", routed.BIAS, "choice"),
    ("DeepSeek-V3", routed.SOFTMAX, "choice"),
]


@pytest.mark.parametrize(("name", "fault", "kind"), CASES, ids=str)
def test_a_router_fault_is_called_one_and_placed(name, fault, kind):
    if name not in routed.MODELS:
        pytest.skip(f"needs {name}")
    model = routed.build(name)
    report = driftwalk.verify(model, routed.faulty(model, name, fault, LAYER))
    path = routed.router_path(model, LAYER)
    assert report.verdict == "drift"
    assert report.cause == f"layer.{LAYER}"
    found = report.routing.fault
    assert (found.kind, found.point, found.module) == (kind, f"layer.{LAYER}", path)
    assert report.culprit.module == path
    assert report.routing.verdict == {"choice": "change", "weights": "weights"}[kind]
    assert "A routing change" in told(report)
    if fault == routed.TOP_K:
        assert (found.best, found.expected) == (3, 2)


@pytest.mark.parametrize("fault", routed.NOT_ROUTERS)
def test_no_router_is_accused_of_what_others_do(fault):
    """What a router is given is wrong, or what comes after it: its choices may change, rightly."""
    model = routed.build("Mixtral")
    report = driftwalk.verify(model, routed.faulty_elsewhere(model, fault, LAYER))
    assert report.verdict == "drift"
    assert report.cause == f"layer.{LAYER}"
    assert report.routing.fault is None
    assert report.routing.verdict == "handed down"
    assert "gate" not in report.culprit.module
    assert "No router is at fault" in told(report)


def test_what_a_recording_chose_is_told_by_its_states(tmp_path):
    model = routed.build("Qwen3-MoE", 1)
    with driftwalk.backend("emulated:bf16", model) as backend:
        backend.trace(make_probe(open_model(model))).save(tmp_path / "a.trace")
    report = driftwalk.verify(model, f"trace:{tmp_path / 'a.trace'}")
    assert report.ok
    assert report.routing.seen == "implied"
    assert flips(report)["others"] > 0
    assert "as its states imply" in told(report)


def test_without_choices_nothing_is_run_and_nothing_told():
    model = open_model(zoo.build("gpt2"))
    probe, seen = make_probe(model), []
    with create("truth", model) as truth:
        truth.jittered(probe, 2.0**-9, lambda state: None)
        assert truth.chosen(probe, seen.append) == ()
    assert seen == []
    assert driftwalk.verify(zoo.build("gpt2"), "emulated:bf16").routing is None


def choice(scores, taken=None, best=2, descending=True):
    scores = np.asarray(scores, dtype=np.float64)
    own = np.argsort(-scores if descending else scores, axis=-1)[:, :best]
    taken = own if taken is None else np.asarray(taken)
    return Choice("gate:topk#1", "gate", "layer.0", "topk", taken, own, scores, descending)


def honest(rows, noise=0.01, **changes):
    known = HonestChoice(
        *("gate:topk#1", "gate", "layer.0", "topk"),
        of=4,
        descending=True,
        ordered=False,
        typical=noise,
        share=0.0,
        roundoff=0.0,
        weights_noise=0.0,
        taken=np.zeros((rows, 2), dtype=np.int64),
        noise=np.full(rows, noise),
        margins=np.zeros(rows),
    )
    return replace(known, **changes)


def test_a_flip_is_a_tie_up_to_so_many_times_the_noise():
    gap = TIE_REACH * 0.01
    close, far = 0.5 - 0.99 * gap, 0.5 - 1.01 * gap
    made = choice(
        [[1, 0.5, close, 0.1], [1, 0.5, far, 0.1], [1, 0.5, far, 0.1], [1, 0.5, 0.3, 0.1]],
        [[0, 2], [0, 2], [1, 0], [0, 3]],
    )
    excess = honest(4).excess(made)
    assert 0.98 < excess[0] < 1 < excess[1] < 1.02
    assert excess[2] == 0  # the same two in another order
    assert excess[3] == pytest.approx(5)
    assert other_rows(made.taken, made.own).tolist() == [True, True, False, True]


def test_the_smallest_may_be_wanted_and_order_may_count():
    up = choice([[0.1, 0.2, 0.21, 5.0]], [[0, 2]], descending=False)
    assert 0 < honest(1, descending=False).excess(up)[0] < 1
    up = choice([[0.1, 0.2, 0.9, 5.0]], [[0, 2]], descending=False)
    assert honest(1, descending=False).excess(up)[0] > 1
    row = replace(choice([[4.0, 3.0, 2.99, 1.0]], [[0, 2, 1, 3]], best=4), ordered=True)
    assert 0 < honest(1, ordered=True).excess(row)[0] < 1
    assert honest(1, ordered=True, typical=1e-4, noise=np.full(1, 1e-4)).excess(row)[0] > 1


def test_another_number_of_places_is_no_tie():
    made = replace(choice([[1.0, 0.5, 0.4, 0.1]]), taken=np.array([[0, 1, 2]]))
    assert honest(1).excess(made)[0] == np.inf


def row(name, needed, norm="l2"):
    used = Allowed(1.0, 0.0, 1.0, needed, 4.0, norm)
    verdict = "drift" if needed > 1 else "ok"
    dtypes = Dtypes("fp32", "bf16")
    return LayerDrift(Point(name), 0, (1,), dtypes, verdict, None, used, sides={"candidate": used})


def side(changes, used):
    flips = {"gate": Flips(1 + changes, 1, 0, changes)}
    arithmetic = {"layer.0": Allowed(1.0, 0.0, 1.0, used)}
    return Routed("candidate", None, None, {}, True, flips, (), arithmetic, {"gate": 0.3})


def test_drift_by_ties_alone_is_none():
    rows = (row("layer.0", 3.0), row("layer.1", 0.5))
    made, excused = excused_rows(rows, {"candidate": side(0, 0.4)}, {})
    assert excused == ("layer.0",)
    assert [one.verdict for one in made] == ["ok", "ok"]
    assert made[0].tolerance.needed == 0.4


def test_a_change_or_wrong_arithmetic_or_wrong_scores_excuse_nothing():
    rows = (row("layer.0", 3.0),)
    wrong_scores = replace(side(0, 0.4), scores={"gate": 1.2})
    for one in (side(1, 0.4), side(0, 1.2), wrong_scores):
        assert excused_rows(rows, {"candidate": one}, {}) == (rows, ())


def test_an_error_that_a_layer_made_itself_is_excused_by_no_total():
    """What the layer introduces must be within its own allowance, too: here nothing says so."""
    rows = (row("layer.0", 3.0, "introduced l2"),)
    assert excused_rows(rows, {"candidate": side(0, 0.4)}, {"candidate": object()}) == (rows, ())


@pytest.mark.parametrize(
    ("used", "within", "recorded", "is_excused"),
    [
        (0.4, {"layer.0"}, True, True),
        (1.2, {"layer.0"}, True, False),
        (0.4, set(), True, False),
        (0.4, {"layer.0"}, False, False),
    ],
)
def test_who_chose_as_the_truth_is_not_judged_by_what_another_block_chose(
    monkeypatch, used, within, recorded, is_excused
):
    """At close choices the reference's block, run on the candidate's states, may choose otherwise:
    then only the candidate's own choices say what it made itself (SuperGlue in bf16)."""
    alike = replace(side(0, 0.4), flips={"gate": Flips(0, 0, 0, 0)}, arithmetic={})
    alike = replace(alike, recorded=recorded)
    total = {"layer.0": Allowed(1.0, 0.0, 1.0, used)}
    monkeypatch.setattr(routing, "_total", lambda one: total)
    monkeypatch.setattr(routing, "_within_by_own_doing", lambda one, truth: within)
    rows = (row("layer.0", 3.0, "introduced l2"),)
    made, excused = excused_rows(rows, {"candidate": alike}, {"candidate": object()})
    assert excused == (("layer.0",) if is_excused else ())
    assert made[0].ok is is_excused


def test_one_more_run_is_judged_with_what_routing_takes_back(monkeypatch):
    """As `bisect` asks for them: a run cured of its drift may still choose otherwise at ties."""
    seen = []

    class Asks(Addition):
        def inspect(self, report, candidate, probe, rows):
            monkeypatch.setattr(routers, "excused_rows", taken_back)
            seen.append([row.verdict for row in rows(candidate)])

    def taken_back(rows, sides, truths):
        assert any(not row.ok for row in rows)
        assert {"candidate", "reference"} == set(sides) == set(truths)
        return tuple(replace(row, verdict="ok") for row in rows), ()

    model = routed.build("Qwen3-MoE", 1)
    spoilt = routed.faulty(model, "Qwen3-MoE", "top-k off by one", LAYER)
    (report,) = verify_all(model, [spoilt], additions=[Asks()])
    assert report.verdict == "drift"
    assert seen == [["ok"] * len(report.layers)]
