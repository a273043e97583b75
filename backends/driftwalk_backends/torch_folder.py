"""`torch,folder=DIR`: another saved model in the place of the model, as transformers loads it.

What was quantised stays so (compressed-tensors, bitsandbytes, torchao), and nothing is cast: it
is what is deployed. Its layers are held against the model's, its stored weights, too.
"""

from __future__ import annotations

from driftwalk.errors import UsageError
from driftwalk.spec import Spec

from .given import GivenModel
from .sources import as_saved, torch_model
from .torch_eager import TorchEager


class TorchFolder(TorchEager):
    """Eager PyTorch on a folder's own weights."""

    def __init__(self, spec: Spec, model: object) -> None:
        like = torch_model(model)
        folder = spec.options["folder"]
        if spec.dtype or "attn" in spec.options or "stream" in spec.options:
            raise UsageError(
                f"{spec}: a folder is run as it was saved; name no dtype, no attn= and no stream=."
            )
        if spec.device not in ("", "cpu"):
            raise UsageError(f"{spec}: a folder is run on the CPU.")
        module = as_saved(folder, like.trust_remote_code)
        super().__init__(spec, GivenModel(module, folder, like))
