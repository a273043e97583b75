"""Reports to render, each made by the real walk over tiny numpy states."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from driftwalk.adapter import BackendInfo
from driftwalk.formats import FormatCost, FormatFindings, Misstored, StoredAs
from driftwalk.judge.gate import run_verdict
from driftwalk.judge.walk import Walk, coverage
from driftwalk.layer_drift import Blame, LayerDrift, TruthErrors
from driftwalk.measure.decisions import Decisions
from driftwalk.measure.norms import Norms
from driftwalk.result import InputInfo, Observer, PolicyInfo, ProbeInfo, Report, RuleInfo, Tool
from driftwalk.states import Point, Probe, State, Trace
from driftwalk.tasks.formats.limits import FormatLimits
from driftwalk.tolerance import PolicyLike, make_policy

HOSTILE = "</script><img src=x onerror=alert(1)>|`*_[bold red]\x1b[31m\x00\u202e]]>&amp;@team"

NAMES = ("embed", *(f"layer.{i}" for i in range(6)), "norm", "logits")
WIDTH, CLASSES = 16, 11
TEXTS = ("The drift shows here", "a b")
TOKENS = (("The", "Ġdrift", "Ġshows", "Ġhere"), ("a", "Ġb", "<pad>", "<pad>"))

States = dict[str, np.ndarray[Any, Any]]


def text_probe() -> Probe:
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    ids = np.arange(8).reshape(2, 4)
    inputs = {"input_ids": ids, "attention_mask": mask}
    return Probe(inputs, origin="2 texts", texts=TEXTS, tokens=TOKENS)


def states(names: tuple[str, ...] = NAMES, seed: int = 0) -> States:
    """A made-up residual stream, growing layer by layer."""
    random = np.random.default_rng(seed)
    made = {}
    for depth, name in enumerate(names):
        width = CLASSES if name == "logits" else WIDTH
        made[name] = (random.standard_normal((2, 4, width)) * (1 + depth)).astype(np.float32)
    return made


def noisy(given: States, size: float = 2e-7, seed: int = 1) -> States:
    """What an honest other backend would give: relative noise of a few roundoffs."""
    random = np.random.default_rng(seed)
    return {
        name: (array * (1 + size * random.standard_normal(array.shape))).astype(array.dtype)
        for name, array in given.items()
    }


def make(
    reference: States,
    candidate: States,
    *,
    policy: PolicyLike = "dtype",
    probe: Probe | None = None,
    model: str = "tiny-gpt2",
    command: str = "driftwalk verify tiny-gpt2 --candidate onnxruntime",
    allow_missing: tuple[str, ...] = (),
    observer: Mapping[str, Observer] | None = None,
    notes: tuple[str, ...] = (),
    modules: str = "transformer.{}",
    kind: type[Report] = Report,
) -> Report:
    """Walk two sets of states and wrap the outcome as `verify` does."""
    probe = probe or text_probe()
    sides = (
        BackendInfo("torch", "torch", "cpu", "fp32", {"torch": "2.13.0", "numpy": "2.4"}),
        BackendInfo(
            "onnxruntime",
            "onnxruntime",
            "cpu",
            "fp32",
            {"onnxruntime": "1.31.1", "numpy": "2.3"},
            {"opt": "all"},
        ),
    )
    points = {name: Point(name, modules.format(name)) for name in reference}
    trace = Trace(tuple(State(points[n], a) for n, a in reference.items()), probe, sides[0])
    rules = make_policy(policy)
    walk = Walk(trace, sides[1], rules, allow_missing)
    for name, array in candidate.items():
        walk.meet(State(points.get(name) or Point(name), array))
    layers = walk.layers()
    covered = coverage(layers)
    seen = observer if observer is not None else {"candidate": Observer(True)}
    verdict, reason = run_verdict(layers, covered, seen)
    return kind(
        tool=Tool("driftwalk", "0.1.0"),
        created="2026-01-02T03:04:05Z",
        command=command,
        model={"label": model, "sha256": "0" * 64},
        probe=ProbeInfo(
            probe.sha256,
            probe.origin,
            {n: InputInfo(a.shape, a.dtype.name) for n, a in probe.inputs.items()},
            probe.texts,
            probe.tokens,
        ),
        reference=sides[0],
        candidate=sides[1],
        policy=PolicyInfo(
            rules.name,
            tuple(
                RuleInfo(
                    rule.glob,
                    rule.tolerance.atol if rule.tolerance else None,
                    rule.tolerance.rtol if rule.tolerance else None,
                )
                for rule in rules.rules
            ),
            allow_missing,
        ),
        verdict=verdict,
        layers=layers,
        coverage=covered,
        reason=reason,
        outputs=walk.decisions,
        observer=seen,
        timings={
            "reference": {"load": 1.25, "trace": 0.034, "run": 0.03},
            "candidate": {"export": 7.5, "trace": 0.02, "run": 0.0004},
        },
        environment={"python": "3.11.7", "os": "Linux", "cpu": "aarch64"},
        notes=notes,
    )


FORMATS = (
    StoredAs("int8", "the whole matrix", "8 bits, one step for all", 24, 294_912, 295_008),
    StoredAs("int4", "32 numbers of a row", "", 3, 49_408, 27_792),
)


def with_format(report: Report, **more: Any) -> Report:
    """The report of a quantised candidate; layer.2 adds most to what its format costs."""
    sizes = {"layer.2": 0.05, "layer.3": 0.052, "logits": 0.08}
    cost, layers = 0.01, {}
    for layer in report.layers:
        cost = max(cost, sizes.get(layer.point.name, 0.0))
        layers[layer.point.name] = FormatCost(cost * 3.0, 3e-7 if layer.ok else 0.3, 0.1, 3.0)
    decisions = Decisions(6, 1, 0, 0.9, 0.0123, 0.04, ())
    return dataclasses.replace(report, format=FormatFindings(FORMATS, layers, decisions, **more))


def quantised() -> Report:
    """A kernel that is right; its head was left in float."""
    return with_format(passing(), in_float=("lm_head",), own_way=("h.0.mlp", "h.1.mlp"))


def misstored() -> Report:
    sentence = (
        "h.3.mlp does not hold the model's weights, rounded: of 4 blocks 1 with other numbers"
    )
    return with_format(drifting(), wrong={"h.3.mlp": Misstored(sentence, 12.5)})


def costly() -> Report:
    """A kernel that is right, and a format beyond its limits."""
    return FormatLimits(0.01, 30.0).judged(quantised())


class Blamed(Report):
    """A report in which blame was computed, and found layer.1."""

    @property
    def root_cause(self) -> LayerDrift | None:
        return self.layer("layer.1")


def passing() -> Report:
    return make(states(), noisy(states()))


def exact() -> Report:
    return make(states(), states())


def drifted(reference: States) -> States:
    """A fault in layer.3 that every later point inherits, and that flips a decision."""
    candidate = noisy(reference)
    for depth, name in enumerate(("layer.3", "layer.4", "layer.5", "norm", "logits")):
        candidate[name][0, 1:, :3] += np.float32(0.05 * 3**depth)
    candidate["logits"][0, 2:, 5] += np.float32(60)
    return candidate


def drifting(kind: type[Report] = Report) -> Report:
    return make(states(), drifted(states()), kind=kind)


def blamed() -> Report:
    return drifting(Blamed)


def told(report: Report) -> Report:
    """The report as a calibrated run with blame would give it: layer.3 made the error."""

    def norms(l2: float) -> Norms:
        return Norms(l2, l2, l2, l2)

    def judged(layer: LayerDrift) -> LayerDrift:
        guilty = layer.point.name == "layer.3"
        truth = TruthErrors(
            reference=1.0,
            candidate=500.0 if not layer.ok else 2.0,
            yardstick=1.0,
            scale=1e6,
            ratio=2.0,
            closer="tie" if layer.ok else "reference",
            norms={
                "reference": norms(1.0),
                "candidate": norms(500.0 if not layer.ok else 2.0),
                "yardstick": norms(1.0),
                "allowed": norms(4.0),
            },
        )
        blame = Blame(
            introduced=500.0 if guilty else 1.0,
            inherited=0.0 if layer.index == 0 else 2.0,
            gain=1.5,
            ratio=500.0 if guilty else 1.0,
            guilty=guilty,
            norms={"allowed": norms(4.0)},
            tokens=layer.tokens,
        )
        return dataclasses.replace(layer, truth=truth, blame=blame)

    layers = tuple(judged(layer) for layer in report.layers)
    return dataclasses.replace(report, layers=layers, cause="layer.3")


def nonfinite() -> Report:
    reference = states()
    candidate = noisy(reference)
    candidate["layer.2"][0, 1, 3:5] = np.nan
    candidate["layer.2"][1, 0, 0] = np.inf
    for name in ("layer.3", "layer.4", "layer.5", "norm", "logits"):
        candidate[name][:] = np.nan
    return make(reference, candidate)


def bad_reference() -> Report:
    reference = states()
    reference["layer.1"][0, 0, 0] = -np.inf
    return make(reference, noisy(reference))


def missing() -> Report:
    """The candidate was cut: it has four layers where the reference has six."""
    reference = states()
    candidate = {n: a for n, a in noisy(reference).items() if n not in ("layer.4", "layer.5")}
    return make(reference, candidate)


def missing_allowed() -> Report:
    reference = states()
    candidate = {n: a for n, a in noisy(reference).items() if n != "embed"}
    return make(reference, candidate, allow_missing=("emb*",))


def extra() -> Report:
    """The candidate has two layers more, so the norm after them drifts."""
    reference = {n: a for n, a in states().items() if n not in ("layer.4", "layer.5")}
    candidate = noisy(states())
    candidate["norm"] = candidate["norm"] * np.float32(1.5)
    return make(reference, candidate)


def shape() -> Report:
    reference = states()
    candidate = noisy(reference)
    candidate["layer.0"] = candidate["layer.0"][:, :3]
    return make(reference, candidate)


def nothing() -> Report:
    return make({}, {})


def disturbed() -> Report:
    seen = {
        "reference": Observer(checked=False),
        "candidate": Observer(True, False, True, 3e-7, "logits"),
    }
    return make(states(), noisy(states()), observer=seen, notes=("TF32 was off.",))


def hostile() -> Report:
    """Every string a report takes from outside is hostile; layer.1 drifts under such a name."""
    reference = {f"{name}{HOSTILE}": array for name, array in states().items()}
    candidate = noisy(reference)
    candidate[f"layer.1{HOSTILE}"] += np.float32(1)
    probe = text_probe()
    inputs = {f"{name}{HOSTILE}": array for name, array in probe.inputs.items()}
    wrapped = Probe(inputs, HOSTILE, (HOSTILE,), ((HOSTILE,) * 4,) * 2)
    seen = {HOSTILE: Observer(True, False, True, 1.0, HOSTILE)}
    made = make(
        reference,
        candidate,
        probe=wrapped,
        model=HOSTILE,
        command=HOSTILE,
        observer=seen,
        notes=(HOSTILE,),
        modules="{}",
        policy={f"layer.1{HOSTILE.replace('[', '?')}": make_policy("fixed:0.1").rules[0].tolerance},  # type: ignore[dict-item]
    )
    wrong = {HOSTILE: Misstored(HOSTILE, float("inf"))}
    found = with_format(made, wrong=wrong, own_way=(HOSTILE,), in_float=(HOSTILE,)).format
    assert found is not None
    stored = (StoredAs(HOSTILE, HOSTILE, HOSTILE, 1, 2, 3),)
    found = dataclasses.replace(found, stored=stored, exceeded=(HOSTILE,))
    return dataclasses.replace(made, format=found, reason=HOSTILE)


@cache
def deep(points: int = 300) -> Report:
    """More points than fit a comment, one of them off."""
    names = tuple(f"layer.{i}.a.rather.long.module.name.of.some.model" for i in range(points))
    reference = states(names)
    candidate = noisy(reference)
    candidate[names[points // 2]] += np.float32(1)
    return with_format(make(reference, candidate))


CASES: dict[str, Callable[[], Report]] = {
    case.__name__: case
    for case in (
        passing,
        exact,
        drifting,
        blamed,
        nonfinite,
        bad_reference,
        missing,
        missing_allowed,
        extra,
        shape,
        nothing,
        disturbed,
        hostile,
        deep,
        quantised,
        misstored,
        costly,
    )
}
