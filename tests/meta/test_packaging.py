"""What users install: the three packages whole, and nothing else."""

from __future__ import annotations

import ast
import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import driftwalk
from driftwalk.native import library
from meta.sources import PACKAGES, ROOT, all_sources, files

LONGEST = 400


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling builds the wheel; it is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder), str(ROOT)],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


def test_the_three_packages_and_nothing_else(names: set[str]) -> None:
    top = {name.partition("/")[0] for name in names}
    assert top == {*PACKAGES, f"driftwalk-{driftwalk.__version__}.dist-info"}


def test_every_file_of_the_packages(names: set[str]) -> None:
    """Templates, schemas and py.typed too: a wheel without them fails only at users' machines."""
    there = {
        path.relative_to(folder.parent).as_posix()
        for folder in PACKAGES.values()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == there
    assert {f"{package}/py.typed" for package in PACKAGES} <= inside
    assert any(name.startswith("driftwalk_reports/templates/") for name in inside)
    assert any(name.endswith(".schema.json") for name in inside)
    assert not [
        name for name in inside if name.rpartition("/")[2].startswith(("test_", "conftest"))
    ]


@pytest.mark.skipif(not os.environ.get("CI"), reason="a source tree need not be compiled")
def test_where_tests_count_the_c_is_compiled(names: set[str]) -> None:
    assert library() is not None, "python hatch_build.py says why"
    assert "driftwalk/native/_native.so" in names


def test_a_compiled_part_makes_it_a_wheel_of_this_platform(wheel: Path, names: set[str]) -> None:
    """For every Python: it is called by ctypes. Without one it is a wheel for all platforms."""
    with zipfile.ZipFile(wheel) as file:
        info = f"driftwalk-{driftwalk.__version__}.dist-info"
        told = email.message_from_bytes(file.read(f"{info}/WHEEL"))
    compiled = "driftwalk/native/_native.so" in names
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform()) if compiled else "any"
    assert told["Tag"] == f"py3-none-{platform}"
    assert told["Root-Is-Purelib"] == ("false" if compiled else "true")
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")


@pytest.mark.slow
def test_the_source_archive_is_made_without_git_and_makes_a_wheel(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling builds both; it is not installed")
    plain = tmp_path / "plain"
    for path in files():
        (plain / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, plain / path.relative_to(ROOT))
    _hatchling(plain, "sdist")
    (archive,) = (plain / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as file:
        assert not [name for name in file.getnames() if name.endswith(".so")]
        file.extractall(tmp_path, filter="data")
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    _hatchling(unpacked, "wheel", CC="none")
    (built,) = (unpacked / "dist").iterdir()
    assert built.name.endswith("-py3-none-any.whl"), "no compiler was to be found"


def _hatchling(folder: Path, target: str, **changed: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **changed},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_metadata(wheel: Path, names: set[str]) -> None:
    info = f"driftwalk-{driftwalk.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as file:
        metadata = email.message_from_bytes(file.read(f"{info}/METADATA"))
        scripts = file.read(f"{info}/entry_points.txt").decode()
    assert metadata["Name"] == "driftwalk"
    assert metadata["Version"] == driftwalk.__version__
    assert "driftwalk = driftwalk.cli:main" in scripts
    assert any(name.startswith(f"{info}/licenses/LICENSE") for name in names)


def test_the_wheel_renders_a_result_alone(wheel: Path, tmp_path: Path) -> None:
    """From the wheel's own files, the checkout out of reach."""
    from driftwalk.result import to_json
    from unit.reports.cases import drifting

    (tmp_path / "result.json").write_text(to_json(drifting()), "utf-8")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "site")
    code = (
        "import driftwalk, driftwalk_reports, sys; from driftwalk.cli import main;"
        "print(driftwalk.__file__, driftwalk_reports.__file__);"
        "sys.argv = ['driftwalk', 'report', 'result.json', '-o', 'out']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(str(tmp_path / "site")) == 2
    assert (tmp_path / "out" / "report.html").stat().st_size > 1000


def test_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == driftwalk.__version__


def test_no_file_has_two_jobs() -> None:
    """About 250 lines a file; one that grows past 400 is two files."""
    long = {
        source.path.relative_to(ROOT).as_posix(): lines
        for source in all_sources()
        if (lines := len(source.path.read_text("utf-8").splitlines())) >= LONGEST
    }
    assert long == {}


@pytest.mark.parametrize(
    "name", ["onnx", "onnx/pairs", "faults", "faults/trusted", "bundles", "default_probe"]
)
def test_the_map_of_a_package_names_every_file(name: str) -> None:
    folder = PACKAGES["driftwalk_backends"] / name
    tree = ast.parse((folder / "__init__.py").read_text("utf-8"))
    text = ast.get_docstring(tree, clean=False) or ""
    told = {line.split()[0].rstrip("/") for line in text.splitlines() if line.startswith("    ")}
    there = {path.name.removesuffix(".py") for path in folder.iterdir()}
    assert told == there - {"__init__", "__pycache__"}
