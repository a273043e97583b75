"""`report` runs a test once for every kind of report."""

from __future__ import annotations

import pytest

from driftwalk.result import Report
from unit.reports.cases import CASES


@pytest.fixture(params=list(CASES))
def report(request: pytest.FixtureRequest) -> Report:
    return CASES[request.param]()
