"""Roundoffs on purpose: how far honest errors travel through a model is seen in a run with some."""

from __future__ import annotations

from typing import Any

import torch

from .constants import WHOLE_NUMBER_SIZE
from .op_values import changed
from .tensors import unseen
from .widening import MOVES, Args, EachOp, Kwargs, own_of, paired

aten = torch.ops.aten

_EXACT = MOVES | {
    *(aten.gather.default, aten.index.Tensor, aten.masked_select.default, aten.where.self),
    *(aten.scatter.src, aten.scatter.value, aten.index_put.default),
    *(aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.constant_pad_nd.default),
    *(aten.flip.default, aten.roll.default, aten.repeat.default, aten.tril.default),
    *(aten.triu.default, aten.relu.default, aten.neg.default, aten.abs.default),
    *(aten.max.default, aten.max.dim, aten.amax.default, aten.maximum.default),
    *(aten.min.default, aten.min.dim, aten.amin.default, aten.minimum.default),
    *(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default),
    *(aten.sort.default, aten.sort.stable, aten.topk.default, aten.kthvalue.default),
    *(aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default),
}
"""These and more that round nothing: a one among zeros stays a one, and the largest of some numbers
is one of them (keypoints are where an image is equal to its own maximum nearby)."""

_PRODUCTS = {
    aten.native_batch_norm.default: 0,
    aten._native_batch_norm_legit_no_training.default: 0,
    aten.cudnn_batch_norm.default: 0,
    aten.native_group_norm.default: 0,
    aten.native_layer_norm.default: 0,
    aten.addcmul.default: 1,
}
"""A product and a sum in one operation, and which of its arguments is multiplied. Where the two
cancel, all that the sum is off is the roundoff of the product: a processor with a fused
multiply-add has none of it, and so nor has a yardstick there, while another runtime may."""


class Jittered(EachOp):
    """Every float64 result is off by a random part of `roundoff`, relatively.

    Moves are exact, and so are whole numbers that the format can hold (a floor, a count), and those
    that the model makes of integers and constants in its own dtype.
    """

    def __init__(self, roundoff: float, seed: int = 0) -> None:
        super().__init__()
        self._roundoff = roundoff
        self._seed = seed
        self._random: dict[torch.device, torch.Generator] = {}

    def op(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if (place := _PRODUCTS.get(func)) is not None and place < len(args):
            args = (*args[:place], self._off(args[place]), *args[place + 1 :])
        given = func(*args, **kwargs)
        exact = func.is_view or func in _EXACT or func._schema.is_mutable
        return given if exact else changed(self._off, given)

    def _off(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float64:
            return value
        with unseen(value):
            off = self._moved(value)
        return off if (own := own_of(value)) is None else paired(off, own.tensor, own.alive)

    def _moved(self, value: torch.Tensor) -> torch.Tensor:
        if (random := self._random.get(value.device)) is None:
            random = torch.Generator(value.device).manual_seed(self._seed)
            self._random[value.device] = random
        noise = torch.empty_like(value, dtype=torch.float32)  # half as many bits to draw
        noise = noise.uniform_(-self._roundoff, self._roundoff, generator=random).double()
        asks = value.device.type == "cpu"  # to ask a GPU takes longer than to do it
        whole = value.frac() == 0
        if not asks or whole.any():
            noise.masked_fill_(whole & (value.abs() * self._roundoff < WHOLE_NUMBER_SIZE), 0.0)
        off = value.addcmul(value, noise)
        if not asks or not off.sum().isfinite():  # a mask's lowest number stays
            off = torch.where(off.isfinite(), off, value)
        return off
