"""One browser for all tests of a process, and a reader who notices what pages should not do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import chromium, pages
from browser.reader import Reader

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = chromium.find()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium.unavailable("playwright is not installed (pip install 'driftwalk[test]')")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=list(chromium.OPTIONS))
        yield started
        started.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the pages lie, each written when it is first opened."""
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="session")
def shared_reader(browser: Browser, site: Path) -> Iterator[Reader]:
    shared = Reader(browser, site)
    yield shared
    shared.close()


@pytest.fixture
def reader(shared_reader: Reader) -> Iterator[Reader]:
    """Opens pages; none may ask for anything, complain, fail or raise a dialog."""
    shared_reader.complaints.clear()
    yield shared_reader
    shared_reader.close_pages()
    assert shared_reader.complaints == []


@pytest.fixture(scope="session")
def index_page(site: Path) -> Path:
    """The index of four candidates, their pages below it."""
    return pages.write_all(site / "family", pages.family())
