"""Compiles the harness's C into the package, where there is a C compiler.

Without one the wheel is pure Python, and the harness compares in numpy: slower, the same numbers.
`python hatch_build.py` compiles in place, for work on a source tree.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run as a script
    BuildHookInterface = object

FOLDER = Path("harness/driftwalk/native")
LIBRARY = FOLDER / "_native.so"
FLAGS = (
    *("-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fopenmp-simd"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)


def compile_in(root: Path) -> str:
    """Compile what is in `FOLDER`; says why not, where that cannot be done."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        return f"no C compiler ({compiler[0]})"
    made = root / LIBRARY.with_suffix(f".{os.getpid()}.tmp")
    sources = sorted(map(str, (root / FOLDER).glob("*.c")))
    command = [*compiler, *FLAGS, *_architectures(), "-o", str(made), *sources, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        made.unlink(missing_ok=True)
        return done.stderr.strip() or f"{compiler[0]} failed"
    made.replace(root / LIBRARY)
    return ""


def _architectures() -> list[str]:
    """On a Mac: those that the wheel is tagged for."""
    both = ["-arch", "arm64", "-arch", "x86_64"]
    named = shlex.split(os.environ.get("ARCHFLAGS", ""))
    return named or (both if sysconfig.get_platform().endswith("universal2") else [])


class NativeBuildHook(BuildHookInterface):  # type: ignore[misc,valid-type]
    """Hatchling calls it before it packs a wheel, editable or not."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        why_not = compile_in(Path(self.root))
        if why_not:
            self.app.display_warning(f"The native code was not compiled: {why_not}")
            return
        # Called by ctypes: for this platform, and for any Python.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        build_data["artifacts"].append(str(LIBRARY))


if __name__ == "__main__":
    sys.exit(compile_in(Path(__file__).parent) or 0)
