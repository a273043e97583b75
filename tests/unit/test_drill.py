"""The drill on numbers alone: where an error lies, who is named, and what the sentence says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from driftwalk.adapter import Backend, BackendInfo, Offer, Sink
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, UsageError
from driftwalk.judge.calibrate import Calibration
from driftwalk.judge.drill import (
    FUSED,
    SPREAD,
    VANISHED,
    Concentration,
    between,
    concentration,
    drill,
    layer_of,
    look,
    looking,
    subject,
    unseen_layers,
)
from driftwalk.judge.honest import Honest
from driftwalk.measure.norms import ZERO, Norms, even
from driftwalk.mixture import Mixture
from driftwalk.spec import Spec
from driftwalk.states import Point, Probe, State, Trace
from unit.material import info

ROWS, POSITIONS, WIDTH = 2, 6, 8
NOISE = 1e-7
PROBE = Probe({"input_ids": np.arange(ROWS * POSITIONS).reshape(ROWS, POSITIONS)})


def noise(scale: float = 1.0, seed: int = 0) -> Array:
    return scale * np.random.default_rng(seed).standard_normal((ROWS, POSITIONS, WIDTH))


def test_an_error_all_over_names_nothing() -> None:
    assert concentration(noise()) == Concentration()


def test_one_channel_is_named() -> None:
    difference = noise(0.1)
    difference[..., 5] += 1
    assert concentration(difference) == Concentration(channel=5)


def test_one_token_is_named_by_row_and_position() -> None:
    difference = noise(0.1)
    difference[1, 4] += 2
    assert concentration(difference) == Concentration(token=(1, 4))


def test_one_element_is_a_channel_and_a_token() -> None:
    difference = noise(0.1)
    difference[0, 2, 7] = 30
    assert concentration(difference) == Concentration(7, (0, 2))


@pytest.mark.parametrize(("share", "named"), [(0.49, False), (0.51, False), (0.64, True)])
def test_a_channel_must_hold_most_of_it_and_stand_out(share: float, named: bool) -> None:
    """Of 8 channels, one must hold 5 / 8 of the squared error; of 10 or more, a half."""
    difference = np.full((ROWS, POSITIONS, WIDTH), np.sqrt((1 - share) / (WIDTH - 1)))
    difference[..., 3] = np.sqrt(share)
    assert concentration(difference).channel == (3 if named else None)


def test_the_only_token_is_not_worth_a_name() -> None:
    assert concentration(np.ones((1, 1, WIDTH))).token is None


def test_padding_is_not_looked_at() -> None:
    difference = noise(0.1)
    difference[1, 4] += 2
    keep = np.ones((ROWS, POSITIONS), bool)
    keep[1, 4] = False
    assert concentration(difference, keep) == Concentration()


def test_a_nan_weighs_more_than_any_number() -> None:
    difference = noise()
    difference[0, 3, 2] = np.nan
    assert concentration(difference) == Concentration(2, (0, 3))


def test_heads_count_to_their_token() -> None:
    difference = np.zeros((ROWS, POSITIONS, 2, WIDTH))
    difference[1, 0] = 1
    assert concentration(difference).token == (1, 0)


@pytest.mark.parametrize(
    ("point", "layer"),
    [
        ("layer.1", "layer.1"),
        ("layer.11.mlp", "layer.11"),
        ("decoder.layer.3.layer.0.SelfAttention", "decoder.layer.3"),
        ("layer.2.attn.c_proj:in", "layer.2"),
        ("embed", None),
        ("encoder.norm", None),
        ("logits", None),
    ],
)
def test_the_layer_of_a_point(point: str, layer: str | None) -> None:
    assert layer_of(point) == layer


NAMES = ("layer.5.attn.c_proj:in", "layer.5.attn.c_proj", "layer.5.attn", "layer.5.ln_2:in")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("layer.5.attn.c_proj", "layer.5 attn.c_proj"),
        ("layer.5.attn.c_proj:in", "layer.5 attn, before c_proj"),
        ("layer.5.ln_2:in", "layer.5, before ln_2"),
        ("layer.5.attn", "layer.5 attn, after its modules"),
        ("layer.5", "layer.5, after its modules"),
    ],
)
def test_a_point_in_words(name: str, words: str) -> None:
    assert subject(name, "layer.5", NAMES) == words


class Blind(Backend):
    """Two blocks, each of two modules that add one; nothing but its block states is ever seen."""

    name = "blind"

    def __init__(self, faults: Mapping[str, Array] | None = None, seed: int = 0) -> None:
        super().__init__(Spec(self.name))
        self._faults = faults or {}
        self._rng = np.random.default_rng(seed)

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return []

    @property
    def info(self) -> BackendInfo:
        return info(self.name)

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        self.compute({}, sink or (lambda state: None))
        return {}

    def compute(self, given: Mapping[str, Array], sink: Sink) -> None:
        stream = np.zeros((ROWS, POSITIONS, WIDTH))
        for point in (
            Point("embed"),
            *(Point(f"layer.{i}{m}", f"h.{i}{m}") for i in (0, 1) for m in (".a", ".b", "")),
        ):
            stream = stream + (0 if point.name.count(".") == 1 else 1)
            if self.exact is False:
                stream = stream + NOISE * self._rng.standard_normal(stream.shape)
            stream = stream + self.fault(point.name)
            if point.name.count(".") < 2 or self.sees(point.name):
                sink(State(point, stream))
                stream = given.get(point.name, stream)

    exact = False

    def fault(self, name: str) -> Array | float:
        return self._faults.get(name, 0.0)

    def sees(self, name: str) -> bool:
        return False


class Seeing(Blind):
    """The same, able to look inside."""

    name = "seeing"
    looks_at = ("block", "")

    def look(self, depth: str, layer: str = "") -> None:
        self.looks_at = (depth, layer)

    def sees(self, name: str) -> bool:
        depth, layer = self.looks_at
        return depth == "module" and (not layer or name.startswith(f"{layer}."))


class Exact(Seeing):
    name = "truth"
    exact = True

    def replay(self, probe: Probe, given: Mapping[str, Array], sink: Sink) -> None:
        self.compute(given, sink)


class Fusing(Seeing):
    """A graph that has no states of some modules."""

    fused: tuple[str, ...] = ()

    def sees(self, name: str) -> bool:
        return super().sees(name) and not name.endswith(self.fused)


class Shy(Seeing):
    """The fault of a layer is gone as soon as somebody looks inside it."""

    def fault(self, name: str) -> Array | float:
        return 0.0 if layer_of(name) == self.looks_at[1] else super().fault(name)


SIZE = Norms(*[1e-6] * 10)
EVEN = even(ROWS * POSITIONS, WIDTH)
CALIBRATION = Calibration(
    truth=Trace((), PROBE, info("truth")),
    total={},
    own={f"layer.{i}": Honest(SIZE, ZERO, EVEN, 2.0**-24) for i in (0, 1)},
    mixture=Mixture("fp32"),
)


def one_channel(size: float) -> Array:
    fault = np.zeros((ROWS, POSITIONS, WIDTH))
    fault[..., 6] = size
    return fault


def found(candidate: Backend, cause: str = "layer.1") -> tuple[str, str, int | None]:
    trace = candidate.trace(PROBE)
    culprit = drill(Exact(), Seeing(seed=1), candidate, trace, CALIBRATION, Point(cause)).culprit
    assert culprit.ratio > 4
    return culprit.module, culprit.sentence, culprit.channel


def test_layers_of_which_nothing_was_seen_right_before_a_point() -> None:
    order = ["embed", "layer.0.a", "layer.0", "layer.1.a", "layer.1", "layer.2.a", "layer.2"]
    assert unseen_layers("layer.2.a", order, {"layer.0.a", "layer.2.a"}) == ("layer.0", "layer.1")
    assert unseen_layers("layer.2", order, {"layer.1", "layer.2"}) == ("layer.2",)
    assert unseen_layers("layer.1", order, {"layer.1.a", "layer.1"}) == ()
    assert unseen_layers("layer.0", order, {"layer.0"}) == ("embed", "layer.0")


@pytest.mark.parametrize(("module", "after"), [("a", False), ("b", True)])
def test_what_was_given_a_state_of_its_own_layer_is_no_doing_of_a_layer_before(
    module: str, after: bool
) -> None:
    candidate = Seeing({f"layer.1.{module}": one_channel(1.0)})
    trace = candidate.trace(PROBE)
    inside = drill(Exact(), Seeing(seed=1), candidate, trace, CALIBRATION, Point("layer.1"))
    assert inside.after_others == after


@pytest.mark.parametrize("module", ["a", "b"])
def test_the_guilty_module_is_named(module: str) -> None:
    where, sentence, channel = found(Seeing({f"layer.1.{module}": one_channel(1.0)}))
    assert where == f"h.1.{module}"
    assert channel == 6
    assert sentence.startswith(f"layer.1 {module}: introduced ")
    assert sentence.endswith("\u00d7 the yardstick, channel 6 (suspect a weight)")


def test_what_the_block_does_itself_is_named_so() -> None:
    where, sentence, _ = found(Seeing({"layer.1": one_channel(1.0)}))
    assert where == "h.1"
    assert sentence.startswith("layer.1, after its modules: ")


@pytest.mark.parametrize(
    ("fused", "at", "who", "remark"),
    [
        ((".b",), ".b", "layer.1, between a and its end: ", ""),
        ((".a",), ".a", "layer.1, between its input and b: ", ""),
        ((".a",), "", "layer.1, after its modules: ", ""),
        ((".a", ".b"), ".a", "layer.1: ", FUSED),
    ],
)
def test_a_module_that_was_not_measured_is_not_accused(
    fused: tuple[str, ...], at: str, who: str, remark: str
) -> None:
    candidate = Fusing({f"layer.1{at}": one_channel(1.0)})
    candidate.fused = fused
    _, sentence, channel = found(candidate)
    assert sentence.startswith(who)
    assert sentence.endswith(f"channel 6 (suspect a weight){remark}")
    assert channel == 6


def test_between_two_points_there_must_be_something() -> None:
    order = ("layer.5.attn.c_proj:in", "layer.5.attn.c_proj", "layer.5.attn", "layer.5")
    assert between("layer.5.attn", "layer.5", order, set(order)) == ""
    said = between("layer.5.attn", "layer.5", order, {order[0], "layer.5.attn"})
    assert said == "layer.5, between the input of attn.c_proj and attn"


def test_a_candidate_that_cannot_look_inside_names_the_layer() -> None:
    where, sentence, channel = found(Blind({"layer.1.a": one_channel(1.0)}))
    assert (where, channel) == ("h.1", 6)
    assert sentence.startswith("layer.1: introduced ")


def test_a_fault_that_hides_when_looked_at() -> None:
    """And what is wrong in another layer is not found in its place."""
    faults = {"layer.0.a": one_channel(1.0), "layer.1.a": one_channel(1.0)}
    where, sentence, _ = found(Shy(faults), "layer.0")
    assert where == "h.0"
    assert sentence.endswith(VANISHED)


def test_of_two_guilty_modules_the_first_is_named() -> None:
    faults = {"layer.1.a": one_channel(1.0), "layer.1.b": one_channel(9.0)}
    assert found(Seeing(faults))[0] == "h.1.a"


def test_an_error_that_no_module_stands_out_with() -> None:
    """Enough together for the layer's allowance; three times honest noise in each module."""
    small = {f"layer.1{m}": 3 * NOISE * noise(seed=9) for m in (".a", ".b", "")}
    where, sentence, _ = found(Seeing(small))
    assert where == "h.1"
    assert sentence.endswith(SPREAD)


def test_looking_is_over_afterwards() -> None:
    seeing = Seeing()

    def break_off() -> None:
        with looking(seeing, "module", "layer.1"):
            assert seeing.looks_at == ("module", "layer.1")
            raise BackendError("broken off")

    with pytest.raises(BackendError):
        break_off()
    assert seeing.looks_at == ("block", "")


def test_a_backend_that_cannot_look_inside_says_so() -> None:
    look(Blind(), "block")
    with pytest.raises(UsageError, match="blind cannot look inside blocks"):
        look(Blind(), "module")
