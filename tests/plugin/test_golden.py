"""Golden traces: `drift.golden` compares, `--drift-update` writes, and never in CI unforced."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.program import environment
from plugin.conftest import Run

TEST = """
import pytest
from traces import trace


def test_port(drift):
    drift.golden("port", trace(change=CHANGE))
"""


def write(project: pytest.Pytester, change: float, extra: str = "") -> None:
    text = TEST.replace("CHANGE", str(change)).replace("))\n", f"){extra})\n")
    folder = project.path / "tests"
    folder.mkdir(exist_ok=True)
    (folder / "test_port.py").write_text(text)


def stored(project: pytest.Pytester) -> dict[str, bytes]:
    folder = project.path / "tests" / "golden"
    files = sorted(p for p in folder.rglob("*") if p.is_file()) if folder.exists() else []
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}


@pytest.mark.parametrize("extra", ["", ", signature=True"], ids=["trace", "signature"])
def test_written_then_compared(project: pytest.Pytester, run: Run, extra: str) -> None:
    write(project, 0.0, extra)
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E *There is no golden trace*port.*pytest tests/test_port.py::test_port --drift-update"]
    )
    result = run("--drift-update")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["GOLDEN written: *port.*"])
    names = {"port.signature.json"} if extra else {"manifest.json", "states.safetensors"}
    assert {Path(name).name for name in stored(project)} == names
    run().assert_outcomes(passed=1)
    write(project, 0.1)  # it takes the kind that is there
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *DRIFT: first divergence at layer.0*"])
    result.stdout.fnmatch_lines(["E *To store what it is now: pytest *--drift-update"])


def test_what_a_signature_cannot_tell_is_no_pass(project: pytest.Pytester, run: Run) -> None:
    """Another machine's noise: bounds on single elements are wide; those on L2 are not."""
    write(project, 0.0, ", signature=True")
    run("--drift-update").assert_outcomes(passed=1)
    write(project, 2e-5)
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *UNVERIFIED: *cannot be told from a signature*"])
    write(project, 2e-5, ', policy="l2:1e-4"')
    run().assert_outcomes(passed=1)
    write(project, 2e-3, ', policy="l2:1e-4"')
    run().assert_outcomes(failed=1)


def test_an_update_writes_only_what_changed(project: pytest.Pytester, run: Run) -> None:
    write(project, 0.0)
    run("--drift-update").assert_outcomes(passed=1)
    before = stored(project)
    result = run("--drift-update")
    result.stdout.fnmatch_lines(["GOLDEN unchanged: *"])
    assert stored(project) == before
    write(project, 1e-6)  # within tolerance, and yet another trace
    run().assert_outcomes(passed=1)
    run("--drift-update").stdout.fnmatch_lines(["GOLDEN written: *"])
    assert stored(project) != before


def test_never_in_ci(project: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, 0.0)
    monkeypatch.setenv("CI", "true")
    result = run("--drift-update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--drift-update: CI is set*--drift-update=force*"])
    assert stored(project) == {}
    run("--drift-update=force").assert_outcomes(passed=1)
    assert stored(project)
    run().assert_outcomes(passed=1)  # comparing is what CI is for


def test_a_path_behind_the_option_is_not_taken_for_a_word(
    project: pytest.Pytester, run: Run
) -> None:
    write(project, 0.0)
    result = run("--drift-update", "tests/test_port.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*put --drift-update behind the paths*"])
    run("tests/test_port.py", "--drift-update").assert_outcomes(passed=1)


HOSTILE = ["../port", "/etc/port", "a/b", "a\\b", "..", ".", "", ".hidden", "a..b", "x\0"]
HOSTILE += ["n" * 200, "port.", "C:port", "port\n"]


def test_no_name_leads_out_of_the_folder(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(
        f"""
        import pytest
        from traces import trace

        @pytest.mark.parametrize("name", {[*HOSTILE, 3]!r})
        def test_port(drift, name):
            drift.golden(name, trace())
        """
    )
    before = sorted(project.path.parent.rglob("*"))
    result = run("--drift-update")
    result.assert_outcomes(failed=len(HOSTILE) + 1)
    refused = [x for x in result.outlines if re.match("E .*a name has|E .*and 3 is none", x)]
    assert len(refused) == len(HOSTILE) + 1
    new = set(project.path.parent.rglob("*")) - set(before)
    assert not [path for path in new if "golden" in path.parts or path.suffix == ".trace"]


def test_a_link_is_not_followed(project: pytest.Pytester, run: Run, tmp_path: Path) -> None:
    write(project, 0.0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (project.path / "tests" / "golden").mkdir()
    (project.path / "tests" / "golden" / "port.trace").symlink_to(elsewhere)
    result = run("--drift-update")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *is a link*"])
    assert list(elsewhere.iterdir()) == []


def test_a_model_runs_on_the_probe_of_its_golden_trace(project: pytest.Pytester, run: Run) -> None:
    for call in ('drift.golden("tiny", Tiny(), length=5)', 'drift.golden("tiny", Tiny())'):
        project.makepyfile(
            test_model=f"from model import Tiny\n\ndef test_port(drift):\n    {call}\n"
        )
        run("--drift-update").assert_outcomes(passed=1) if "length" in call else None
    project.makepyfile(
        test_model="""
        from model import Tiny, faulty

        def test_port(drift):
            report = drift.golden("tiny", Tiny())
            assert report.probe.inputs["input_ids"].shape == (2, 5)

        def test_other_backend(drift):
            drift.golden("tiny", Tiny(), backend="torch:cpu:fp64")

        def test_too_coarse(drift):
            drift.golden("tiny", Tiny(), "torch:cpu:bf16", policy="fixed:1e-6")

        def test_other_weights(drift):
            drift.golden("tiny", faulty())

        def test_other_inputs(drift):
            drift.golden("tiny", Tiny(), probe={"input_ids": [[1, 2, 3]]})
        """
    )
    result = run()
    result.assert_outcomes(passed=2, failed=3)
    result.stdout.fnmatch_lines(["E *DRIFT: first divergence at embed*"])
    result.stdout.fnmatch_lines(["E *different weights*"])
    result.stdout.fnmatch_lines(["E *different probes*"])


def test_a_damaged_golden_trace_is_named(project: pytest.Pytester, run: Run) -> None:
    write(project, 0.0)
    run("--drift-update").assert_outcomes(passed=1)
    states = project.path / "tests" / "golden" / "port.trace" / "states.safetensors"
    raw = bytearray(states.read_bytes())
    raw[-3] ^= 1
    states.write_bytes(bytes(raw))
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *is damaged*"])


def test_the_folder_can_be_chosen(project: pytest.Pytester, run: Run) -> None:
    (project.path / "driftwalk.toml").write_text('golden = "stored/traces"')
    write(project, 0.0)
    run("--drift-update").assert_outcomes(passed=1)
    assert (project.path / "tests" / "stored" / "traces" / "port.trace").is_dir()


def test_a_port_is_held_to_its_original_without_any_framework(project: pytest.Pytester) -> None:
    """The machine of a port may have neither torch nor the original's weights."""
    blocked = ("torch", "transformers", "onnxruntime", "onnx")
    project.makeconftest(f"import sys\n\nsys.modules |= dict.fromkeys({blocked!r})\n")
    (project.path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    command = [sys.executable, "-m", "pytest", "-p", "driftwalk.plugin", "-q"]
    for change, options, code in ((0.0, ("--drift-update",), 0), (0.1, (), 1)):
        write(project, change)
        done = subprocess.run(
            [*command, *options],
            cwd=project.path,
            env=environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=240,
        )
        assert done.returncode == code, done.stdout + done.stderr
    assert "DRIFT: first divergence at layer.0" in done.stdout
