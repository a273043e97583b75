"""index.html: a matrix of verdicts, and the way to each page and back."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

from browser import pages
from browser.reader import Reader


def test_the_matrix(reader: Reader, index_page: Path) -> None:
    page = reader.open(index_page)
    assert page.locator("h1").inner_text().startswith("DRIFT: 4 runs: 1 drift, 3 pass")
    assert page.locator("table.matrix thead th").all_inner_texts()[1:] == [
        report.candidate.spec for report in pages.family()
    ]
    cells = page.locator("table.matrix a.cell").all_inner_texts()
    assert [cell.split("\n")[0] for cell in cells] == ["✗ drift", *["✓ pass"] * 3]
    assert "layer.3" in cells[0]


def test_every_link_leads_to_a_page_and_back(reader: Reader, index_page: Path) -> None:
    page = reader.open(index_page)
    links: list[str] = page.eval_on_selector_all("main a", "all => all.map(x => x.href)")
    assert len(links) == 8
    for link in links:
        assert Path(unquote(urlparse(link).path)).is_file(), link
    for at, report in enumerate(pages.family()):
        page.locator("table.matrix a.cell").nth(at).click()
        page.wait_for_url(f"**/{at:02d}/report.html")
        assert page.locator("h1").inner_text().startswith(f"{report.verdict.upper()}: cand{at} ")
        page.get_by_role("link", name="all runs").click()
        page.wait_for_url(index_page.as_uri())


def test_without_javascript(reader: Reader, index_page: Path) -> None:
    page = reader.open(index_page, java_script_enabled=False)
    assert page.locator("h1").is_visible()
    assert page.locator("table.matrix a.cell").count() == 4
