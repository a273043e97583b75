"""Workers of pytest-xdist share the work of rewriting the asserts of all tests.

Each of them reads every test file, all at the same time; in a fresh checkout each would rewrite
every one, too, which takes as long as to import what they test.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest


def rewrite_own_share(config: pytest.Config, folder: Path) -> None:
    """Store what pytest makes of some of the files that it was given; whoever needs it reads it."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker.startswith("gw") or sys.dont_write_bytecode:
        return
    number, workers = int(worker[2:]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    given = [Path(one.partition("::")[0]).resolve() for one in config.args]
    found = sorted(
        path for path in folder.rglob("test_*.py") if any(path.is_relative_to(g) for g in given)
    )
    # The names below are pytest's own business: where a version has others, or a file cannot be
    # read, each worker rewrites it when it comes to it, and says what is wrong.
    with contextlib.suppress(Exception):
        for path in found[number::workers]:
            _rewrite(config, path)


def _rewrite(config: pytest.Config, path: Path) -> None:
    from _pytest.assertion import rewrite

    kept = rewrite.get_cache_dir(path)
    stored = kept / (path.name[:-3] + rewrite.PYC_TAIL)
    if rewrite._read_pyc(path, stored) is None and rewrite.try_makedirs(kept):
        about, code = rewrite._rewrite_test(path, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, about, stored)
