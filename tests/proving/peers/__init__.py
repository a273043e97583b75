"""The peers: other tools that compare two runs of one model, asked about the same cases.

Each runs by its own code and at its own defaults. What a peer needs and does not make itself is
made here, alike for all: hooks on the repeated blocks, a cast to a half precision, an ONNX export.
"""

from __future__ import annotations

import copy
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..case import EVERY
from . import eager, graphs
from .answer import Answer, Peer
from .layers import Generating, first_line

__all__ = ["LARGEST_HALF", "PAGE", "PEERS", "Answer", "Peer", "ask_all"]

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
LARGEST_HALF = 50_000_000
"""Parameters above which a model is not run in half precision: a CPU takes minutes for it."""

PEERS: tuple[Peer, ...] = (
    Peer(
        name="torch.testing.assert_close",
        package="torch",
        runs=EVERY,
        ask=eager.assert_close,
        says="What engineers write by hand: forward hooks, and assert_close on each layer.",
        does=(
            "Forward hooks record every repeated block and the model's outputs on both sides. They "
            "are compared in the order in which the reference ran them, with PyTorch's default "
            "tolerance for the dtype; the first that fails is the place. Where the dtypes of the "
            "two sides differ, check_dtype=False is set, and PyTorch takes the wider tolerance."
        ),
        cannot=(
            "It knows no rounding error but that of one operation (1.3e-6 relative in float32), "
            "so another summation order may fail it. The first block that differs need not be "
            "the one at fault where a fault lies before the blocks. Where the two sides have "
            "other blocks, and in an ONNX graph, it compares outputs only and names no place."
        ),
    ),
    Peer(
        name="Polygraphy",
        package="polygraphy",
        runs=EVERY,
        ask=eager.polygraphy,
        says="NVIDIA's comparator: Comparator.compare_accuracy with its default compare function.",
        does=(
            "In PyTorch it is given the same hooked blocks and outputs, as RunResults of two "
            "runners. In ONNX it runs the candidate's graph, and a graph of the reference "
            "exported in the same way, with every tensor marked as an output, and compares "
            "tensors of the same name; graph outputs are compared with PyTorch's. The first tensor "
            "that fails is the place, by the module path that the exporter wrote on its node."
        ),
        cannot=(
            "An element passes where either its absolute or its relative error is below 1e-5, "
            "whatever the dtype, so half precision and int8 fail as a rule. NaN never passes, also "
            "where both sides have it. Where the tensors of two graphs have other names, it "
            "compares their outputs only. It tells no cause from what follows from it."
        ),
    ),
    Peer(
        name="torch.onnx.verification",
        package="torch",
        runs=("onnx",),
        ask=graphs.torch_verification,
        says="PyTorch's check of an ONNX export against the program that it was exported from.",
        does=(
            "verify_onnx_program compares the outputs of an exported program with those of its "
            "ONNX graph. It is given the reference's program with the candidate's graph, so that "
            "it can see a fault on either way into the graph. The verdict is that of its caller, "
            "torch.onnx.export(verify=True): an absolute difference of 5e-3 or more, or a relative "
            "one of 0.1 or more, is a failure."
        ),
        cannot=(
            "It runs ONNX only. Used as documented, on a model and its own export, a fault "
            "in the PyTorch model itself is invisible to it. By default it compares outputs and "
            "names no place; compare_intermediates=True would, but runs the graph once for each "
            "value: minutes for a three-layer Llama of width 32. A NaN passes its thresholds, on "
            "one side or both, and a value near 0 may fail the relative one."
        ),
    ),
    Peer(
        name="torch._dynamo same",
        package="torch",
        runs=EVERY,
        ask=eager.dynamo_same,
        says="The accuracy check of PyTorch's compiler, with a float64 run as the truth.",
        does=(
            "same() is called as PyTorch's accuracy minifier calls it (tolerance 1e-3, equal NaNs "
            "pass) on the outputs of the reference in the candidate's dtype, of the candidate, and "
            "of the reference in float64. What allclose refuses passes still if its error "
            "against float64 is at most 2 to 3 times the reference's own, plus 1e-4."
        ),
        cannot=(
            "It compares outputs only, so it names no place; the minifier cuts compiled graphs, "
            "which a model changed by hand does not have. It presumes one dtype on both sides: a "
            "half-precision candidate is compared with the reference in that precision, so that a "
            "precision too low for the model passes."
        ),
    ),
    Peer(
        name="onnx-diagnostic",
        package="onnx-diagnostic",
        runs=("onnx",),
        ask=graphs.onnx_diagnostic,
        says="Runs a torch.export program and an ONNX graph side by side, value by value.",
        does=(
            "run_aligned runs the reference's exported program and the candidate's ONNX graph "
            "node by node with onnxruntime, and reports the largest errors for every value that "
            "has the same name in both. It has no verdict; taken as one is the condition that it "
            "prints as a discrepancy: an absolute or a relative error above 1e-5, the defaults of "
            "its command `sbs`. The first such value is the place."
        ),
        cannot=(
            "It runs ONNX only. A relative error above 1e-5 somewhere is the rule in float32 as "
            "soon as values near 0 occur, so clean exports have discrepancies. Where the name, "
            "shape and dtype of an initialiser fit a parameter of the program, it runs "
            "the graph with the program's value, so that a changed weight in the graph is "
            "not seen unless its shape repeats a length. It needs the nodes of both to have the "
            "same names, and stops at some operations of torch.export (a memory_format in Llama)."
        ),
    ),
)

PAGE: dict[str, dict[str, str]] = {
    peer.name: {"says": peer.says, "does": peer.does, "cannot": peer.cannot} for peer in PEERS
}
"""What each peer can and cannot do, for the published page."""


def ask_all(
    reference: object, candidate: object, inputs: Mapping[str, Any], run: str
) -> dict[str, Answer]:
    """What every peer says of one case; a candidate may be a module or the path of an ONNX file.

    `module`, `compare`, `set` and `pair` are to a peer what `fp32` is: two modules, one probe.
    """
    able = [peer for peer in PEERS if peer.can(run)]
    answers = {
        peer.name: Answer("cannot", why=f"it has no way to run {run}")
        for peer in PEERS
        if peer not in able
    }
    with quiet(), tempfile.TemporaryDirectory() as folder:
        try:
            sides = _prepared(reference, candidate, inputs, run, Path(folder))
        except Exception as error:  # whatever a cast, a quantiser or an exporter raises
            failed = Answer("cannot", why=f"the candidate cannot be made: {first_line(error)}")
            answers |= {peer.name: failed for peer in able}
        else:
            answers |= {peer.name: _asked(peer, *sides[:2], inputs, sides[2]) for peer in able}
    return {peer.name: answers[peer.name] for peer in PEERS}


def _asked(
    peer: Peer,
    reference: nn.Module,
    candidate: nn.Module | None,
    inputs: Mapping[str, Any],
    graph: Path | None,
) -> Answer:
    try:
        return peer.ask(reference, candidate, inputs, graph)
    except Exception as error:  # a peer raises what it likes
        return Answer("cannot", why=first_line(error))


def _prepared(
    reference: object, candidate: object, inputs: Mapping[str, Any], run: str, folder: Path
) -> tuple[nn.Module, nn.Module | None, Path | None]:
    """Both sides as a run has them, and the candidate's graph where it is one."""
    if run not in EVERY:
        raise ValueError(f"no such run: {run}")
    if not isinstance(reference, nn.Module):
        raise TypeError("the reference is not a torch module")
    if isinstance(candidate, Path) and run == "onnx":
        return reference, None, candidate
    if not isinstance(candidate, nn.Module):
        raise TypeError("the candidate is not a torch module")
    if run == "onnx":
        return reference, candidate, graphs.written(candidate, inputs, folder / "candidate.onnx")
    if run == "generate":
        return Generating(reference), Generating(candidate), None
    if run == "int8":
        quantise = torch.ao.quantization.quantize_dynamic
        return reference, quantise(candidate, {nn.Linear}, dtype=torch.qint8), None
    if run in HALF:
        if sum(p.numel() for p in candidate.parameters()) > LARGEST_HALF:
            raise ValueError("the model is too large for half precision on a CPU")
        return reference, copy.deepcopy(candidate).to(HALF[run]), None
    return reference, candidate, None


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings and no log lines: what a peer prints beside its verdict is not asked for."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
