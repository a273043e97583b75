"""The command `bench`: how fast backends are, and a gate on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from . import options
from .console import guarded
from .failing import SlowdownOption, slower
from .options import option
from .rendering import FolderOption, finish_document, make_document

if TYPE_CHECKING:
    from ..tasks.bench.result import BenchReport

INTERRUPTED = 130


@guarded
def bench(
    model: options.ModelArgument,
    backend: Annotated[
        list[str] | None,
        option(
            "--backend -b SPEC",
            "What to time; the first is what the others are held against. "
            "Torch and onnxruntime, if none is named.",
            show_default=False,
        ),
    ] = None,
    prompt: options.PromptOption = None,
    inputs: options.InputOption = None,
    probe: options.ProbeOption = None,
    batch: Annotated[str, option("--batch LIST", "Rows of the default probe: 1,4.")] = "",
    length: Annotated[str, option("--length LIST", "Positions of it: 32,128.")] = "",
    rounds: Annotated[int, option("--rounds", "Timed runs of each.", min=1)] = 30,
    warmup: Annotated[int, option("--warmup", "Runs before that.", min=0)] = 3,
    seconds: Annotated[
        float | None, option("--seconds", "Stop a case after so long.", min=0.0)
    ] = None,
    threads: Annotated[
        int | None, option("--threads", "CPU threads of each; all cores, if not said.", min=1)
    ] = None,
    isolate: Annotated[
        bool, option("--isolate/--in-process", "A process of its own for each.")
    ] = True,
    layers: Annotated[
        bool, option("--layers/--no-layers", "Time by layer too, in runs of its own.")
    ] = True,
    fail_on: Annotated[
        str | None, option("--fail-on slower", "Exit code 1 when one is slower.")
    ] = None,
    max_slowdown: SlowdownOption = 1.10,
    seed: options.SeedOption = 0,
    blocks: options.BlocksOption = None,
    trust_remote_code: options.TrustOption = False,
    report: FolderOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Time backends of MODEL against each other: plain runs, taking turns."""
    from ..errors import UsageError
    from ..tasks.bench.run import bench as run

    if fail_on not in (None, "slower"):
        raise UsageError(f"--fail-on {fail_on}: only 'slower' is known.")
    timed = make_document(
        run,
        report,
        model,
        backend or ["torch", "onnxruntime"],
        options.given_probe(prompt, None, probe, inputs),
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
    code = _gate(timed, max_slowdown) if fail_on else 0
    finish_document(timed, report, as_json, code if timed.complete else INTERRUPTED)


def _gate(timed: BenchReport, most: float) -> int:
    """1 where an interval says that one is slower than allowed."""
    too_slow = [
        slower(f"{entry.backend.spec} at {case.batch} x {case.length}", ratio, most)
        for case, entry, ratio in timed.ratios
    ]
    return int(any(too_slow))


def _numbers(option: str, text: str) -> Sequence[int]:
    from ..errors import UsageError

    try:
        numbers = [int(word) for word in text.replace(",", " ").split()]
    except ValueError:
        numbers = [0]
    if any(number < 1 for number in numbers):
        raise UsageError(f"{option} {text!r}: write whole numbers from 1, with commas: 1,4.")
    return numbers
