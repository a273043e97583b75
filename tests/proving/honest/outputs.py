"""Honest families that change what is around a model: its outputs' containers, a module outside."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn

from ..case import HALVES, WHOLE, Done, NoPlace, Site, family
from ..places import copied, run, wrap
from .structure import Nested

Tensor = torch.Tensor
AROUND = (*WHOLE, *HALVES, "int8", "onnx", "compare", "set", "module")


def named(output: Any) -> dict[str, Any]:
    """A model's float outputs by name; those of no name are numbered."""
    if isinstance(output, Tensor):
        return {"output": output}
    if isinstance(output, Mapping):
        items = list(output.items())
    elif isinstance(output, list | tuple):
        items = [(f"output_{number}", value) for number, value in enumerate(output)]
    else:
        raise NoPlace
    return {name: value for name, value in items if isinstance(value, Tensor)}


def _given(site: Site, kind: Callable[[dict[str, Any]], Any], what: str) -> Done:
    """The model's outputs in another container."""
    before = run(site.module, site.inputs)
    made = kind(named(before))
    if type(made) is type(before):
        raise NoPlace
    candidate = copied(site.module)
    wrap(candidate, lambda _, inner, *args, **more: kind(named(inner(*args, **more))))
    return Done(candidate, f"outputs as {what}")


@family("structure", "honest", AROUND)
def outputs_as_tuple(site: Site) -> Done:
    """Outputs as a tuple."""
    return _given(site, lambda outputs: tuple(outputs.values()), "a tuple")


@family("structure", "honest", AROUND)
def outputs_as_list(site: Site) -> Done:
    """Outputs as a list."""
    return _given(site, lambda outputs: list(outputs.values()), "a list")


@family("structure", "honest", AROUND)
def outputs_as_dict(site: Site) -> Done:
    """Outputs as a plain dictionary with the same names."""
    return _given(site, dict, "a dictionary")


class Given(NamedTuple):
    """Outputs of a model, by place."""

    logits: Any
    others: tuple[Any, ...] = ()


@family("structure", "honest", AROUND)
def outputs_as_named_tuple(site: Site) -> Done:
    """Outputs as a named tuple, the first of them apart."""

    def made(outputs: dict[str, Any]) -> Given:
        first, *others = outputs.values()
        return Given(first, tuple(others))

    return _given(site, made, "a named tuple")


@dataclass
class Record:
    """Outputs of a model, in a class of one's own."""

    logits: Any
    others: tuple[Any, ...] = ()


@family("structure", "odd", (*WHOLE, "compare", "set"))
def outputs_as_dataclass(site: Site) -> Done:
    """Outputs in a class of the model's own."""

    def made(outputs: dict[str, Any]) -> Record:
        first, *others = outputs.values()
        return Record(first, tuple(others))

    return _given(site, made, "a dataclass")


@family("structure", "odd", (*WHOLE, "compare", "set"))
def outputs_in_a_namespace(site: Site) -> Done:
    """Outputs as attributes of an object that is no container."""
    return _given(site, lambda outputs: SimpleNamespace(**outputs), "attributes of an object")


@family("structure", "honest", (*WHOLE, *HALVES, "compare", "set", "module"))
def only_output_called_loss(site: Site) -> Done:
    """Both sides give a dictionary whose only output is called `loss`."""

    def first(outputs: Any) -> dict[str, Any]:
        return {"loss": next(iter(named(outputs).values()))}

    reference = copied(site.module)
    wrap(reference, lambda _, inner, *args, **more: first(inner(*args, **more)))
    run(reference, site.inputs)
    return Done(copied(reference), "the only output is called loss", reference=reference)


@family("structure", "odd", (*WHOLE, *HALVES, "compare", "set"))
def output_renamed(site: Site) -> Done:
    """The candidate's outputs have other names."""

    def renamed(outputs: dict[str, Any]) -> dict[str, Any]:
        return {f"port_{name}": value for name, value in outputs.items()}

    return _given(site, renamed, "a dictionary with other names")


class Whole(nn.Module):
    """A model inside another module, which takes whatever it takes."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


@family("structure", "honest", AROUND)
def model_in_a_module(site: Site) -> Done:
    """The model inside a module that takes anything and hands it on, as data parallelism does."""
    return Done(Whole(copied(site.module)).eval(), "inside a module that takes anything")


@family("structure", "honest", AROUND)
def model_in_a_module_with_its_signature(site: Site) -> Done:
    """The model inside a module that names the same inputs."""
    known = inspect.signature(site.module.forward)
    kept = [p for name, p in known.parameters.items() if name in site.inputs]
    if len(kept) != len(site.inputs):
        raise NoPlace
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)

    def forward(self: Whole, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    forward.__signature__ = inspect.Signature([own, *kept])  # type: ignore[attr-defined]
    kind = type("Whole", (Whole,), {"forward": forward, "__module__": __name__})
    return Done(kind(copied(site.module)).eval(), "inside a module with the same inputs")


@family("structure", "honest", AROUND)
def model_in_two_modules(site: Site) -> Done:
    """The model inside a module inside another, which also answers for its attributes."""
    return Done(Nested(Nested(copied(site.module))).eval(), "inside two modules")


@family("structure", "honest", AROUND)
def output_cloned(site: Site) -> Done:
    """Outputs copied into new memory in another layout, after the last layer."""

    def turned(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim > 1:
            return value.transpose(0, -1).contiguous().transpose(0, -1)
        return value

    def around(_: nn.Module, inner: Callable[..., Any], *args: Any, **more: Any) -> Any:
        outputs = inner(*args, **more)
        if isinstance(outputs, Tensor):
            return turned(outputs)
        if isinstance(outputs, Mapping):
            return type(outputs)(**{name: turned(value) for name, value in outputs.items()})
        raise NoPlace

    candidate = copied(site.module)
    wrap(candidate, around)
    run(candidate, site.inputs)
    return Done(candidate, "outputs in another layout of memory")
