"""Faults of porting in what works on images: batch norms, convolutions, pooling."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..case import Done, Site, family
from ..spots import LIVE, UNROUNDED, calls, shown, used, wrapped


def _batch_norm(part: nn.Module) -> bool:
    return isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None


@family("porting", "fault", LIVE)
@shown
def batch_norm_in_training(site: Site) -> Done:
    """One BatchNorm uses the statistics of the batch"""

    def around(part: Any, forward: Any, x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, None, None, part.weight, part.bias, True, 0.0, part.eps)

    path = site.choose(used(site, _batch_norm))
    return wrapped(site, path, around, "uses the statistics of the batch")


@family("porting", "fault")
@shown
def batch_norm_unloaded(site: Site) -> Done:
    """The running statistics of one BatchNorm are those of a new one"""
    path = site.choose(used(site, _batch_norm))
    part: Any = site.module.get_submodule(path)
    part.running_mean.zero_()
    part.running_var.fill_(1)
    return Done(site.module, f"{path} has the statistics of a new one", (path,))


@family("porting", "fault", UNROUNDED)
@shown
def batch_norm_epsilon(site: Site) -> Done:
    """One BatchNorm has the epsilon of another library, 1e-3"""
    path = site.choose(used(site, _batch_norm))
    site.module.get_submodule(path).eps = 1e-3  # type: ignore[assignment]
    return Done(site.module, f"{path}.eps is 1e-3", (path,))


def _conv(part: nn.Module) -> bool:
    return isinstance(part, nn.Conv1d | nn.Conv2d)


@family("porting", "fault")
@shown
def padding_of_other_kind(site: Site) -> Done:
    """One convolution pads with the other edge, or the last value, in place of zeros"""

    def pads(part: Any) -> bool:
        zeros = _conv(part) and part.padding_mode == "zeros"
        return zeros and isinstance(part.padding, tuple) and any(part.padding)

    path = site.choose(used(site, pads))
    mode = site.rng.choice(["circular", "replicate"])
    site.module.get_submodule(path).padding_mode = mode  # type: ignore[assignment]
    return Done(site.module, f"{path} has padding {mode}", (path,))


@family("porting", "fault")
@shown
def padding_on_one_side(site: Site) -> Done:
    """One convolution has its padding on the other side: its input is shifted by one"""

    def around(part: Any, forward: Any, x: torch.Tensor) -> torch.Tensor:
        return forward(F.pad(x, (-1, 1) * len(part.kernel_size)))

    path = site.choose(used(site, _conv))
    return wrapped(site, path, around, "sees its input shifted by one")


_POOL = {
    **{nn.MaxPool1d: F.avg_pool1d, nn.MaxPool2d: F.avg_pool2d},
    **{nn.AvgPool1d: F.max_pool1d, nn.AvgPool2d: F.max_pool2d},
    **{nn.AdaptiveAvgPool1d: F.adaptive_max_pool1d, nn.AdaptiveAvgPool2d: F.adaptive_max_pool2d},
}


@family("porting", "fault")
@shown
def pooling_of_other_kind(site: Site) -> Done:
    """One pooling takes the mean where it took the maximum, or the reverse"""

    def around(part: Any, forward: Any, x: torch.Tensor) -> torch.Tensor:
        if hasattr(part, "output_size"):
            return pool(x, part.output_size)
        return pool(x, part.kernel_size, part.stride, part.padding, ceil_mode=part.ceil_mode)

    path = site.choose(used(site, lambda part: type(part) in _POOL))
    pool: Any = _POOL[type(site.module.get_submodule(path))]
    return wrapped(site, path, around, f"is {pool.__name__}")


@family("porting", "fault")
@shown
def upsampling_of_other_kind(site: Site) -> Done:
    """One upsampling aligns corners where it did not, or interpolates where it repeated"""
    path = site.choose(used(site, lambda part: isinstance(part, nn.Upsample)))
    part: Any = site.module.get_submodule(path)
    if part.mode == "nearest":
        part.mode = {3: "linear", 4: "bilinear"}.get(calls(site)[path].main.ndim, "trilinear")
    else:
        part.align_corners = not part.align_corners
    says = f"{path} is {part.mode}, align_corners={part.align_corners}"
    return Done(site.module, says, (path,))
