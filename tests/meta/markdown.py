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


def command_lines(block: Block) -> Iterator[tuple[int, str, str]]:
    """What a reader types, a whole line each: which line of the block, its text, its comment."""
    waiting, first = "", 0
    for number, line in enumerate(block.body.splitlines()):
        text = line.strip()
        if not waiting:
            first = number
            if block.language == "console":
                if not text.startswith("$ "):
                    continue
                text = text.removeprefix("$ ")
        waiting += text.removesuffix("\\")
        if not text.endswith("\\"):
            typed, _, remark = waiting.partition(" #")
            yield first, typed.strip(), remark.strip()
            waiting = ""


def commands(block: Block) -> Iterator[str]:
    """The single commands of a console or shell block, without prompts and comments."""
    for _, line, _ in command_lines(block):
        for part in re.split(r"&&|\|\||[|;]", line):
            yield part.strip()
