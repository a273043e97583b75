"""What a pytest run was asked: options, and the project's configuration, read once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ..project.config import Config, find_config, load_config
from ..project.expected import Known, load_expected


@dataclass(frozen=True)
class Settings:
    config: Config
    report: Path | None
    update: bool
    require: bool
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
    found = config.stash.get(_KEY, None)
    if found is None:
        option = config.option
        file = Path(option.drift_config) if option.drift_config else find_config(config.rootpath)
        found = Settings(
            load_config(file) if file else Config(),
            Path(option.drift_report) if option.drift_report else None,
            bool(option.drift_update),
            option.drift_require,
            Path(option.drift_expected) if option.drift_expected else None,
        )
        config.stash[_KEY] = found
    return found
