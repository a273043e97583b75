"""Someone who opens reports from disk and notices every request, dialog and complaint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from browser import pages
from processes import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page, Request

FILTER, COUNT, NOTHING, TIP, HEAT_DATA = (
    f"[data-part={part}]" for part in ("filter", "shown", "nothing", "tip", "heat-data")
)
"""Parts of a page that go by a name of their own: ids belong to the points."""


class Reader:
    """Opens pages, each watched; `complaints` is what a clean page leaves empty."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.complaints: list[str] = []
        self._browser = browser
        self._folder = folder
        self._contexts: dict[str, BrowserContext] = {}

    def open(
        self,
        page: str | Path,
        fragment: str = "",
        *,
        width: int = 1280,
        height: int = 800,
        before: str = "",
        **options: Any,
    ) -> Page:
        """A page by the name of its case or by its path; `before` is a script to run first."""
        path = page if isinstance(page, Path) else self._folder / f"{page}.html"
        if not path.exists():
            pages.write(path)
        opened = self._context(options).new_page()
        opened.set_default_timeout(1_000 * PATIENCE)
        opened.set_viewport_size({"width": width, "height": height})
        self._watch(opened)
        if before:
            opened.add_init_script(before)
        opened.goto(path.as_uri() + (f"#{fragment}" if fragment else ""))
        return opened

    def _context(self, options: dict[str, Any]) -> BrowserContext:
        """Pages with the same options share one: making it takes longer than opening a page."""
        key = repr(sorted(options.items()))
        if key not in self._contexts:
            self._contexts[key] = self._browser.new_context(**options)
        return self._contexts[key]

    def _watch(self, page: Page) -> None:
        said = self.complaints.append
        page.on("request", lambda request: None if _is_page(request) else said(request.url))
        page.on("pageerror", lambda error: said(f"error: {error}"))
        page.on("dialog", lambda dialog: (said(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "console",
            lambda m: said(f"console: {m.text}") if m.type in ("error", "warning") else None,
        )

    def close_pages(self) -> None:
        for context in self._contexts.values():
            for page in context.pages:
                page.close()

    def close(self) -> None:
        for context in self._contexts.values():
            context.close()


def _is_page(request: Request) -> bool:
    """A page of ours, opened or followed to: anything else is a request too many."""
    return request.url.startswith("file://") and request.is_navigation_request()


def row(page: Page, name: str) -> Locator:
    """The row of a point, by an attribute: an id may be anything."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return page.locator(f'details.entry[data-name="{quoted}"]')


def is_open(entry: Locator) -> bool:
    return entry.get_attribute("open") is not None


def opens(entry: Locator) -> bool:
    """Whether a row opens, and shows itself; a change of the address takes a moment to be heard."""
    entry.locator(".inside").wait_for(state="visible")
    return in_view(entry)


def shown(page: Page) -> list[str]:
    """The names of the rows that can be seen, from top to bottom."""
    found: list[tuple[float, str]] = page.eval_on_selector_all(
        "details.entry",
        "all => all.filter(x => x.checkVisibility())"
        ".map(x => [x.getBoundingClientRect().top, x.dataset.name])",
    )
    return [name for _, name in sorted(found)]


def focused(page: Page) -> str | None:
    """The point whose row has the focus."""
    name: str | None = page.evaluate(
        "document.activeElement.matches('summary')"
        " ? document.activeElement.parentElement.dataset.name : null"
    )
    return name


def in_view(locator: Locator) -> bool:
    """Whether its top edge is on the screen."""
    box, size = locator.bounding_box(), locator.page.viewport_size
    return bool(box and size and 0 <= box["y"] < size["height"])
