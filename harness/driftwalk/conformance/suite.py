"""What every backend must keep, as tests: run them on an adapter of your own.

    from driftwalk.conformance import BackendConformance

    class TestMine(BackendConformance):
        spec = "mine"

pytest runs each test on each of `models`. A failed check is an AssertionError that says what was
promised and what was found; a device that is not here is a skip that says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn

import numpy as np

from ..adapter import Backend
from ..dtypes import format_of
from ..errors import BackendUnavailable, DriftwalkError
from ..measure.metrics import measure
from ..names import is_output, place_of, stack_of
from ..registry import backend_class, create
from ..result import Report
from ..spec import DTYPE_NAMES, Spec
from ..stage import make_probe, torch_model
from ..states import OUTPUT, Probe, State, same_bits
from ..tolerance import make_policy
from ..verification import verify_all
from .checks import (
    check,
    check_clear,
    check_kept,
    check_same,
    check_stack,
    fits,
    other_values,
    padded_pair,
    raises,
)

_NARROWER = {"fp64": ("fp32",), "fp32": ("fp16", "bf16")}
_STORED_AS = {"tf32": "fp32", "fp8": "fp32"}
"""Formats that only matrix products have; what they hand on is stored in another."""


class BackendConformance:
    """The tests; a subclass says which backend, and may name other models."""

    spec: ClassVar[str] = ""
    models: ClassVar[Sequence[Any]] = ("demo:decoder", "demo:encoder")
    """Anything `driftwalk.verify` takes for a model."""

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Called by pytest: one test per model."""
        if "model" in metafunc.fixturenames:
            metafunc.parametrize("model", self.models, ids=list(map(_label, self.models)))

    @classmethod
    def case_ids(cls) -> list[str]:
        """`test_name[model]` for every test pytest will make of this class."""
        names = [name for name in dir(cls) if name.startswith("test_")]
        return [f"{name}[{_label(model)}]" for name in names for model in cls.models]

    # Each test starts from a fresh model and a fresh backend: what one left behind, another sees.

    @contextmanager
    def _open(self, model: Any) -> Iterator[tuple[Backend, Probe, Any]]:
        """The backend, the default probe and the torch module."""
        loaded = torch_model(model)
        try:
            backend = create(self.spec, loaded)
        except BackendUnavailable as why:
            _skip(f"{self.spec}: {why}")
        with backend:
            yield backend, make_probe(loaded), loaded.module

    def _verified(self, model: Any, probe: Probe | None = None) -> Report:
        return verify_all(torch_model(model), [self.spec], probe=probe, policy="dtype")[0]

    def test_says_what_it_offers(self, model: Any) -> None:
        name = Spec.parse(self.spec).name
        offers = backend_class(name).offers()
        check(bool(offers), f"offers() of {name!r} is empty: say what is usable, and why not")
        for offer in offers:
            found = Spec.parse(offer.spec).name
            check(found == name, f"offers() of {name!r} names another backend: {offer.spec!r}")
            check(bool(offer.note), f"offer {offer.spec!r} has no note: a version, or why not")

    def test_says_what_it_is(self, model: Any) -> None:
        with self._open(model) as (backend, probe, _):
            backend.trace(probe)
            info, asked = backend.info, Spec.parse(self.spec)
        check(info.spec == str(asked), f"info.spec is {info.spec!r}, asked for {str(asked)!r}")
        check(info.name == asked.name, f"info.name is {info.name!r}, not {asked.name!r}")
        check(info.dtype in DTYPE_NAMES, f"info.dtype {info.dtype!r}: not one of {DTYPE_NAMES}")
        if asked.dtype:
            check(info.dtype == asked.dtype, f"ran in {info.dtype}, asked for {asked.dtype}")
        check(bool(info.device), "info.device is empty")
        check(bool(info.versions), "info.versions is empty: which runtime made these numbers?")
        texts = {**info.versions, **info.flags}
        wrong = [key for key, value in texts.items() if not isinstance(value, str)]
        check(not wrong, f"info.versions and info.flags hold text only; look at {wrong}")

    def test_names_are_canonical(self, model: Any) -> None:
        examples = "embed, layer.0, layer.1, ..., norm, logits, output.NAME"
        for name in self._names(model):
            place = place_of(name)
            good = is_output(name) or (place is not None and place.is_canonical)
            check(good, f"{name!r} is no canonical name: {examples}")

    def test_states_come_in_order(self, model: Any) -> None:
        names = self._names(model)
        stacks: dict[str, list[str]] = {}
        for name in names:
            if (stack := stack_of(name)) is not None:
                stacks.setdefault(stack, []).append(name)
        check(bool(stacks), f"no layer states among {names}")
        together = [name for group in stacks.values() for name in group]
        tail = [name for name in names if is_output(name)]
        check(list(names) == together + tail, f"stacks interleave, or outputs not last: {names}")
        check("logits" not in tail[1:], f"logits are not the first of the outputs: {tail}")
        for group in stacks.values():
            check_stack(group)

    def test_points_are_those_of_eager_torch(self, model: Any) -> None:
        with self._open(model) as (backend, probe, _), create("torch", torch_model(model)) as torch:
            found, expected = backend.trace(probe), torch.trace(probe)
        same = found.names == expected.names
        check(same, f"points are {found.names}; eager PyTorch has {expected.names}")
        for state in expected:
            name, shape = state.point.name, found[state.point.name].shape
            check(shape == state.shape, f"{name} has shape {shape}, not {state.shape}")

    def test_states_are_those_of_the_model(self, model: Any) -> None:
        with self._open(model):
            report = self._verified(model)
        first = report.first_divergence
        where = f"first divergence at {first.point.name}" if first else report.reason
        check(report.ok, f"verify against eager PyTorch gives {report.verdict}: {where}")

    def test_states_are_copies(self, model: Any) -> None:
        given: list[tuple[State, bytes]] = []
        with self._open(model) as (backend, probe, _):
            backend.stream(probe, lambda state: given.append((state, state.array.tobytes())))
            check_kept(given, "after the run")
            backend.trace(other_values(probe))
            check_kept(given, "after a run on another probe")
            backend.run(other_values(probe))
        check_kept(given, "after close()")
        for number, (state, _) in enumerate(given):
            for other, _ in given[:number]:
                both = f"{other.point.name} and {state.point.name}"
                apart = not np.shares_memory(state.array, other.array)
                check(apart, f"{both} share memory: hand on copies")

    def test_dtype_is_honest(self, model: Any) -> None:
        with self._open(model) as (backend, probe, _):
            trace = backend.trace(probe)
            dtype = backend.info.dtype
        expected = _STORED_AS.get(dtype, dtype)
        for state in trace:
            name = state.point.name
            if format_of(state.array) is None and is_output(name):
                continue  # whole numbers
            check(state.dtype == expected, f"info.dtype is {dtype}, {name} is {state.dtype}")
            for narrow in _NARROWER.get(expected, ()):
                full = ".layer." not in f".{name}" or not fits(state.array, narrow)
                how = f"computed in {narrow}, handed on as {expected}"
                check(full, f"every value of {name} is a {narrow} number: {how}")

    def test_repeats_bit_for_bit(self, model: Any) -> None:
        with self._open(model) as (backend, probe, _), self._open(model) as (again, _, _):
            first = backend.trace(probe)
            check_same(first, backend.trace(probe), "the same backend, run twice")
            check_same(first, again.trace(probe), "two backends of the same spec")

    def test_masks_are_respected(self, model: Any) -> None:
        with self._open(model) as (backend, probe, _):
            if "attention_mask" not in probe.inputs:
                _skip("the model takes no attention_mask")
            left_and_right, scribbled = padded_pair(probe)
            before, after = backend.trace(left_and_right), backend.trace(scribbled)
        for state in before:
            known = format_of(state.array)
            name = state.point.name
            keep = left_and_right.keep(name, state.shape)
            if known is None or keep is None:
                continue
            tolerance = make_policy("dtype").tolerance(name, known, known)
            metrics = measure(state.array, after[name], tolerance, keep).metrics
            check(
                not metrics.mismatched and not metrics.nonfinite.candidate,
                f"other ids at padded positions (mask 0) changed {name} elsewhere, by "
                f"{metrics.max_abs:.3g}: is attention_mask passed on?",
            )

    def test_plain_outputs_equal_instrumented_ones(self, model: Any) -> None:
        with self._open(model) as (backend, probe, _):
            trace = backend.trace(probe)
            plain = backend.run(probe)
        if "logits" in trace.names and "logits" in trace.outputs:
            check(
                same_bits({"": trace["logits"]}, {"": trace.outputs["logits"]}),
                "the state `logits` is not the output `logits` of the same run",
            )
        check(bool(plain), "run() gave no outputs at all")
        if same_bits(plain, trace.outputs):
            return
        seen = self._verified(model, probe).observer["candidate"]
        check(
            seen.within_tolerance and not seen.bit_identical,
            f"capturing states changed output {seen.output!r} by {seen.max_abs:.3g}, "
            "beyond what an honest fusion explains, or without a word in the report",
        )

    def test_takes_probes_of_other_shapes(self, model: Any) -> None:
        with self._open(model) as (backend, probe, _):
            one_row = Probe({name: array[:1] for name, array in probe.inputs.items()})
            both, one = backend.trace(probe), backend.trace(one_row)
        for state in one:
            if state.point.name.startswith(OUTPUT):
                continue  # a score of each row with each other, a number for all of them
            name, shape = state.point.name, state.shape
            same = shape == (1, *both[name].shape[1:])
            check(same, f"{name} of a one-row probe has shape {shape}")

    def test_leaves_model_and_probe_alone(self, model: Any) -> None:
        with self._open(model) as (backend, probe, module):
            weights, modes = torch_model(module).fingerprint, _modes(module)
            backend.trace(probe)
            backend.run(probe)
            check(not _hooks(module), f"hooks are left on {_hooks(module)} after a run")
            raises(lambda: backend.stream(probe, _raise), _Stop, "a sink that raises")
            check(not _hooks(module), f"hooks are left on {_hooks(module)} after a failed run")
        changed = torch_model(module).fingerprint != weights
        check(not changed, "the model's weights or attributes were changed")
        check(_modes(module) == modes, "training flags or requires_grad were changed")
        check(Probe(probe.inputs).sha256 == probe.sha256, "the probe's arrays were changed")

    def test_works_after_a_sink_that_raised(self, model: Any) -> None:
        with self._open(model) as (backend, probe, _):
            before = backend.trace(probe)
            raises(lambda: backend.stream(probe, _raise), _Stop, "a sink that raises")
            check_same(before, backend.trace(probe), "before and after a sink that raised")

    def test_can_be_closed_twice(self, model: Any) -> None:
        with self._open(model) as (backend, probe, _):
            backend.run(probe)
            backend.close()

    def test_refuses_unknown_options(self, model: Any) -> None:
        self._refuses(model, f"{self.spec},no_such_option=1", "no_such_option")

    def test_refuses_unknown_devices(self, model: Any) -> None:
        self._refuses(model, f"{Spec.parse(self.spec).name}:nowhere", "nowhere")

    def test_refuses_inputs_the_model_does_not_take(self, model: Any) -> None:
        with self._open(model) as (backend, probe, _):
            wrong = Probe({**probe.inputs, "no_such_input": np.ones((2, 2))})
            error = raises(lambda: backend.trace(wrong), DriftwalkError, "an unknown input")
        check_clear(error, "no_such_input")

    def test_refuses_a_probe_that_lacks_an_input(self, model: Any) -> None:
        with self._open(model) as (backend, probe, module):
            main = str(getattr(module, "main_input_name", next(iter(probe.inputs))))
            rest = {name: array for name, array in probe.inputs.items() if name != main}
            if not rest:
                _skip("the model takes one input only")
            error = raises(lambda: backend.trace(Probe(rest)), DriftwalkError, f"no {main}")
        check_clear(error, main)

    def _names(self, model: Any) -> tuple[str, ...]:
        with self._open(model) as (backend, probe, _):
            return backend.trace(probe).names

    def _refuses(self, model: Any, spec: str, word: str) -> None:
        with self._open(model):
            error = raises(lambda: create(spec, torch_model(model)), DriftwalkError, spec)
        check_clear(error, word)


class _Stop(Exception):  # noqa: N818 - a signal, not an error of anybody
    """Raised by a sink; a backend must let it through as it is."""


def _raise(state: State) -> NoReturn:
    raise _Stop(state.point.name)


def _skip(why: str) -> NoReturn:
    import pytest

    pytest.skip(why)


def _label(model: Any) -> str:
    return model if isinstance(model, str) else type(model).__name__


def _modes(module: Any) -> list[object]:
    return [
        *(part.training for part in module.modules()),
        *((p.requires_grad, str(p.dtype), str(p.device)) for p in module.parameters()),
    ]


def _hooks(module: Any) -> list[str]:
    """Modules that carry hooks; transformers' own, which it keeps on its models, do not count."""
    return [
        path or type(part).__name__
        for path, part in module.named_modules()
        for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
        if not str(getattr(hook, "__module__", "")).startswith("transformers.")
    ]
