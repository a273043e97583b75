"""`verify --max-format-kl` and `--min-format-snr`: a gate on the format, only where one asks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.program import invoke
from nets import residual

INT8 = ["verify", "cli.factories:Normed", "-c", "onnxruntime,quantize=dynamic-int8"]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ([], 0, ["What the format costs", "PASS: the kernel computes what the format declares"]),
        (["--max-format-kl", "0.5", "--min-format-snr", "5"], 0, ["KL at most 0.5", "PASS"]),
        (["--max-format-kl", "1e-12"], 1, ["DRIFT: the format, not the kernel", "KL divergence"]),
        (["--min-format-snr", "90"], 1, ["DRIFT: the format, not the kernel", "SNR", "90 dB"]),
    ],
    ids=["none", "within", "kl", "snr"],
)
def test_the_format_is_gated_on_request(options: list[str], code: int, words: list[str]) -> None:
    done = invoke(*INT8, *options)
    assert done.code == code, done.out + done.err
    for word in words:
        assert word in done.out


def test_several_candidates_and_all_files_of_a_report(tmp_path: Path) -> None:
    """One with a format, one without: the first is beyond the limit, the second has a note."""
    done = invoke(*INT8, "-c", "torch", "--max-format-kl", "1e-12", "--report", str(tmp_path))
    assert done.code == 1
    first, second = (
        json.loads(path.read_text("utf-8")) for path in sorted(tmp_path.glob("*/result.json"))
    )
    assert (first["verdict"], second["verdict"]) == ("drift", "pass")
    assert first["reason"].startswith("the format, not the kernel")
    assert first["format"]["exceeded"]
    assert any("declares no format" in note for note in second["notes"])
    suite = sorted(tmp_path.glob("*/junit.xml"))[0].read_text("utf-8")
    assert 'failures="1"' in suite
    assert 'name="format"' in suite


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-format-kl", "0.1", "--policy", "dtype"], ["calibrated"]),
        (["--max-format-kl", "nan"], ["--max-format-kl"]),
        (["--min-format-snr", "inf"], ["min_format_snr=inf"]),
        (["--max-format-kl", "-1"], ["--max-format-kl"]),
        (["--min-format-snr", "loud"], ["--min-format-snr"]),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused(options: list[str], words: list[str]) -> None:
    invoke(*INT8, *options).refused(2, *words)


def test_a_graph_alone_has_no_format_to_pay_for(tmp_path: Path) -> None:
    graph = residual(tmp_path / "a.onnx")
    invoke("verify", str(graph), "--max-format-kl", "0.1").refused(2, "file=GRAPH")


def test_a_configuration_is_one_models_or_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "driftwalk.toml"
    config.write_text('max-format-kl = 0.25\n[[models]]\nmodel = "demo:decoder"\n', "utf-8")
    monkeypatch.chdir(tmp_path)
    assert "KL divergence at most 0.25" in invoke("verify", "--list").out
    invoke("verify", "--max-format-kl", "0.1").refused(2, "--max-format-kl is for one model")
