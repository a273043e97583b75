"""Which backends a test runs on: the mark, the configuration, and what is not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import pytest

from ..errors import BackendUnavailable, DriftwalkError
from ..project.config import Run
from ..registry import backend_class
from ..spec import Spec
from .settings import settings


@dataclass(frozen=True)
class Case:
    """One run of the configuration, on one of its candidates."""

    run: Run
    candidate: str

    def __str__(self) -> str:
        return f"{self.run.title}-{self.candidate}"


def configured_cases(config: pytest.Config) -> list[Case]:
    """All of the configuration; none at all is a mistake, or nothing would be compared."""
    try:
        found = settings(config).config
    except DriftwalkError as error:
        raise pytest.Collector.CollectError(f"driftwalk: {error}") from None
    if not found.runs:
        raise pytest.Collector.CollectError(
            "driftwalk: drift_case runs the models of the configuration, and "
            + (f"{found.path} names none." if found.path else "there is no configuration.")
        )
    return [Case(run, spec) for run in found.runs for spec in run.common.candidates]


def marked_specs(mark: pytest.Mark) -> list[str]:
    """What the mark names; no backend, or something that is no spec, is a mistake."""
    specs = list(mark.args)
    if not specs or mark.kwargs or not all(isinstance(spec, str) for spec in specs):
        raise pytest.Collector.CollectError(
            "driftwalk: the mark drift_backends takes backend specs, as in "
            'drift_backends("onnxruntime", "emulated:fp16").'
        )
    return specs


def skip_unless_usable(spec: str, config: pytest.Config) -> None:
    """Skip a test whose backend, or whose device, is not here; a typo fails."""
    __tracebackhide__ = True
    try:
        parsed = Spec.parse(spec)
        offers = backend_class(parsed.name).offers()
    except BackendUnavailable as error:
        unavailable(str(error), config)
    except DriftwalkError as error:
        pytest.fail(f"driftwalk: {error}", pytrace=False)
    device = parsed.device.partition(":")[0]
    fitting = [o for o in offers if Spec.parse(o.spec).device == device] if device else offers
    if fitting and not any(offer.usable for offer in fitting):
        unavailable(f"{spec}: {fitting[0].note}", config)


def unavailable(reason: str, config: pytest.Config) -> NoReturn:
    """What is not there is skipped, in so many words; or fails, where that was asked for."""
    __tracebackhide__ = True
    if config.option.drift_require:
        pytest.fail(f"driftwalk: --drift-require: {reason}", pytrace=False)
    pytest.skip(f"driftwalk: {reason}")
