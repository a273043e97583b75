"""What every study's result has on top of the common head: the backend that ran it."""

from __future__ import annotations

from dataclasses import dataclass

from ...adapter import BackendInfo
from ...document import Document


@dataclass(frozen=True, kw_only=True)
class Study(Document):
    """A document about one model on one backend; `running.head` fills the head."""

    backend: BackendInfo

    @property
    def failed(self) -> str:
        """The finding that makes the command leave with exit code 1, as a sentence; or nothing."""
        return ""
