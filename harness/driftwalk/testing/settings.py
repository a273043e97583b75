"""What a pytest run was asked: its options, the project's configuration, and which backends."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

from ..errors import BackendUnavailable, DriftwalkError
from ..project.config import Config, Run, find_config, load_config
from ..project.expected import Known, load_expected
from ..registry import backend_class
from ..spec import Spec


@dataclass(frozen=True)
class Settings:
    config: Config
    report: Path | None
    expected: Path | None
    """From the command line: it stands in for all that the configuration names."""
    _files: dict[Path, tuple[Known, ...]] = field(default_factory=dict)

    def known(self, file: Path | None) -> tuple[Known, ...]:
        """The deviations of a file, read once."""
        if file is None:
            return ()
        if file not in self._files:
            self._files[file] = load_expected(file)
        return self._files[file]


_KEY = pytest.StashKey[Settings]()


def settings(config: pytest.Config) -> Settings:
    """Those of this pytest run; a mistake in a file is raised at every use."""
    if _KEY not in config.stash:
        option = config.option
        file = Path(option.drift_config) if option.drift_config else find_config(config.rootpath)
        config.stash[_KEY] = Settings(
            load_config(file) if file else Config(),
            Path(option.drift_report) if option.drift_report else None,
            Path(option.drift_expected) if option.drift_expected else None,
        )
    return config.stash[_KEY]


@dataclass(frozen=True)
class DriftCase:
    """One run of the configuration, on one of its candidates."""

    run: Run
    candidate: str

    def __str__(self) -> str:
        return f"{self.run.title}-{self.candidate}"


def configured_cases(config: pytest.Config) -> list[DriftCase]:
    """All of the configuration; none at all is a mistake, or nothing would be compared."""
    try:
        project = settings(config).config
    except DriftwalkError as error:
        raise pytest.Collector.CollectError(f"driftwalk: {error}") from None
    if not project.runs:
        raise pytest.Collector.CollectError(
            "driftwalk: drift_case runs the models of the configuration, and "
            + (f"{project.path} names none." if project.path else "there is no configuration.")
        )
    return [DriftCase(run, spec) for run in project.runs for spec in run.common.candidates]


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
