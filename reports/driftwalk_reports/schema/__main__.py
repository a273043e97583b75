"""`python -m driftwalk_reports.schema`: make the schemas again, after a dataclass was changed."""

from __future__ import annotations

from pathlib import Path

from driftwalk.document import KINDS
from driftwalk.files import write_atomically
from driftwalk.json_tables import to_text

from .made import schema_of

for kind, known in KINDS.items():
    path = Path(__file__).parent / f"{kind}.v{known.version}.schema.json"
    print(write_atomically(path, to_text(schema_of(kind))))  # noqa: T201 - a script
