"""Verdicts from signatures: never a wrong one, and `unknown` where a bound cannot tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from driftwalk import DriftwalkError, Signature, Tolerance, Trace, compare, load
from driftwalk.result import to_dict
from driftwalk.states import Probe
from driftwalk_reports.schema import load_schema
from unit.signatures.test_make import trace, with_state

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")


def moved(made: Trace, size: float, seed: int = 1, name: str = "layer.0") -> Trace:
    """The same trace with noise of a size at one point."""
    noise = np.random.default_rng(seed).standard_normal(made[name].shape) * size
    return with_state(made, name, (made[name] + noise).astype(np.float32))


def verdicts(report) -> dict[str, str]:
    return {layer.point.name: layer.verdict for layer in report.layers}


@pytest.mark.parametrize("sides", ["trace sig", "sig trace", "sig sig"])
def test_bit_equal_is_exact_on_any_side(sides: str) -> None:
    pair = [trace() if side == "trace" else Signature.of(trace()) for side in sides.split()]
    report = compare(*pair)
    assert report.verdict == "pass"
    assert all(layer.bounds.exact and layer.metrics.max_abs == 0 for layer in report.layers)


@pytest.mark.parametrize(
    ("size", "verdict", "run"),
    [(1e-8, "ok", "pass"), (3e-6, "unknown", "unverified"), (1e-2, "drift", "drift")],
)
@pytest.mark.parametrize("both", [False, True])
def test_pass_unknown_and_drift(size: float, verdict: str, run: str, both: bool) -> None:
    other = moved(trace(), size)
    report = compare(Signature.of(trace()), Signature.of(other) if both else other)
    assert verdicts(report)["layer.0"] == verdict
    assert report.verdict == run
    assert any("bounds, not measurements" in note for note in report.notes)
    layer = report.layer("layer.0")
    assert not layer.bounds.exact
    assert "(bounds)" in layer.note
    if verdict == "unknown":
        assert "cannot be told from a signature; record a full trace" in report.reason
        assert report.first_divergence is None
    if verdict == "drift":
        assert report.first_divergence.point.name == "layer.0"


def test_no_verdict_contradicts_the_whole_trace() -> None:
    """Over sizes, kinds of fault and tolerances: ok and drift agree; unknown may be either."""
    seen = set()
    for seed in range(120):
        rng = np.random.default_rng(seed)
        made = trace(seed, size=int(rng.choice([4, 32, 256])))
        array = made["layer.0"].astype(np.float64)
        size = 10 ** rng.uniform(-7, -1)
        if seed % 3 == 0:
            array[0, 1, int(rng.integers(array.shape[-1]))] += size
        elif seed % 3 == 1:
            array += size * rng.standard_normal(array.shape)
        else:
            array[:, :, int(rng.integers(array.shape[-1]))] *= 1 + size
        other = with_state(made, "layer.0", array.astype(np.float32))
        policy = rng.choice(["dtype", "fixed:1e-4", "fixed:1e-5,1e-3", "fixed:0,1e-2"])
        whole = verdicts(compare(made, other, str(policy)))["layer.0"]
        told = verdicts(compare(Signature.of(made), other, str(policy)))["layer.0"]
        assert told in (whole, "unknown"), (seed, policy, whole, told)
        seen.add((whole, told))
    assert {("ok", "ok"), ("drift", "drift"), ("ok", "unknown"), ("drift", "unknown")} <= seen


def test_relative_l2_is_a_policy_of_signatures() -> None:
    made, other = trace(size=512), moved(trace(size=512), 1e-6)
    assert compare(Signature.of(made), other).verdict == "unverified"
    assert compare(Signature.of(made), other, "l2:4e-6").verdict == "pass"
    assert compare(Signature.of(made), other, "l2:1e-7").verdict == "drift"
    assert compare(Signature.of(made), other, "l2:1e-6").verdict == "unverified"
    with pytest.raises(DriftwalkError, match="is for signatures"):
        compare(made, other, "l2:1e-6")
    for wrong in ("l2:", "l2:x", "l2:-1", "l2:nan", "l2:inf"):
        with pytest.raises(DriftwalkError, match="write l2:TOLERANCE"):
            compare(Signature.of(made), other, wrong)


def test_nan_never_passes() -> None:
    made = trace()
    array = made["layer.0"].copy()
    array[0, 0, 0] = np.nan
    bad = with_state(made, "layer.0", array)
    assert verdicts(compare(Signature.of(made), bad))["layer.0"] == "nonfinite"
    assert compare(Signature.of(made), bad).verdict == "drift"
    for reference in (bad, Signature.of(bad)):
        report = compare(reference, Signature.of(bad))
        assert report.verdict == "unverified"
        assert "reference itself has 1 non-finite" in report.reason


def test_missing_extra_and_shapes() -> None:
    made = trace()
    less = replace(made, states=made.states[:2])
    assert verdicts(compare(Signature.of(made), less))["logits"] == "missing"
    assert compare(Signature.of(made), less, allow_missing=["log*"]).verdict == "pass"
    assert verdicts(compare(Signature.of(less), made))["logits"] == "extra"
    flat = with_state(made, "layer.0", made["layer.0"].reshape(2, 2, 32))
    assert verdicts(compare(Signature.of(made), flat))["layer.0"] == "shape"


def test_other_inputs_weights_and_rules_are_refused() -> None:
    made = trace()
    ids = Probe({**made.probe.inputs, "input_ids": np.arange(8).reshape(2, 4) + 1})
    with pytest.raises(DriftwalkError, match="input_ids differs in 8 of 8"):
        compare(Signature.of(made), replace(made, probe=ids))
    a, b = trace(model={"fingerprint": "a" * 64}), trace(model={"fingerprint": "b" * 64})
    with pytest.raises(DriftwalkError, match="different weights"):
        compare(Signature.of(a), b)
    with pytest.raises(DriftwalkError, match="matches no point"):
        compare(Signature.of(made), made, {"lyer.*": Tolerance(1.0)})
    rules = {"layer.0": Tolerance(10.0), "*": Tolerance(0.0)}
    assert compare(Signature.of(made), moved(made, 1e-2), rules).verdict == "pass"


def test_machines_are_named_and_the_result_is_a_result(tmp_path) -> None:
    one = Signature.of(trace(environment={"machine": "aarch64"}))
    other = moved(trace(environment={"machine": "x86_64"}), 1e-2)
    report = compare(one, other)
    assert "Recorded on different machines: machine aarch64 and x86_64." in report.notes
    jsonschema.validate(to_dict(report), load_schema())
    report.save(tmp_path / "out")
    again = load(tmp_path / "out" / "result.json")
    assert to_dict(again) == to_dict(report)
    assert "(bounds)" in (tmp_path / "out" / "report.html").read_text("utf-8")
