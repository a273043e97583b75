"""The site that `tox -e docs` builds has every page of docs/."""

from __future__ import annotations

import re

from meta.sources import ROOT, files


def test_every_page_is_in_the_nav() -> None:
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    named = re.findall(r"^ +- .+: (\S+\.md)$", nav, re.MULTILINE)
    docs = ROOT / "docs"
    inside = [path for path in files() if path.is_relative_to(docs) and path.suffix == ".md"]
    pages = [path.relative_to(docs).as_posix() for path in inside]
    root = ["index.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
    assert sorted(named) == sorted([*pages, *root])
