"""Every model class that the installed transformers knows, built tiny from its default config.

Nothing here knows a model by name. A config is shrunk by what its keys are called: widths are
divided, layers, experts and vocabularies are capped, token ids are moved into the vocabulary.
Where a model cannot be built so, it is tried with other factors, and then given up with the reason.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, ResNetConfig

from .shrinking import Shrink, shrunk, sub_configs

MOST_PARAMETERS = 3_000_000
"""What a model may have at most where some factor gives as little."""
NOT_SO_SMALL = 20_000_000
"""The same for further models of a class, which are asked for where the first cannot be run."""
TOO_MANY = 80_000_000
"""More parameters than that are never made."""
MOST_SECONDS = 40.0
"""After that, a class that could not be built in some ways is not tried in others."""
FACTORS = (8, 16, 1, 4, 32, 2)
WAYS = ("in place", "anew", "heads", "deep")
"""Values are changed in the config that was made, or handed to a new one, which derives others; or
there are fewer heads instead of narrower ones; or as many layers as before."""
STAND_IN = ["stage2", "stage3", "stage4"]
"""Stages of the backbone that is given in the place of one of a package that is not installed."""
SMALL = 4
"""What a key is given that has no default and must have a value."""


class NotBuiltError(Exception):
    """No rule gave a model of this class; says why."""


class TooLargeError(Exception):
    """A model that would have too many parameters."""

    def __init__(self, parameters: int, most: int) -> None:
        super().__init__(f"{parameters:,} parameters, more than {most:,}")
        self.parameters = parameters


@dataclass(frozen=True)
class Built:
    """A tiny model, and by how much its widths were divided."""

    model: nn.Module
    factor: int
    parameters: int


def folders() -> list[str]:
    """The folders of transformers that hold an architecture each; nothing is imported for it."""
    from transformers import models

    return sorted(item.name for item in pkgutil.iter_modules(models.__path__))


def classes(of: Iterable[str] | None = None) -> dict[str, type[PreTrainedModel]]:
    """Every exported model class with a forward of its own, as `folder.Class`."""
    known: dict[str, type[PreTrainedModel]] = {}
    for folder in folders() if of is None else of:
        package = importlib.import_module(f"transformers.models.{folder}")
        for item in pkgutil.iter_modules(package.__path__):
            if re.match(r"modeling_(?!tf_|flax_)", item.name):
                kinds = _exported(package.__name__, item.name)
                known |= {f"{folder}.{kind.__name__}": kind for kind in kinds}
    return known


def _exported(package: str, file: str) -> Iterator[type[PreTrainedModel]]:
    try:
        module = importlib.import_module(f"{package}.{file}")
    except Exception:  # a package that is not installed here
        return
    for name in getattr(module, "__all__", ()):
        kind = getattr(module, name, None)
        if (
            isinstance(kind, type)
            and issubclass(kind, PreTrainedModel)
            and kind.__module__ == module.__name__
            and isinstance(getattr(kind, "config_class", None), type)
            and _has_forward(kind)
        ):
            yield kind


def _has_forward(kind: type[PreTrainedModel]) -> bool:
    own = kind.__mro__[: kind.__mro__.index(PreTrainedModel)]
    return any("forward" in vars(parent) for parent in own)


def build(kind: type[PreTrainedModel], seed: int = 0) -> Built:
    """A seeded tiny model of a class: the first of those that can be built."""
    return next(builds(kind, seed))


def builds(
    kind: type[PreTrainedModel], seed: int = 0, patience: float = MOST_SECONDS
) -> Iterator[Built]:
    """Tiny models of a class, shrunk in different ways: not all that can be built can be run."""
    problems: list[str] = []
    too_large: list[tuple[int, int, str]] = []
    count = 0
    begun = time.monotonic()
    for factor, way in product(FACTORS, WAYS):
        if problems and time.monotonic() - begun > patience:
            break
        try:
            most = NOT_SO_SMALL if count else MOST_PARAMETERS
            yield _built(kind, factor, way, seed, most)
            count += 1
        except TooLargeError as error:
            too_large.append((error.parameters, factor, way))
        except Exception as error:
            problems.append(f"{type(error).__name__}: {first_line(error)}")
            if len(problems) == 1 and (own := _own_problem(kind)):
                raise NotBuiltError(f"not from its own default config: {own}") from None
    for _, factor, way in sorted(too_large):
        try:
            yield _built(kind, factor, way, seed, TOO_MANY)
            count += 1
        except Exception as error:
            problems.append(f"{type(error).__name__}: {first_line(error)}")
            break
    if not count:
        raise NotBuiltError(problems[0])


def _own_problem(kind: type[PreTrainedModel]) -> str:
    """Why a class cannot be built from its default config either, with few layers; or nothing."""
    own = ""
    try:
        for config in _configs(kind):
            problem = _meta_problem(kind, shrunk(config, Shrink(1)))
            if not problem or "meta" in problem:  # it may only not be made without memory
                return ""
            own = own or problem
    except Exception as error:
        own = f"{type(error).__name__}: {first_line(error)}"
    return own


def own_failure(kind: type[PreTrainedModel], small: nn.Module) -> str:
    """What a class says to ids of a text when it has its own default config, as it is; or nothing.

    Only if the small model says the same, and does not ask for more than a text. Without memory for
    weights: values of the config fail there just as well.
    """
    takes = set(inspect.signature(kind.forward).parameters)
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            own = _text_failure(kind(copy.deepcopy(_default_config(kind))), torch.device("meta"))
    except Exception:
        return ""
    more = any(re.search(r"pixel|image|video|audio|feature|value", name) for name in takes)
    if more and ("None" in own or takes & set(re.findall(r"\w+", own))):
        return ""
    alike = _without_numbers(_text_failure(small, torch.device("cpu"))) == _without_numbers(own)
    return own if alike else ""


def _text_failure(model: nn.Module, device: torch.device) -> str:
    takes = inspect.signature(model.forward).parameters
    names = ("input_ids", "decoder_input_ids")
    ids = torch.ones(2, 16, dtype=torch.long, device=device)
    quiet = {"use_cache": False} if "use_cache" in takes else {}
    try:
        with torch.no_grad():
            model.eval()(**{name: ids for name in names if name in takes}, **quiet)
    except Exception as error:
        return f"{type(error).__name__}: {first_line(error)}"
    return ""


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "N", text)


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else ""


def _built(kind: type[PreTrainedModel], factor: int, way: str, seed: int, most: int) -> Built:
    problem: Exception | None = None
    for config in _configs(kind):
        try:
            shrink = Shrink(factor, heads=way == "heads", deep=way == "deep")
            small = shrunk(config, shrink, anew=way == "anew")
            model = _made(kind, small, seed, most)
        except Exception as error:
            problem = problem or error
            continue
        return Built(model, factor, sum(p.numel() for p in model.parameters()))
    raise problem or NotBuiltError("no config")


def _made(
    kind: type[PreTrainedModel], config: PretrainedConfig, seed: int, most: int
) -> PreTrainedModel:
    if (parameters := _size(kind, config)) > most:
        raise TooLargeError(parameters, most)
    return _seeded(partial(kind, config), seed)


def _size(kind: type[PreTrainedModel], config: PretrainedConfig) -> int:
    """How many parameters a model will have; 0 where it cannot be made without memory."""
    try:
        with torch.device("meta"):
            return sum(p.numel() for p in kind(copy.deepcopy(config)).parameters())
    except Exception:
        return 0


def _configs(kind: type[PreTrainedModel]) -> Iterator[PretrainedConfig]:
    """The default config, or that of a part: a class may be a part of what its config describes."""
    config = _default_config(kind)
    yield config
    words = {word.lower() for word in re.findall(r"[A-Z][a-z]+|[A-Z]+(?![a-z])", kind.__name__)}
    parts = sorted(sub_configs(config).items(), key=lambda i: not words & set(i[0].split("_")))
    yield from (part for _, part in parts)


@cache
def _default_config(kind: type[PreTrainedModel]) -> PretrainedConfig:
    """The default config of a class; where some keys must have a value, messages say which."""
    given: dict[str, Any] = {}
    for _ in range(4):
        try:
            problem = _meta_problem(kind, kind.config_class(**given))
        except Exception as error:
            problem = f"{type(error).__name__}: {first_line(error)}"
        more = _asked_for(problem)
        if re.search(r"(?i)timm", problem):
            # It need not be installed: a backbone of transformers may do as well.
            more = {"backbone_config": ResNetConfig(out_features=STAND_IN)}
        if not more or more.keys() <= given.keys():
            break
        given |= more
    return kind.config_class(**given)


def has_stand_in(kind: type[PreTrainedModel]) -> bool:
    """Whether a class was given another backbone than its own, for lack of a package."""
    backbone = getattr(_default_config(kind), "backbone_config", None)
    return isinstance(backbone, ResNetConfig) and backbone.out_features == STAND_IN


def _meta_problem(kind: type[PreTrainedModel], config: PretrainedConfig) -> str:
    """What a class says to its config as it is, without memory for weights."""
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind(copy.deepcopy(config))
    except Exception as error:
        return f"{type(error).__name__}: {first_line(error)}"
    return ""


def _asked_for(message: str) -> dict[str, Any]:
    named = re.search(r"`(\w+)` (?:config )?(?:needs|has) to be", message)
    return {named.group(1): SMALL} if named else {}


def _seeded(make: Callable[[], PreTrainedModel], seed: int) -> PreTrainedModel:
    """A model with noise on biases and gains, which initialisers leave at 0 and 1, and in memory
    that they leave as they found it."""
    with torch.random.fork_rng(), _uninitialised_is_nan(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        model = make().eval()
        tensors = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
        for tensor in tensors:
            if not torch.isfinite(tensor).all():
                tensor.data = torch.where(
                    torch.isnan(tensor), 0.02 * torch.randn_like(tensor), tensor.data
                )
        for parameter in model.parameters():
            if parameter.ndim == 1 and parameter.is_floating_point():
                parameter.data += 0.05 * torch.randn_like(parameter)
    return model.float()


@contextmanager
def _uninitialised_is_nan() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
