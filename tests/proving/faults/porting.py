"""Faults of porting that lie in code: constants, functions, masks, positions, states."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..case import HALVES, WHOLE, Done, NoPlace, Site, family
from ..places import blocks, epsilon, in_blocks, wrap
from ..spots import (
    LIVE,
    UNROUNDED,
    Call,
    argument,
    calls,
    place_of,
    shown,
    used,
    with_argument,
    with_first,
    wrapped,
)

Function = Callable[[torch.Tensor], torch.Tensor]


# ---- norms ----


def _other(value: float) -> float:
    return 1e-6 if value > 5e-6 else 1e-5


def _norms(site: Site) -> list[str]:
    return used(site, lambda part: epsilon(part) is not None)


@family("porting", "fault", UNROUNDED)
@shown
def eps_of_one_norm(site: Site) -> Done:
    """One norm has another epsilon"""
    path = site.choose(_norms(site))
    part = site.module.get_submodule(path)
    name = epsilon(part)
    assert name is not None
    before = getattr(part, name)
    setattr(part, name, _other(before))
    return Done(site.module, f"{path}.{name} is {_other(before):g}, not {before:g}", (path,))


@family("porting", "fault", UNROUNDED)
@shown
def eps_everywhere(site: Site) -> Done:
    """Every norm of every layer has another epsilon"""
    found = {path: epsilon(site.module.get_submodule(path)) for path in calls(site)}
    norms = {path: name for path, name in found.items() if name}
    if len(norms) < 2:
        raise NoPlace
    for path, name in norms.items():
        part = site.module.get_submodule(path)
        setattr(part, name, _other(getattr(part, name)))
    return Done(site.module, f"{len(norms)} norms have another epsilon", tuple(norms))


def _passed_on(part: nn.Module, forward: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return x


@family("porting", "fault")
@shown
def norm_missing(site: Site) -> Done:
    """One norm is left out"""
    return wrapped(site, site.choose(_norms(site)), _passed_on, "is left out")


@family("porting", "fault")
@shown
def final_norm_missing(site: Site) -> Done:
    """The norm after the last layer is left out"""
    called = list(calls(site))
    homes = [path for path in called if path in blocks(site.module)]
    if not homes:
        raise NoPlace
    after = called[called.index(homes[-1]) + 1 :]
    norms = [path for path in after if epsilon(site.module.get_submodule(path))]
    return wrapped(site, site.choose(norms[:1]), _passed_on, "is left out")


def _gain(site: Site, change: Function, says: str) -> Done:
    def has_gain(part: nn.Module) -> bool:
        return epsilon(part) is not None and isinstance(getattr(part, "weight", None), nn.Parameter)

    path = site.choose(used(site, has_gain))
    gain = site.module.get_submodule(path).weight.data
    gain.copy_(change(gain.clone()))
    return Done(site.module, f"{path} {says}", (path,))


@family("porting", "fault")
@shown
def norm_without_gain(site: Site) -> Done:
    """One norm is used without its gain"""
    return _gain(site, torch.ones_like, "has no gain")


@family("porting", "fault")
@shown
def gain_plus_one(site: Site) -> Done:
    """The gain of one norm is taken for what has to be added to 1"""
    return _gain(site, lambda gain: gain + 1, "adds 1 to its gain")


# ---- activations ----


def _tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


VARIANT: dict[Function, Function] = {F.gelu: _tanh_gelu, _tanh_gelu: F.gelu, _quick_gelu: F.gelu}
OTHER: dict[Function, Function] = {
    **{F.silu: F.gelu, F.relu: F.gelu, F.gelu: F.silu, _tanh_gelu: F.silu},
    **{torch.tanh: F.hardtanh, torch.sigmoid: F.hardsigmoid},
}


def same_as(function: Any, known: Function) -> bool:
    """Whether a function of one tensor gives what a known one does."""
    points = torch.linspace(-5, 5, 101, dtype=torch.float64)
    try:
        result = function(points.clone())
    except Exception:  # takes something else
        return False
    fits = isinstance(result, torch.Tensor) and result.shape == points.shape
    return fits and bool(torch.allclose(result, known(points), atol=1e-7, rtol=0))


def _activations(site: Site, pairs: dict[Function, Function]) -> list[tuple[str, str, Function]]:
    """Path, attribute (none for a module of its own), and what is put in its place."""
    made = []
    for path in in_blocks(site.module, list(calls(site))):
        part = site.module.get_submodule(path)
        held = {"": part} if not any(True for _ in (*part.children(), *part.parameters())) else {}
        held |= {n: v for n, v in vars(part).items() if callable(v) and not n.startswith("_")}
        for name, value in held.items():
            wrong = next((pairs[known] for known in pairs if same_as(value, known)), None)
            if wrong is not None and "dropout" not in type(value).__name__.lower():
                made.append((path, name, wrong))
    return made


def replace_activation(site: Site, pairs: dict[Function, Function]) -> Done:
    path, name, wrong = site.choose(_activations(site, pairs))
    if name:
        setattr(site.module.get_submodule(path), name, wrong)
    else:
        wrap(site.module.get_submodule(path), lambda part, forward, x: wrong(x))
    label = f"{path}.{name}".rstrip(".")
    return Done(site.module, f"{label} is {getattr(wrong, '__name__', wrong)}", (path,))


@family("porting", "fault", UNROUNDED)
@shown
def gelu_of_other_kind(site: Site) -> Done:
    """One GELU is approximated by tanh where it was exact, or the reverse"""
    return replace_activation(site, VARIANT)


@family("porting", "fault")
@shown
def other_activation(site: Site) -> Done:
    """One activation is another one: SiLU, GELU and ReLU for each other"""
    return replace_activation(site, OTHER)


# ---- residuals, dropout, states ----

_WAY = re.compile(r"^(skip|skip_connection|shortcut|conv_shortcut|downsample|way|residual)$")
_HANDED = ("input_tensor", "residual")


def _zeros(part: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    return with_first(forward(*args, **kwargs), torch.zeros_like)


def _without_input(part: nn.Module, forward: Any, x: torch.Tensor, *args: Any, **k: Any) -> Any:
    return with_first(forward(x, *args, **k), lambda y: y - x)


def _sums(site: Site, called: dict[str, Call]) -> list[str]:
    """Blocks whose output is, for all that can be seen, their input and something more."""
    made = []
    for path in blocks(site.module):
        call = called.get(path)
        if call is None or not isinstance(call.input, torch.Tensor) or not call.args:
            continue
        output = call.main
        inside = [one for p, one in called.items() if p.startswith(f"{path}.")]
        within = any(isinstance(c.output, torch.Tensor) and same(c.output, output) for c in inside)
        if output.shape == call.input.shape and output.min() < 0 and not within:
            made.append(path)
    return made


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


@family("porting", "fault")
@shown
def residual_missing(site: Site) -> Done:
    """One residual connection is left out"""
    called = calls(site)
    parts = {path: site.module.get_submodule(path) for path in called}
    handed = [p for p in in_blocks(site.module, list(parts)) if place_of(parts[p], _HANDED)]
    places = [(path, "handed") for path in handed]
    places += [(path, "way") for path in parts if _WAY.match(path.rpartition(".")[2])]
    path, kind = site.choose(places or [(path, "block") for path in _sums(site, called)])
    if kind != "handed":
        around = _zeros if kind == "way" else _without_input
        return wrapped(site, path, around, "adds no residual")
    at = place_of(parts[path], _HANDED)
    assert at is not None

    def handed_nothing(part: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = with_argument(at, args, kwargs, argument(at, args, kwargs) * 0)
        return forward(*args, **kwargs)

    return wrapped(site, path, handed_nothing, "adds no residual")


@family("porting", "unsteady", LIVE)
@shown
def dropout_in_one_block(site: Site) -> Done:
    """Dropout stays on in one layer: its results differ from call to call"""
    called = list(calls(site))
    homes = [path for path in blocks(site.module) if path in called]
    inside = [p for p in called if any(p.startswith(f"{home}.") for home in homes)]
    drops = [p for p in inside if isinstance(site.module.get_submodule(p), nn.Dropout)]
    last = [[p for p in inside if p.startswith(f"{home}.")][-1:] for home in homes]
    path = site.choose(drops or [p for one in last for p in one])

    def around(part: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        chance = getattr(part, "p", 0.0) or 0.1
        return with_first(forward(*args, **kwargs), lambda y: F.dropout(y, chance, True))

    return wrapped(site, path, around, "drops a tenth of its outputs")


@family("porting", "unsteady", LIVE)
@shown
def block_in_train_mode(site: Site) -> Done:
    """One layer of a model in eval mode is left in train mode"""
    path = site.choose(blocks(site.module))
    site.module.get_submodule(path).train()
    return Done(site.module, f"{path} is in train mode", (path,))


@family("porting", "fault", LIVE)
@shown
def batch_norm_in_train_mode(site: Site) -> Done:
    """One batch normalisation of a model in eval mode is left in train mode"""
    norms = nn.BatchNorm1d | nn.BatchNorm2d
    path = site.choose([p for p in calls(site) if isinstance(site.module.get_submodule(p), norms)])
    site.module.get_submodule(path).train()
    return Done(site.module, f"{path} is in train mode", (path,))


@family("porting", "unsteady", (*WHOLE, *HALVES, "generate", "set", "module"))
@shown
def hidden_state_kept(site: Site) -> Done:
    """A recurrent layer begins with the state of the call before"""

    def around(part: Any, forward: Any, x: torch.Tensor, state: Any = None) -> Any:
        kept = vars(part).get("_kept")
        if state is None and kept is not None and kept[1] == x.shape:
            state = kept[0]
        output, after = forward(x, state)
        detached = tuple(s.detach() for s in after) if isinstance(after, tuple) else after.detach()
        vars(part)["_kept"] = (detached, x.shape)
        return output, after

    path = site.choose(used(site, lambda part: isinstance(part, nn.LSTM | nn.GRU | nn.RNN)))
    return wrapped(site, path, around, "begins with the state of the call before")


# ---- scales ----

_SCALED = re.compile(r"(logit|output|embed|residual|attention).*(scale|scaling|multiplier|softcap)")


@family("porting", "fault")
@shown
def scale_missing(site: Site) -> Done:
    """A scale or soft cap of logits, embeddings or residuals is left out"""
    places: list[tuple[str, Any, str]] = []
    seen: set[int] = set()
    for path, part in site.module.named_modules():
        for holder in (part, getattr(part, "config", None)):
            if holder is None or id(holder) in seen:
                continue
            seen.add(id(holder))
            held = dict(vars(holder))
            if holder is part:
                held |= {**dict(part.named_buffers(recurse=False)), **part._parameters}
            for name, value in held.items():
                if _SCALED.search(name) and isinstance(value, float | torch.Tensor):
                    number = torch.as_tensor(value)
                    if number.numel() == 1 and float(number.detach()) != 1:
                        places.append((path, holder, name))
    path, holder, name = site.choose(places)
    value = getattr(holder, name)
    if isinstance(value, torch.Tensor):
        value.data.copy_(torch.zeros_like(value) if value.requires_grad else value * 0 + 1)
    else:
        setattr(holder, name, None if "softcap" in name else 1.0)
    return Done(site.module, f"{path}.{name} is left out".lstrip("."), (path,))
