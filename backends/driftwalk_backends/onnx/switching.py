"""What can be turned off when ONNX Runtime runs a graph, each as an option of the spec.

Transformers are those that change this very graph; of those that run rewrite rules, the rules are
parts. Beside them: session entries, how graphs were exported, threads, level and provider.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from driftwalk.spec import Spec
from driftwalk.switches import Switch, listed, named

from .optimisers import RULES
from .session_config import INT4_PRODUCTS, read_entries, written

LEVEL, THREADS, PROVIDER = "opt", "threads", "provider"
_SELECTS_QDQ = "QDQSelectorActionTransformer"
_OF_EXPORT = ("exporter", "opset", "dynamic")
_IN_FLOAT = "1"


def switches_of(spec: Spec, changed: Iterable[str], fuses_int4: bool) -> Iterator[Switch]:
    """What can be turned off, given the transformers that change the graph."""
    entries = read_entries(spec.options.get("config", ""))
    transformers, level = tuple(changed), spec.options.get(LEVEL, "all")
    if fuses_int4 and _SELECTS_QDQ in transformers and entries.get(INT4_PRODUCTS) != _IN_FLOAT:
        needs = (_SELECTS_QDQ, LEVEL)
        yield Switch(INT4_PRODUCTS, "products of int4 weights in int8", needs=needs)
    for key in entries:
        if key != INT4_PRODUCTS:
            yield Switch(key, "session entry")
    for name in transformers:
        rules = RULES.get(name, ())
        what = "graph transformer that runs rewrite rules" if rules else "graph transformer"
        yield Switch(name, what, rules, needs=(LEVEL,))
    for option in _OF_EXPORT:
        if option in spec.options and not (option == "opset" and "exporter" not in spec.options):
            yield Switch(option, f"how the graph was exported: {option}={spec.options[option]}")
    if spec.options.get(THREADS) != "1":
        yield Switch(THREADS, "more than one thread")
    if level != "off":
        yield Switch(LEVEL, f"graph optimisation at level {level}")
    if spec.device not in ("", "cpu") or "provider" in spec.options:
        yield Switch(PROVIDER, "execution provider")


def spec_without(spec: Spec, off: Collection[str]) -> Spec:
    """The spec with these switches turned off."""
    options, device = dict(spec.options), spec.device
    entries = read_entries(options.pop("config", ""))
    for key in [*entries, INT4_PRODUCTS]:
        if key in off:
            entries.pop(key, None)
    if INT4_PRODUCTS in off:
        entries[INT4_PRODUCTS] = _IN_FLOAT
    own = {*entries, INT4_PRODUCTS, *read_entries(spec.options.get("config", ""))}
    own |= {*_OF_EXPORT, LEVEL, THREADS, PROVIDER}
    left_out = named(options.pop("disable", ""))
    left_out = (*left_out, *(name for name in off if name not in own))
    for option in _OF_EXPORT:
        if option in off or (option == "opset" and "exporter" in off):
            options.pop(option, None)
    options |= {LEVEL: "off"} if LEVEL in off else {}
    options |= {THREADS: "1"} if THREADS in off else {}
    if PROVIDER in off:
        device = "cpu"
        options.pop("provider", None)
    if left_out and LEVEL not in off:
        options["disable"] = listed(left_out)
    if entries:
        options["config"] = written(entries)
    return replace(spec, device=device, options=options)


def only_session_differs(spec: Spec, other: Spec) -> bool:
    """Whether both have the same graph."""
    return all(spec.options.get(o) == other.options.get(o) for o in _OF_EXPORT)
