"""The command `selftest`: how small a bug this gate can see, on this model and this candidate."""

from __future__ import annotations

import io
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import guarded, progress, say, show, show_json
from .options import (
    BatchOption,
    BlocksOption,
    JsonOption,
    LengthOption,
    ModelArgument,
    ProbeOption,
    TrustOption,
)

if TYPE_CHECKING:
    from rich.table import Table

    from ..selftest import SelfTest


@guarded
def selftest(
    model: ModelArgument,
    candidate: Annotated[
        str, typer.Option("--candidate", "-c", metavar="SPEC", help="The backend to put faults in.")
    ] = "torch",
    faults: Annotated[
        int | None,
        typer.Option("--faults", min=1, metavar="N", help="How many faults; 66, if not said."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which faults, and where.")] = 0,
    probe: ProbeOption = None,
    batch: BatchOption = None,
    length: LengthOption = None,
    blocks: BlocksOption = None,
    trust_remote_code: TrustOption = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="DIR", help="Write selftest.json here.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Put known bugs into copies of MODEL and report which of them the gate catches, and where.

    Exit code 0: every fault above the noise was caught and placed in the right layer; 1: some were
    not; 3: no fault could be injected.
    """
    from ..files import writable_folder, write_atomically
    from ..selftest import FAULTS
    from ..selftest import selftest as run

    if report is not None:
        writable_folder(report)
    command = shlex.join(["driftwalk", *sys.argv[1:]])
    # What a model or an exporter prints is not our data.
    with redirect_stdout(sys.stderr), progress() as bar:
        result = run(
            model,
            candidate,
            faults or FAULTS,
            seed,
            probe,
            blocks=blocks,
            trust_remote_code=trust_remote_code,
            batch=batch,
            length=length,
            command=command,
            progress=bar,
        )
    text = to_json(result)
    if as_json:
        show_json(text)
    else:
        show(render(result, color=sys.stdout.isatty()))
    if report is not None:
        say(f"Result: {write_atomically(report / 'selftest.json', text)}")
    raise typer.Exit(result.exit_code)


def to_json(result: SelfTest) -> str:
    """Strict JSON, with the shares that are the point of it all."""
    import json

    from ..jsonable import encode

    counted, owed = result.counted, result.owed
    summary = {
        "exit_code": result.exit_code,
        "injected": len(counted),
        "caught": sum(trial.caught for trial in counted),
        "placed": sum(trial.outcome == "placed" for trial in counted),
        "above_noise": len(owed),
        "above_noise_placed": sum(trial.outcome == "placed" for trial in owed),
    }
    document = {"schema_version": result.schema_version, "summary": summary} | encode(result)
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def render(result: SelfTest, color: bool = False, width: int = 100) -> str:
    """The result as text: by kind, by layer, what was missed, and the sentence last."""
    from rich.console import Console

    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        _environ={},
    )
    with console.capture() as captured:
        console.print(f"{result.model['label']} on {result.candidate.spec}, seed {result.seed}")
        console.print(_kinds(result))
        console.print(_layers(result))
        for trial in result.failures:
            found = f"blamed on {trial.root_cause}" if trial.caught else "not caught"
            console.print(
                f"✗ {trial.right}: {trial.description}: {trial.excess:.3g} times what is allowed, "
                f"{found}",
                soft_wrap=True,
            )
        for trial in result.trials:
            if trial.outcome == "not_built":
                console.print(f"- could not run: {trial.description}: {trial.note}", soft_wrap=True)
        for kind, why in result.not_applicable.items():
            console.print(f"- not applicable: {kind}: {why}", soft_wrap=True)
        console.print(headline(result), soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def headline(result: SelfTest) -> str:
    counted, owed = result.counted, result.owed
    if not counted:
        return "? no fault with an effect could be injected: nothing is known about this gate"
    placed = sum(trial.outcome == "placed" for trial in owed)
    caught = sum(trial.caught for trial in counted)
    mark = "✗" if result.failures else "✓"
    return (
        f"{mark} {placed} of {len(owed)} faults above the noise were caught in the right layer; "
        f"of all {len(counted)} with an effect {caught} were caught, the rest hides in the noise "
        f"of {result.candidate.dtype} arithmetic ({result.seconds:.1f} s)"
    )


def _kinds(result: SelfTest) -> Table:
    columns = ("fault", "injected", "caught", "placed right", "in the noise", "missed", "no effect")
    table = _table(columns)
    for row in result.kinds:
        numbers = (row.injected, row.caught, row.placed, row.hidden, row.missed, row.no_effect)
        table.add_row(row.kind, *map(str, numbers))
    return table


def _layers(result: SelfTest) -> Table:
    table = _table(("layer", "faults", "smallest caught", "largest not caught", "noise, L2"))
    for row in result.layers:
        numbers = (row.smallest_caught, row.largest_missed, row.limit)
        table.add_row(
            row.point, str(row.faults), *("" if n is None else f"{n:.1e}" for n in numbers)
        )
    return table


def _table(columns: tuple[str, ...]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table
