"""Walks README and docs as a newcomer does: every command of a console block, in order.

    python tests/meta/first_hour.py                 in an environment made for it, from a clone
    python tests/meta/first_hour.py --here          in this one, without what would change it
    python tests/meta/first_hour.py --page README.md

A page is read in a folder of its own, which holds tiny real things under the names that the
documentation uses (newcomer_things.py). A command must end with exit code 0, or with the one that
is said behind it: `# exit code 1`. What cannot run here is left out, and why is printed; only the
lines of `NEEDS` may be.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from meta.markdown import Block, blocks, command_lines
from meta.sources import ROOT, files

FIRST, LAST = ("README.md", "docs/verify.md", "docs/drift.md"), ("CONTRIBUTING.md",)
PATIENCE = 1800
"""Seconds for one command."""
SETUP = {"docs/fleet.md": "driftwalk hwcheck --record-golden golden.trace"}
"""What a page takes for granted, beyond the things."""


@dataclass(frozen=True)
class Line:
    """A command as a page shows it, and the exit code that the page promises."""

    page: str
    number: int
    text: str
    code: int = 0

    def __str__(self) -> str:
        return f"{self.page}:{self.number}: {self.text}"

    @property
    def in_clone(self) -> bool:
        """Whether it is typed in the repository, not in a project of one's own."""
        ours = r"\btox\b|pip install|hatch_build|-m (pytest|build|twine)\b"
        return bool(re.search(ours, self.text))


@dataclass(frozen=True)
class Need:
    """What some lines need and not every machine has."""

    what: str
    is_there: Callable[[str], bool]
    """Asked with the Python of the environment."""
    lines: tuple[str, ...]


def can_import(name: str) -> Callable[[str], bool]:
    def asked(python: str) -> bool:
        code = f"import importlib.util as u; raise SystemExit(u.find_spec({name!r}) is None)"
        return _succeeds(python, code)

    return asked


def has_cuda(python: str) -> bool:
    code = "import torch; raise SystemExit(not torch.cuda.is_available())"
    return _succeeds(python, code)


def _succeeds(python: str, code: str) -> bool:
    done = subprocess.run([python, "-c", code], stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def never(python: str) -> bool:
    return False


NEEDS = (
    Need(
        "a CUDA device",
        has_cuda,
        (
            "driftwalk verify ./my-model -c torch:cuda:fp16 -c torch:cuda:bf16 --report out/",
            "driftwalk record ./my-model -b torch:cuda:fp16 -o golden.trace",
            "driftwalk generate ./my-model -r torch:cpu:fp32 -c torch:cuda:bf16 --json",
            "driftwalk verify ./my-model -r torch:cuda:fp16 "
            "-c torch:cuda:fp16,compile=inductor --policy dtype",
            "driftwalk hwcheck --device cuda --level standard --report out",
            "PYTHONPATH=harness:backends:reports python3 -m pytest -m cuda",
        ),
    ),
    Need(
        "OpenVINO",
        can_import("openvino"),
        ("driftwalk verify demo:decoder --candidate onnxruntime --candidate openvino",),
    ),
    Need(
        "ExecuTorch",
        can_import("executorch"),
        (
            "driftwalk verify demo:decoder --candidate executorch",
            "driftwalk verify FOLDER --candidate executorch,file=model.pte --batch 1 --length 16",
        ),
    ),
    Need(
        "optimum-onnx, with its own transformers",
        can_import("optimum.exporters.onnx"),
        ("driftwalk verify FOLDER --candidate onnxruntime,exporter=optimum",),
    ),
    Need(
        "umap-learn",
        can_import("umap"),
        ("driftwalk geometry demo:decoder --dataset reviews.csv --projection umap",),
    ),
    Need(
        "a Ray cluster of several machines",
        never,
        (
            "driftwalk fleet hwcheck --address auto -o results",
            "ray start --head",
            "driftwalk verify FOLDER --reference torch,ranges=4 --candidate emulated:bf16,ranges=4",
        ),
    ),
    Need(
        "hours",
        never,
        (
            "python -m pip install tox && tox",
            "tox -e openvino",
            "tox -e executorch",
            "tox -e quantised",
            "tox -e zoo -- 'bert.*' --every 4",
            "driftwalk hwcheck --device cuda:1 --level soak --minutes 120 --report out",
        ),
    ),
    Need("this walk to be over", never, ("tox -e first-hour",)),
    Need(
        "containers, and an account at a registry",
        never,
        ("python -m cibuildwheel --output-dir dist", "python -m twine upload dist/*"),
    ),
)
CHANGES_THE_ENVIRONMENT = re.compile(
    r"\bpip install\b|^tox\b|^python -m (build|cibuildwheel|twine)"
)


def pages() -> list[str]:
    """In the order in which they are read."""
    names = [p.relative_to(ROOT).as_posix() for p in files() if p.suffix == ".md"]
    names = [name for name in names if not name.startswith("tests/")]
    between = sorted({*names} - {*FIRST, *LAST})
    return [*FIRST, *between, *LAST]


def lines(page: str) -> Iterator[Line]:
    """Every command of a page's console blocks."""
    for block in blocks(ROOT / page):
        if block.language == "console":
            for offset, text, remark in command_lines(block):
                promised = re.search(r"\bexit code (\d+)", remark)
                yield Line(page, block.line + offset, text, int(promised[1]) if promised else 0)


def all_lines() -> list[Line]:
    return [line for page in pages() for line in lines(page)]


def written_files(page: str) -> Iterator[tuple[str, Block]]:
    """The files that a page shows, each with its name in its first line."""
    for block in blocks(ROOT / page):
        named = re.match(r"# ([\w.-]+\.toml)\b", block.body)
        if named:
            yield named[1], block


class Newcomer:
    """Types commands in one environment, and keeps how each ended."""

    def __init__(self, base: Path, python: str, here: bool) -> None:
        self.base, self.python, self.here = base, python, here
        self.clone = ROOT if here else base / "clone"
        self.failed: list[str] = []
        self.skipped: list[str] = []
        self.ran = 0
        self._absent: dict[str, bool] = {}

    def environment(self) -> Mapping[str, str]:
        """The program and its Python by their plain names, and a cache of its own."""
        more = {
            "DRIFTWALK_CACHE": str(self.base / "cache"),
            "HF_HUB_OFFLINE": "1",
            "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
            "COLUMNS": "100",
        }
        own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        if self.here:
            sources = (str(ROOT / name) for name in ("harness", "backends", "reports"))
            more["PYTHONPATH"] = os.pathsep.join(sources)
        folders = [str(self.base / "bin"), str(Path(self.python).parent), own.get("PATH", "")]
        return {**own, **more, "PATH": os.pathsep.join(folders)}

    def prepare(self, things: Callable[[Path, Path], None] | None = None) -> None:
        """Install what is typed, and have its things made: by a process, or as a caller likes."""
        if not self.here:
            for file in files():
                target = self.clone / file.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)
            self._do("python -m pip install -q .", self.clone)
        programs = self.base / "bin"
        programs.mkdir()
        for name, words in (("driftwalk", "-m driftwalk"), ("python", ""), ("python3", "")):
            file = programs / name
            if self.here or name != "driftwalk":
                file.write_text(f'#!/bin/sh\nexec "{self.python}" {words} "$@"\n')
                file.chmod(0o755)
        (self.base / "things").mkdir()
        if things is not None:
            things(self.base / "things", ROOT)
            return
        script = Path(__file__).with_name("newcomer_things.py")
        self._do(f'python "{script}" "{self.base}/things" "{ROOT}"', self.base)

    def type(self, line: Line, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a line where a reader would."""
        return self._run(line.text, self.clone if line.in_clone else folder)

    def _do(self, text: str, folder: Path) -> None:
        done = self._run(text, folder)
        if done.returncode:
            raise SystemExit(f"{text}\n{done.stdout}")

    def _run(self, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", text],
            cwd=folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )

    def why_not(self, line: Line) -> str:
        """Why a line is not run here; empty where it is."""
        if self.here and CHANGES_THE_ENVIRONMENT.search(line.text):
            return "it would change this environment"
        for need in NEEDS:
            if line.text in need.lines:
                if need.what not in self._absent:
                    self._absent[need.what] = not need.is_there(self.python)
                if self._absent[need.what]:
                    return f"it needs {need.what}"
        return ""

    def read(self, page: str) -> None:
        """Type all that a page says, in a folder of its own."""
        folder = self.base / "pages" / page.replace("/", "-")
        shutil.copytree(self.base / "things", folder)
        if page.startswith("examples/"):  # read where it lies, beside what it speaks of
            own = folder / Path(page).parent
            shutil.copytree(folder / "gpt2", own / "gpt2")
            folder = own
        for name, block in written_files(page):
            (folder / name).write_text(block.body, "utf-8")
        if page in SETUP:
            self._do(SETUP[page], folder)
        for line in lines(page):
            if why := self.why_not(line):
                self.skipped.append(f"{line} ({why})")
                say(f"  -   {line}: left out: {why}")
                continue
            start = time.monotonic()
            done = self.type(line, folder)
            took = f"{time.monotonic() - start:.0f} s"
            self.ran += 1
            if done.returncode == line.code:
                say(f"  ok  {line}: exit code {line.code}, {took}")
                continue
            self.failed.append(f"{line}: exit code {done.returncode}, not {line.code}")
            say(f"FAIL  {self.failed[-1]}, {took}\n{done.stdout[-3000:]}")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--here", action="store_true", help="run in this environment")
    parser.add_argument("--page", action="append", choices=pages(), help="only this page")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="first-hour-") as name:
        base = Path(name)
        python = sys.executable
        if not given.here:
            venv.create(base / "environment", with_pip=True)
            python = str(base / "environment" / "bin" / "python")
        newcomer = Newcomer(base, python, given.here)
        newcomer.prepare()
        for page in given.page or pages():
            newcomer.read(page)
    counts = f"{newcomer.ran} commands, {len(newcomer.skipped)} left out"
    say(f"{counts}, {len(newcomer.failed)} not as documented")
    for text in newcomer.failed:
        say(f"  {text}")
    return 1 if newcomer.failed or not newcomer.ran else 0


if __name__ == "__main__":
    sys.exit(main())
