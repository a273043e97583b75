"""The commands one tries first: `backends` shows what is usable here, `demo` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from .configured import verified
from .console import guarded, show, show_json
from .options import JsonOption, ReportOption, option
from .rendering import finish


@guarded
def backends(as_json: JsonOption = False) -> None:
    """What is usable here, and why the rest is not."""
    from ..adapter import Offer
    from ..registry import backend_class, known_backends

    offers: list[Offer] = []
    for name in known_backends():
        try:
            offers += backend_class(name).offers()
        except Exception as error:
            offers.append(Offer(name, False, f"{type(error).__name__}: {error}"))
    if as_json:
        show_json([vars(offer) for offer in offers])
        return
    width = max(len(offer.spec) for offer in offers)
    show("\n".join(f"{'✓' if o.usable else '✗'} {o.spec:<{width}}  {o.note}" for o in offers))


@guarded
def demo(
    fault: Annotated[
        int | None,
        option(
            "--fault LAYER",
            "Change one weight of this layer (0 to 5) in the candidate, to see drift found.",
            min=0,
            max=5,
        ),
    ] = None,
    report: ReportOption = Path("driftwalk-report"),
    as_json: JsonOption = False,
) -> None:
    """The whole thing on a model that is built in: PyTorch against ONNX Runtime."""
    candidate: object = "onnxruntime"
    if fault is not None:
        from driftwalk_backends.demo import faulty_decoder
        from driftwalk_backends.torch_eager import TorchEager

        candidate = TorchEager.around(faulty_decoder(fault), f"demo:decoder, layer {fault} changed")
    prompts = ["The capital of France is Paris.", "Drift walks from layer to layer."]
    finish(verified("demo:decoder", [candidate], folder=report, probe=prompts), report, as_json)
