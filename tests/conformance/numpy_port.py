"""A third party's backend: GPT-2 written in plain numpy, in float64. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from driftwalk.adapter import Backend, BackendInfo, Offer, Sink
from driftwalk.dtypes import Array
from driftwalk.errors import ProbeError, UsageError
from driftwalk.spec import Spec
from driftwalk.states import Point, Probe, State


class NumpyPort(Backend):
    """Reads the weights once, then computes every layer by hand."""

    name = "numpy_port"

    def __init__(self, spec: Spec, model: Any) -> None:
        super().__init__(spec)
        if spec.device not in ("", "cpu") or spec.dtype not in ("", "fp64"):
            raise UsageError(f"numpy_port runs on cpu in fp64 only, not {spec}.")
        self._config = model.config
        self._weights = {
            name: tensor.detach().double().numpy().copy()
            for name, tensor in model.module.state_dict().items()
        }

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return [Offer("numpy_port", True, f"numpy {np.__version__}")]

    @property
    def info(self) -> BackendInfo:
        versions = {"numpy": np.__version__}
        return BackendInfo(str(self.spec), self.name, "cpu", "fp64", versions)

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        for name in probe.inputs:
            if name not in ("input_ids", "attention_mask"):
                raise ProbeError(f"numpy_port takes no input {name!r}.")
        if "input_ids" not in probe.inputs:
            raise ProbeError("numpy_port needs input_ids.")

        def give(point: str, array: Array) -> None:
            if sink is not None:
                sink(State(Point(point), array.copy()))

        ids = probe.inputs["input_ids"]
        mask = probe.inputs.get("attention_mask", np.ones_like(ids))
        x = self._w("wte.weight")[ids] + self._w("wpe.weight")[: ids.shape[1]]
        give("embed", x)
        for number in range(self._config.n_layer):
            x = self._block(f"h.{number}.", x, mask)
            give(f"layer.{number}", x)
        x = self._norm("ln_f.", x)
        give("norm", x)
        logits = x @ self._weights["lm_head.weight"].T
        give("logits", logits)
        return {"logits": logits}

    def _w(self, name: str) -> Array:
        return self._weights[f"transformer.{name}"]

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self._w(f"{name}.weight") + self._w(f"{name}.bias")

    def _norm(self, name: str, x: Array) -> Array:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + self._config.layer_norm_epsilon)
        return x * self._w(f"{name}weight") + self._w(f"{name}bias")

    def _block(self, name: str, x: Array, mask: Array) -> Array:
        x = x + self._attention(f"{name}attn.", self._norm(f"{name}ln_1.", x), mask)
        y = self._linear(f"{name}mlp.c_fc", self._norm(f"{name}ln_2.", x))
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        return x + self._linear(f"{name}mlp.c_proj", y)

    def _attention(self, name: str, x: Array, mask: Array) -> Array:
        batch, length, width = x.shape
        heads = self._config.n_head
        parts = np.split(self._linear(f"{name}c_attn", x), 3, axis=-1)
        q, k, v = (p.reshape(batch, length, heads, -1).swapaxes(1, 2) for p in parts)
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(width // heads)
        seen = np.tri(length, dtype=bool) & (mask[:, None, None, :] != 0)
        scores = np.where(seen, scores, -1e30)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
        return self._linear(f"{name}c_proj", (weights @ v).swapaxes(1, 2).reshape(x.shape))
