"""`verify` and `record` as the world calls them: a verification, and what tasks add to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import verification
from .errors import UsageError
from .result import Report
from .states import Trace
from .tasks.bench.run import Timings
from .tasks.formats.limits import FormatLimits
from .tasks.generation.recording import record_steps
from .tasks.probes.run import verify_probes
from .tasks.shapes.run import verify_shapes
from .tasks.studies.effects import PATCHING, PROPAGATION, InUnitsOfMeaning
from .tasks.weights.cause import WeightsOfGuilty
from .tolerance import DEFAULT_POLICY, PolicyLike


def verify(
    model: object,
    candidate: object = "onnxruntime",
    reference: object = None,
    probe: object = None,
    policy: PolicyLike = DEFAULT_POLICY,
    depth: str = "block",
    blame: bool | str = "auto",
    **options: Any,
) -> Report:
    """Run one model on two backends and walk their layer states; see `verify_all` for options."""
    if options.get("shapes") is not None:
        raise UsageError("Several shapes have several reports: verify_all(model, [candidate]).")
    return verify_all(model, [candidate], reference, probe, policy, depth, blame, **options)[0]


def verify_all(
    model: object,
    candidates: Sequence[object],
    reference: object = None,
    probe: object = None,
    policy: PolicyLike = DEFAULT_POLICY,
    depth: str = "block",
    blame: bool | str = "auto",
    *,
    bench: int = 0,
    contrast: object = None,
    propagation: bool = False,
    patch: bool = False,
    shapes: object = None,
    probes: object = None,
    strict: bool = False,
    thorough: bool = False,
    keep_probes: object = None,
    max_format_kl: float | None = None,
    min_format_snr: float | None = None,
    **options: Any,
) -> list[Report]:
    """Verify several candidates against one reference, whose trace is made once.

    `bench` is how many plain runs of each backend are timed afterwards. `contrast` is a pair of
    inputs, or True for the built-in one: drift is then also told as a share of their distance.
    `propagation` holds the drift against what the truth's Jacobian predicts; `patch` counts the
    flips that each restored layer of the candidate takes away, one run for each. `shapes` are rows
    by length, "1x16,3x9", or "auto": all candidates are verified at each, and graphs that driftwalk
    makes have open axes. `probes` are many inputs in one run: a list of what `probe` takes, a
    folder of probe files, a .jsonl file with one a line, "builtin:text", "builtin:edge" or
    "suggest"; the report is then that of the worst probe, with a row for each in `report.probes`. A
    probe that cannot be run is named and left out, or, with `strict`, ends it all; of a large set
    most are screened, unless it is to be `thorough` (docs/probes.md); `keep_probes` is a folder for
    files of the worst ones. `max_format_kl` and `min_format_snr` (decibels) limit what
    the format of a quantised candidate may cost at the outputs; beyond, it is drift. All other
    options are those of `verification.verify_all` (`allow_missing`, `cache`, `spill`, `witness`,
    `budget`, `command`, `progress`) and of `stage.Setting` (`blocks`, `trust_remote_code`, `batch`,
    `length`, `seed`, `stream`).
    """
    if shapes is not None:
        if probes is not None:
            raise UsageError("Shapes are those of default probes: leave the set of probes out.")
        own = {"bench": bench, "contrast": contrast, "propagation": propagation, "patch": patch}
        own |= {"max_format_kl": max_format_kl, "min_format_snr": min_format_snr}
        told = {"policy": policy, "depth": depth, "blame": blame, **own, **options}
        return verify_shapes(verify_all, model, candidates, reference, shapes, probe=probe, **told)
    if probes is not None:
        asked = {"probe": probe, "bench": bench, "contrast": contrast, "patch": patch}
        asked |= {"propagation": propagation}
        asked |= {name: options.pop(name, None) for name in ("batch", "length", "input_shapes")}
        if one := next((name for name, value in asked.items() if value not in (None, 0)), ""):
            raise UsageError(f"A set of probes goes without {one}: that is of a single probe.")
        own = {"max_format_kl": max_format_kl, "min_format_snr": min_format_snr}
        told = {"policy": policy, "depth": depth, "blame": blame, **own, **options}
        told |= {"strict": strict, "thorough": thorough, "keep_probes": keep_probes}
        return verify_probes(verify_all, model, candidates, reference, probes, **told)
    limits = FormatLimits.asked(max_format_kl, min_format_snr, policy)
    additions = (
        WeightsOfGuilty(),
        *((limits,) if limits is not None else ()),
        *((InUnitsOfMeaning(contrast),) if contrast else ()),
        *((PROPAGATION,) if propagation else ()),
        *((PATCHING,) if patch else ()),
        *((Timings(bench),) if bench else ()),
    )
    sides = (candidates, reference, probe, policy, depth, blame)
    return verification.verify_all(model, *sides, additions=additions, **options)


def record(
    model: object,
    backend: object = "torch",
    probe: object = None,
    depth: str = "block",
    *,
    steps: int | None = None,
    cache: str = "dynamic",
    like: Trace | None = None,
    **options: Any,
) -> Trace:
    """A trace to save: with the model it was made from, and the machine it was made on.

    With `steps`, of decoding: the probe is the prompt, and as many tokens are generated after it,
    each the likeliest; `cache` is what is kept between steps. `like` is such a trace, whose tokens
    are then fed in the same steps; with `steps=0`, all at once. All other options are those of
    `stage.Setting` (`blocks`, `trust_remote_code`, `batch`, `length`, `seed`), and `progress`.
    """
    if steps is None and like is None:
        return verification.record(model, backend, probe, depth, **options)
    if depth != "block":
        raise UsageError("A decoding is recorded block by block: leave the depth out.")
    if like is not None and (probe is not None or steps):
        raise UsageError("A trace to be like brings prompt and steps: leave those out, or steps=0.")
    return record_steps(model, backend, probe, steps, cache, like, **options)
