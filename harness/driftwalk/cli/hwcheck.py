"""The command `hwcheck`: does this device give the same bits each time, and the right ones?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import guarded, say, this_command, working
from .options import JsonOption, ProbeOption, TrustOption
from .rendering import FolderOption, finish_document

LevelOption = Annotated[
    str, typer.Option("--level", metavar="L", help="quick (under a minute), standard or soak.")
]
MinutesOption = Annotated[
    float | None, typer.Option("--minutes", min=0.0, help="How long a soak takes.")
]
BuiltInOption = Annotated[
    str | None, typer.Option("--model", metavar="M", help="A model instead of the built-in one.")
]
CheckOption = Annotated[
    list[str] | None,
    typer.Option(
        "--check",
        metavar="NAME",
        help="Only this: repeat, units, load, golden, devices, invariance. May be repeated.",
    ),
]
DtypeOption = Annotated[
    list[str] | None,
    typer.Option("--dtype", metavar="T", help="Only this: fp64, fp32, tf32, bf16, fp16, fp8."),
]


@guarded
def hwcheck(
    device: Annotated[
        str,
        typer.Option("--device", "-d", metavar="D", help="cpu, cuda, cuda:N, several, or all."),
    ] = "cpu",
    level: LevelOption = "quick",
    minutes: MinutesOption = None,
    golden: Annotated[
        Path | None,
        typer.Option("--golden", metavar="TRACE", help="States that a trusted machine recorded."),
    ] = None,
    record_golden: Annotated[
        Path | None,
        typer.Option("--record-golden", metavar="TRACE", help="Record them here, check nothing."),
    ] = None,
    model: BuiltInOption = None,
    probe: ProbeOption = None,
    check: CheckOption = None,
    dtype: DtypeOption = None,
    trust_remote_code: TrustOption = False,
    report: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the hardware: the same states to the last bit, cold and hot, in every dtype.

    Exit code 0: no fault found; 1: a fault; 3: nothing could be compared; 130: interrupted by
    Ctrl-C, no fault until then. What was found until then is printed and written all the same.
    """
    from ..errors import UsageError
    from ..files import writable_folder
    from ..tasks.hardware import check as run
    from ..tasks.hardware.golden import record

    if record_golden is not None:
        if model is not None:
            raise UsageError("--record-golden records the built-in model; `driftwalk record` any.")
        with working():
            made = record(device, (dtype or ["fp32"])[0])
        say(f"Trace: {made.save(record_golden)}")
        return
    if probe is not None and model is None:
        raise UsageError("--probe is for --model; the built-in model brings its own.")
    if report is not None:
        writable_folder(report)
    subject: object = model
    if model is not None and trust_remote_code:
        from ..stage import open_model

        subject = open_model(model, trust_remote_code=True)
    with working() as bar:
        result = run(
            *(device, level, golden, subject, minutes),
            checks=check,
            dtypes=dtype,
            probe=probe,
            command=this_command(),
            progress=bar,
        )
    finish_document(result, report, as_json, result.exit_code)
