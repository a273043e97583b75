"""The `gguf` backend: the weights that a GGUF file declares, run by plain PyTorch in float32.

What differs from the model that the file was made of is what the file's format costs, and nothing
else; weights that are no rounding of the model's are the file's fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import ClassVar

from driftwalk.adapter import BackendInfo, Offer
from driftwalk.errors import UsageError
from driftwalk.spec import Spec

from ..fingerprint import versions
from ..loaded import LoadedModel
from ..sources import torch_model
from ..torch_eager import TorchEager
from .declared import declared_by_file
from .header import read_header
from .naming import naming_of
from .source import INSTALL, PACKAGES, file_of, open_gguf


class GgufInTorch(TorchEager):
    """A file's weights in place of the model's."""

    name: ClassVar[str] = "gguf"
    options: ClassVar[Mapping[str, str]] = {}

    def __init__(self, spec: Spec, model: object) -> None:
        if spec.dtype or spec.device:
            raise UsageError(f"{spec}: it is run on the CPU in fp32; name the file alone.")
        spec.allow_options(self.options)
        self._like = torch_model(model)
        path = file_of(spec, self._like)
        self._header = read_header(path)
        held = open_gguf(path, self._like.blocks)
        held.like = self._like
        super().__init__(spec, held)

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        lacking = [name for name in PACKAGES if find_spec(name) is None]
        if lacking:
            return [Offer("gguf", False, f"{' and '.join(lacking)} not installed: {INSTALL}")]
        here = versions("gguf").get("gguf", "of unknown version")
        return [Offer("gguf", True, f"gguf {here}, a file's weights in torch")]

    @property
    def info(self) -> BackendInfo:
        types = sorted({one.type.name for one in self._header.tensors.values()})
        return BackendInfo(
            spec=str(self.spec),
            name=self.name,
            device="cpu",
            dtype="fp32",
            versions=versions("gguf", "torch", "transformers"),
            flags={"file": self._header.path.name, "types": ", ".join(types), **self._flags()},
        )

    def shows(self, model: LoadedModel) -> bool:
        return False

    def honest_model(self) -> LoadedModel | None:
        """The model with the file's weights, as far as they are its own, rounded."""
        naming = naming_of(self._header)
        if naming is None:
            return None
        return declared_by_file(self._like, self._header, naming, None)
