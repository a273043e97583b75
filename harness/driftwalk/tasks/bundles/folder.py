"""The folder a bundle is written to: made aside, run once, and only then put in its place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import BackendError, UsageError

MANIFEST = "bundle.json"
SCRIPT = "replay.py"

README = """\
# One layer that can be run again

`python replay.py` needs numpy and torch, and onnxruntime where there is a `candidate.onnx`. When
this was made, it printed:

```text
{}
```

| file | what it holds |
|---|---|
| `truth_layer.py`, `truth_weights.npz` | the layer in float64: what it should have computed |
| `candidate.onnx`, or `candidate_layer.py` and `candidate_weights.npz` | the layer as it was run |
| `inputs.npz` | what both are given: the candidate's own states before this layer |
| `outputs.npz` | what both gave; `keep` says which positions are no padding |
| `bundle.json` | names, versions, flags, hashes, and the numbers of the report |
"""


def free_place(folder: Path, force: bool) -> Path:
    """Where the bundle is to be; only an earlier bundle is ever replaced, and only if asked."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{str(folder)!r} is no folder; name another with -o.")
    if not folder.exists() or not any(folder.iterdir()):
        return folder
    if not (folder / MANIFEST).is_file():
        raise UsageError(
            f"{str(folder)!r} holds files and is no bundle; nothing is written over it. "
            "Name another folder with -o."
        )
    if not force:
        raise UsageError(f"There is a bundle in {str(folder)!r} already; --force replaces it.")
    return folder


@contextmanager
def aside(target: Path) -> Iterator[Path]:
    """A folder beside the target that takes its place when all is well, and is gone otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    old = scratch / "old"
    new = scratch / "new"
    try:
        new.mkdir()
        yield new
        if target.exists():
            os.replace(target, old)
        try:
            os.replace(new, target)
        except OSError:
            if old.exists():
                os.replace(old, target)
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_readme(folder: Path, told: str) -> None:
    """What is in the folder, and what its script printed."""
    quoted = told.replace("`", "'").rstrip()
    (folder / "README.md").write_text(README.format(quoted), encoding="utf-8")


def rehearse(folder: Path) -> str:
    """Run the script as its reader will; a bundle that shows another number is not handed over."""
    done = subprocess.run(
        [sys.executable, SCRIPT],
        cwd=folder,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise BackendError(f"The bundle does not reproduce its number: {lines[-1][:400]}")
    return done.stdout
