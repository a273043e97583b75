"""The command `selftest`: how small a bug this gate can see, on this model and this candidate."""

from __future__ import annotations

from typing import Annotated

import typer

from .console import guarded
from .options import (
    BatchOption,
    BlocksOption,
    JsonOption,
    LengthOption,
    ModelArgument,
    ProbeOption,
    TrustOption,
)
from .rendering import FolderOption, finish_document, make_document


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
    trusted: Annotated[
        int | None,
        typer.Option(
            "--trusted",
            min=0,
            metavar="N",
            help="How many faults of each kind in what the gate trusts; 1, if not said.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which faults, and where.")] = 0,
    probe: ProbeOption = None,
    batch: BatchOption = None,
    length: LengthOption = None,
    blocks: BlocksOption = None,
    trust_remote_code: TrustOption = False,
    report: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put known bugs into copies of MODEL, and report which of them the gate catches.

    Then the reference, the truth, the yardstick, the cache, a mask, a dtype or an output is made to
    lie about a fault, which must be caught all the same, or the run be unverified.

    Exit code 0: every fault above the noise was caught and placed in the right layer, and no lie
    got through; 1: some were not, or one did; 3: no fault could be injected.
    """
    from ..tasks.selftest.run import FAULTS
    from ..tasks.selftest.run import selftest as run
    from ..tasks.selftest.trusted import LIES

    result = make_document(
        run,
        report,
        model,
        candidate,
        faults or FAULTS,
        seed,
        probe,
        blocks=blocks,
        trust_remote_code=trust_remote_code,
        batch=batch,
        length=length,
        trusted=LIES if trusted is None else trusted,
    )
    finish_document(result, report, as_json, result.exit_code)
