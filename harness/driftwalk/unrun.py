"""A candidate that cannot run does not spoil the others: its own report says why it did not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from .adapter import Backend, BackendInfo
from .errors import DriftwalkError, UsageError
from .make_report import Terms, report_of
from .result import Report
from .spec import Spec
from .states import Probe

T = TypeVar("T")


def or_why_not(make: Callable[[], T], several: bool) -> T | DriftwalkError:
    """What is made; or, where there are `several` candidates, the error that kept one from it.

    What is asked for wrongly (a typo in a spec) is an error of the whole run.
    """
    try:
        return make()
    except UsageError:
        raise
    except DriftwalkError as error:
        if not several:
            raise
        return error


def unrun_report(
    candidate: object, error: DriftwalkError, probe: Probe, reference: BackendInfo, terms: Terms
) -> Report:
    """A report without layers, `unverified`, of a candidate that gave no states."""
    info = _info(candidate)
    report = report_of((), probe, (reference, info), replace(terms, allow_missing=()), {}, None)
    return replace(report, reason=f"{info.spec} could not run: {str(error).rstrip('. ')}")


def _info(candidate: object) -> BackendInfo:
    if isinstance(candidate, Backend):
        return candidate.info
    if not isinstance(candidate, str):
        name = getattr(candidate, "__name__", type(candidate).__name__)
        return BackendInfo(name, name, "", "")
    spec = Spec.parse(candidate)
    return BackendInfo(str(spec), spec.name, spec.device, spec.dtype)
