"""The command `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import guarded
from .options import JsonOption, ReportOption
from .rendering import finish
from .verify import run_verify


@guarded
def demo(
    fault: Annotated[
        int | None,
        typer.Option(
            "--fault",
            min=0,
            max=5,
            metavar="LAYER",
            help="Change one weight of this layer (0 to 5) in the candidate, to see drift found.",
        ),
    ] = None,
    report: ReportOption = Path("driftwalk-report"),
    as_json: JsonOption = False,
) -> None:
    """The whole thing on a model that is built in: PyTorch against ONNX Runtime."""
    from ..files import writable_folder

    if report is not None:
        writable_folder(report)
    candidate: object = "onnxruntime"
    if fault is not None:
        from driftwalk_backends.demo import faulty_decoder
        from driftwalk_backends.torch_eager import TorchEager

        candidate = TorchEager.around(faulty_decoder(fault), f"demo:decoder, layer {fault} changed")
    prompts = ["The capital of France is Paris.", "Drift walks from layer to layer."]
    finish(run_verify("demo:decoder", [candidate], "torch", prompts, "calibrated"), report, as_json)
