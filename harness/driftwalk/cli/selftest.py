"""The command `selftest`: how small a bug this gate can see, on this model and this candidate."""

from __future__ import annotations

from typing import Annotated

from . import options
from .console import guarded
from .options import option
from .rendering import FolderOption, finish_document, make_document


@guarded
def selftest(
    model: options.ModelArgument,
    candidate: Annotated[
        str, option("--candidate -c SPEC", "The backend to put faults in.")
    ] = "torch",
    faults: Annotated[
        int | None, option("--faults N", "How many faults; 66, if not said.", min=1)
    ] = None,
    trusted: Annotated[
        int | None,
        option(
            "--trusted N",
            "How many faults of each kind in what the gate trusts; 1, if not said.",
            min=0,
        ),
    ] = None,
    seed: Annotated[int, option("--seed", "Which faults, and where.", min=0)] = 0,
    probe: options.ProbeOption = None,
    batch: options.BatchOption = None,
    length: options.LengthOption = None,
    blocks: options.BlocksOption = None,
    trust_remote_code: options.TrustOption = False,
    report: FolderOption = None,
    as_json: options.JsonOption = False,
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
