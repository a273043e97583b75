"""Just enough Markdown: fenced blocks, headings and links of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(
    r"(?P<runs><!-- runs -->\s*)?^(?P<fence>`{3,})(?P<language>[\w-]*)[^\n]*\n"
    r"(?P<body>.*?)^(?P=fence)`*$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\[(?:[^\[\]]|!?\[[^\]]*\]\([^)]*\))*\]\((?P<target>[^)\s]+)[^)]*\)")
_IMAGE = re.compile(r"(?:!\[[^\]]*\]\(|<img[^>]*src=\")(?P<target>[^)\s\"]+)")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *#*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: what language it is said to be in, and whether it is marked to run."""

    page: Path
    line: int
    language: str
    body: str
    runs: bool

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("body")) + 1
        yield Block(page, line, match["language"], match["body"], bool(match["runs"]))


def links(page: Path) -> set[str]:
    """Targets of links and images outside of code."""
    prose = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text("utf-8")))
    return {match["target"] for kind in (_LINK, _IMAGE) for match in kind.finditer(prose)}


def anchors(page: Path) -> set[str]:
    """The names GitHub gives to headings."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def commands(block: Block) -> Iterator[str]:
    """Command lines of a console or shell block, one each, without prompts and comments."""
    joined = re.sub(r"\\\n\s*", " ", block.body)
    for line in joined.splitlines():
        text = line.strip()
        if block.language == "console":
            if not text.startswith("$ "):
                continue
            text = text.removeprefix("$ ")
        for part in re.split(r"&&|\|\||[|;]", text.split(" #")[0]):
            yield part.strip()
