"""The command `bench`: how fast backends are, and a gate on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from .console import guarded
from .failing import SlowdownOption, slower
from .options import (
    BlocksOption,
    JsonOption,
    ModelArgument,
    ProbeOption,
    PromptOption,
    SeedOption,
    TrustOption,
)
from .rendering import FolderOption, finish_document, make_document

if TYPE_CHECKING:
    from ..tasks.bench.result import BenchReport

INTERRUPTED = 130


@guarded
def bench(
    model: ModelArgument,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend",
            "-b",
            metavar="SPEC",
            help="What to time; the first is what the others are held against. "
            "Torch and onnxruntime, if none is named.",
            show_default=False,
        ),
    ] = None,
    prompt: PromptOption = None,
    probe: ProbeOption = None,
    batch: Annotated[
        str, typer.Option("--batch", metavar="LIST", help="Rows of the default probe: 1,4.")
    ] = "",
    length: Annotated[
        str, typer.Option("--length", metavar="LIST", help="Positions of it: 32,128.")
    ] = "",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Timed runs of each.")] = 30,
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Runs before that.")] = 3,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.0, help="Stop a case after so long.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="CPU threads of each; all cores, if not said."),
    ] = None,
    isolate: Annotated[
        bool, typer.Option("--isolate/--in-process", help="A process of its own for each.")
    ] = True,
    layers: Annotated[
        bool, typer.Option("--layers/--no-layers", help="Time by layer too, in runs of its own.")
    ] = True,
    fail_on: Annotated[
        str | None,
        typer.Option("--fail-on", metavar="slower", help="Exit code 1 when one is slower."),
    ] = None,
    max_slowdown: SlowdownOption = 1.10,
    seed: SeedOption = 0,
    blocks: BlocksOption = None,
    trust_remote_code: TrustOption = False,
    report: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time backends of MODEL against each other: plain runs, taking turns."""
    from ..errors import UsageError
    from ..tasks.bench.run import bench as run

    if fail_on not in (None, "slower"):
        raise UsageError(f"--fail-on {fail_on}: only 'slower' is known.")
    if prompt and probe is not None:
        raise UsageError("Give one of --prompt and --probe.")
    found = make_document(
        run,
        report,
        model,
        backend or ["torch", "onnxruntime"],
        list(prompt) if prompt else probe,
        batch=_numbers("--batch", batch),
        length=_numbers("--length", length),
        rounds=rounds,
        warmup=warmup,
        seconds=seconds,
        threads=threads,
        isolate=isolate,
        layers=layers,
        seed=seed,
        blocks=blocks,
        trust_remote_code=trust_remote_code,
    )
    code = _gate(found, max_slowdown) if fail_on else 0
    finish_document(found, report, as_json, code if found.complete else INTERRUPTED)


def _gate(found: BenchReport, most: float) -> int:
    """1 where an interval says that one is slower than allowed."""
    told = [
        slower(f"{entry.backend.spec} at {case.batch} x {case.length}", ratio, most)
        for case, entry, ratio in found.ratios
    ]
    return int(any(told))


def _numbers(option: str, text: str) -> Sequence[int]:
    from ..errors import UsageError

    try:
        found = [int(word) for word in text.replace(",", " ").split()]
    except ValueError:
        found = [0]
    if any(number < 1 for number in found):
        raise UsageError(f"{option} {text!r}: write whole numbers from 1, with commas: 1,4.")
    return found
