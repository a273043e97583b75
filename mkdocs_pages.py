"""The hook of mkdocs.yml: pages at the root of the repository are pages of the site, too."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>[^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    for name, place in PAGES.items():
        text = (ROOT / name).read_text("utf-8")
        files.append(File.generated(config, place, content=for_the_site(text, "")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri in PAGES.values():
        return markdown
    return for_the_site(markdown, "docs")


def for_the_site(markdown: str, folder: str) -> str:
    """Links as the site has them: to pages; what leads to a source file is left as text."""

    def linked(match: re.Match[str]) -> str:
        path, mark, anchor = match["target"].partition("#")
        if ":" in path or not path:
            return match[0]
        place = posixpath.normpath(posixpath.join(folder, path))
        if not (ROOT / place).exists():
            return match[0]  # broken: mkdocs says so
        if place not in PAGES and not place.startswith("docs/"):
            return match["text"]
        target = PAGES.get(place, place.removeprefix("docs/"))
        return f"{match['image']}[{match['text']}]({target}{mark}{anchor})"

    return _LINK.sub(linked, markdown)
