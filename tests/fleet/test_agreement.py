"""Who stands alone: named only by more than half of the places that are like it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk.tasks.fleet.agreement import agreement, differences, differences_of
from driftwalk.tasks.fleet.job import Place
from driftwalk.tasks.fleet.result import Finding, Record
from fleet.machines import job

STATES = ("embed", "layer.0", "layer.1", "logits")


def finding(bits: str = "right", model: str = "H200", **states: str) -> Finding:
    patterns = {state: states.get(state.replace(".", "_"), bits) for state in STATES}
    return Finding("pass", "", device=model, patterns=patterns, basis={"model": model})


def test_one_of_three_is_named_with_what_it_computed_otherwise() -> None:
    found = {"a": finding(), "b": finding(layer_1="wrong", logits="wrong"), "c": finding()}
    told = agreement(found)
    (outlier,) = told.outliers
    assert (outlier.place, outlier.patterns) == ("b", ("layer.1", "logits"))
    assert (outlier.like, outlier.of) == (2, 3)
    assert told.splits == told.alone == ()


def test_of_two_that_disagree_neither_is_named() -> None:
    told = agreement({"a": finding(), "b": finding(logits="wrong")})
    assert told.outliers == ()
    (split,) = told.splits
    assert (split.pattern, split.sides) == ("logits", (("a",), ("b",)))


def test_two_against_two_is_no_majority() -> None:
    told = agreement({"a": finding(), "b": finding(), "c": finding("x"), "d": finding("x")})
    assert told.outliers == ()
    assert len(told.splits) == len(STATES)


def test_most_common_is_not_enough() -> None:
    """Two of five agree, the others are all different: nobody has more than half."""
    told = agreement({name: finding(bits) for name, bits in zip("abcde", "xxyzw", strict=True)})
    assert told.outliers == ()
    assert told.splits


def test_other_models_are_not_held_against_each_other() -> None:
    found = {"a": finding("x", "H100"), "b": finding("y", "H200"), "c": finding("y", "H200")}
    told = agreement(found)
    assert (told.outliers, told.splits, told.alone) == ((), (), ("a",))


def test_who_computed_nothing_does_not_vote() -> None:
    silent = Finding("unsure", "", device="H200", basis={"model": "H200"})
    half = Finding("pass", "", "", "H200", {"embed": "right"}, {"model": "H200"})  # type: ignore[arg-type]
    told = agreement({"a": finding(), "b": finding(logits="w"), "c": silent, "d": half})
    assert told.outliers == ()
    assert [split.pattern for split in told.splits] == ["logits"]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_minority_is_named_exactly(data: st.DataObject) -> None:
    """However the wrong ones are wrong, and in whatever order the results came in."""
    count = data.draw(st.integers(3, 9))
    wrong = data.draw(st.sets(st.integers(0, count - 1), max_size=(count - 1) // 2))
    found = {}
    for number in data.draw(st.permutations(range(count))):
        states = dict.fromkeys(STATES, "right")
        if number in wrong:
            changed = data.draw(st.sets(st.sampled_from(STATES), min_size=1))
            states |= {state: data.draw(st.sampled_from(["x", "y", "z"])) for state in changed}
        found[f"n{number}"] = Finding("pass", "", patterns=states, basis={"model": "m"})
    told = agreement(found)
    assert {outlier.place for outlier in told.outliers} == {f"n{number}" for number in wrong}
    assert told.splits == ()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from("xyz"), min_size=2, max_size=8))
def test_a_vote_is_a_majority_or_a_split(bits: list[str]) -> None:
    told = agreement({f"n{number}": finding(one) for number, one in enumerate(bits)})
    most = max(bits.count(one) for one in bits)
    if len(set(bits)) == 1:
        assert (told.outliers, told.splits) == ((), ())
    elif 2 * most > len(bits):
        assert len(told.outliers) == len(bits) - most
        assert told.splits == ()
    else:
        assert told.outliers == ()
        assert told.splits


def test_differences_are_grouped_and_like_ones_stand_together() -> None:
    known = {
        "a": {"driver": "550", "python": "3.11", "cuda": "12.4", "uuid": "1"},
        "b": {"driver": "550", "python": "3.11", "cuda": "12.4", "uuid": "2"},
        "c": {"driver": "535", "python": "3.12", "cuda": "12.2", "uuid": "3"},
        "d": {"driver": "550", "python": "3.12", "cuda": "12.4", "uuid": "4"},
    }
    found = differences(known)
    assert [item.key for item in found] == ["driver", "cuda", "python"]
    assert found[0].groups == (("550", ("a", "b", "d")), ("535", ("c",)))


def test_a_whole_node_is_named_once_and_a_lacking_value_is_one() -> None:
    def record(node: str, device: str, **environment: str) -> Record:
        place = Place(node, device)
        made = Finding("pass", "", environment=environment)
        return Record(place.name, job(place.name, place), "done", place, finding=made)

    records = [record("a", f"cuda:{n}", driver="1") for n in (0, 1)]
    records += [record("b", "cuda:0", driver="1"), record("b", "cuda:1"), record("a", "cpu")]
    (item,) = differences_of(records)
    assert item.groups == (("1", ("a", "b cuda:0")), ("(none)", ("b cuda:1",)))
