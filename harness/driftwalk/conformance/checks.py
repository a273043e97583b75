"""The single checks of the conformance suite, and the probes it makes to provoke a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..dtypes import FORMATS, Array
from ..names import EMBED, NORM, layer, place_of
from ..states import Probe, State, Trace, same_bits


def check(good: bool, otherwise: str) -> None:
    """An assertion that keeps its message without pytest's rewriting, and under `python -O`."""
    if not good:
        raise AssertionError(otherwise)


def raises(run: Callable[[], object], expected: type[BaseException], what: str) -> BaseException:
    try:
        run()
    except expected as error:
        return error
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        raise AssertionError(f"{what}: expected {expected.__name__}, got {found}") from error
    raise AssertionError(f"{what}: expected {expected.__name__}, nothing was raised")


def check_clear(error: BaseException, word: str) -> None:
    text = str(error)
    check(word in text, f"the error does not name {word!r}: {text}")
    check("\n" not in text.strip(), f"the error is longer than a line: {text}")


def check_stack(names: Sequence[str]) -> None:
    """embed first, then every layer counted from 0, second streams behind their layer, norm."""
    places = [place for name in names if (place := place_of(name)) is not None]
    depth = sum(place.number is not None and place.is_state for place in places)
    found = [(place.end or layer(place.number or 0), place.inside) for place in places]
    expected = [(EMBED, "")] if (EMBED, "") in found else []
    for number in range(depth):
        streams = [one for one in found if one[0] == layer(number) and one[1]]
        expected += [(layer(number), ""), *streams]
    expected += [(NORM, "")] if (NORM, "") in found else []
    check(depth > 0, f"no layers among {list(names)}")
    check(found == expected, f"states are not in order of execution: {list(names)}")


def check_kept(given: Sequence[tuple[State, bytes]], when: str) -> None:
    for state, before in given:
        same = state.array.tobytes() == before
        check(same, f"{state.point.name} changed {when}: hand on copies, not views")


def check_same(first: Trace, second: Trace, what: str) -> None:
    check(first.names == second.names, f"{what}: other points, {second.names}")
    for state in first:
        name = state.point.name
        same = same_bits({name: state.array}, {name: second[name]})
        check(same, f"{what}: {name} is not the same")
    check(same_bits(first.outputs, second.outputs), f"{what}: the outputs are not the same")


def other_values(probe: Probe) -> Probe:
    """Other numbers under the same names, shapes and masks: rows and positions reversed."""
    return Probe(
        {
            name: array if name.endswith("mask") else np.flip(array, (0, -1))
            for name, array in probe.inputs.items()
        }
    )


def padded_pair(probe: Probe) -> tuple[Probe, Probe]:
    """Two probes, row 0 padded on the left and row 1 on the right, that differ in padding only."""
    ids = probe.inputs["input_ids"]
    pad = max(1, ids.shape[1] // 4)
    mask = np.ones_like(probe.inputs["attention_mask"])
    mask[0, :pad] = 0
    mask[1:, -pad:] = 0
    scribbled: Array = np.where(mask == 0, ids[::-1, ::-1], ids)
    scribbled = np.where((mask == 0) & (scribbled == ids), (ids + 1) % ids.max(), scribbled)
    inputs: Mapping[str, Array] = {**probe.inputs, "attention_mask": mask}
    return Probe(inputs), Probe({**inputs, "input_ids": scribbled})


def fits(array: Array, narrow: str) -> bool:
    """Whether every value survives a round trip through a narrower format."""
    with np.errstate(over="ignore"):
        return bool(np.array_equal(array.astype(FORMATS[narrow].dtype).astype(array.dtype), array))
