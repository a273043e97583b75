"""0 within tolerance, 1 drift, 2 usage error, 3 could not verify: each by what leads to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.program import invoke

TINY = "cli.factories:Tiny"


def test_agreement_is_0() -> None:
    done = invoke("verify", "demo:decoder", "-c", "torch:cpu:fp64")
    assert done.code == 0
    assert "PASS" in done.out
    assert done.err == ""


def test_drift_is_1_and_named() -> None:
    done = invoke("verify", "demo:decoder", "-c", "torch:cpu:bf16", "--policy", "fixed:1e-6")
    assert done.code == 1
    assert "DRIFT: first divergence at embed" in done.out
    assert "first divergence" in next(line for line in done.out.splitlines() if " embed " in line)


def test_a_rule_comes_before_the_policy() -> None:
    loose = ["--policy", "fixed:1e9", "--rule", "layer.1=0"]
    done = invoke("verify", TINY, "-c", "torch:cpu:bf16", *loose)
    assert done.code == 1
    assert "first divergence at layer.1" in done.out


def test_drift_outweighs_a_pass() -> None:
    both = ["-c", "torch", "-c", "torch:cpu:bf16", "--policy", "fixed:1e-6"]
    assert invoke("verify", TINY, *both).code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-c", "torhc"], ["'torhc'", "Did you mean 'torch'?", "Known: torch,", "onnxruntime"]),
        (["-c", "torch:cpu:fp99"], ["'fp99'", "fp64, fp32, fp16"]),
        (["-c", "torch:cpu:tf32"], ["no dtype 'tf32'"]),
        (["-c", "torch:tpu"], ["no device 'tpu'", "cpu, cuda, mps"]),
        (["-c", "torch,atn=eager"], ["no option 'atn'", "Did you mean 'attn'?"]),
        (["-c", "torch,threads=0"], ["threads=0"]),
        (["-c", ""], ["has no name"]),
        (["-r", "torhc", "-c", "torch"], ["'torhc'"]),
        (["--policy", "fixd"], ["Unknown policy 'fixd'", "Did you mean 'fixed'?"]),
        (["--policy", "fixed"], ["fixed:ATOL"]),
        (["--policy", "fixed:tiny"], ["Cannot read tolerance 'tiny'"]),
        (["--policy", "fixed:nan"], ["finite"]),
        (["--rule", "layer.1"], ["Cannot read rule 'layer.1'", "GLOB=ATOL"]),
        (["--rule", "layer.1=much"], ["'much'"]),
        (["-c", "torch", "--rule", "layr.*=1"], ["matches no point", "layer.2", "Known: embed"]),
        (["--ids", "1 2", "--probe", "p.safetensors"], ["one of --prompt, --ids and --probe"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("-") else "",
)
def test_a_usage_error_is_2(arguments: list[str], words: list[str]) -> None:
    invoke("verify", TINY, *arguments).refused(2, *words)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["verify", TINY, "--nonsense"], "--nonsense"),
        (["verify"], "MODEL"),
        (["verify", TINY, "--batch", "0"], "--batch"),
        (["verify", TINY, "--seed", "x"], "--seed"),
        (["demo", "--fault", "6"], "--fault"),
        (["report", "result.json"], "--output"),
        (["backends", "--nonsense"], "--nonsense"),
        (["wander"], "wander"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_parser_refuses_is_2(arguments: list[str], word: str) -> None:
    invoke(*arguments).refused(2, word)


def test_a_typo_is_found_before_the_model_is_loaded() -> None:
    invoke("verify", "cli.factories:leaves", "-c", "torhc").refused(2, "torhc")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("./nowhere", ["no folder './nowhere'"]),
        ("no-such-org/no-such-model", ["'no-such-org/no-such-model'", "network", "demo:decoder"]),
        ("no_such_module:make", ["No module named 'no_such_module'"]),
        ("cli.factories:Tyni", ["no attribute 'Tyni'"]),
        ("cli.factories:VOCABULARY", ["'int' object is not callable"]),
        ("cli.factories:environment", ["gave a dict", "nn.Module"]),
        ("cli.factories:leaves", ["the factory raised SystemExit"]),
    ],
)
def test_a_model_that_cannot_be_had_is_3(model: str, words: list[str]) -> None:
    invoke("verify", model, "-c", "torch").refused(3, *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, ["no config.json", "save_pretrained"]),
        ({"config.json": '{"model_type": "gpt2"}'}, ["no weights", "model.safetensors"]),
        ({"config.json": "not json", "model.safetensors": ""}, ["Cannot load the model"]),
        ({"config.json": '{"model_type": "gpt2"}', "model.safetensors": "?"}, ["Cannot load"]),
    ],
    ids=["empty", "no weights", "garbled config", "garbled weights"],
)
def test_a_folder_that_is_no_model_is_3(
    content: dict[str, str], words: list[str], here: Path
) -> None:
    folder = here / "model"
    folder.mkdir()
    for name, text in content.items():
        (folder / name).write_text(text)
    invoke("verify", "./model", "-c", "torch").refused(3, *words)


@pytest.mark.parametrize("architecture", ["decoder", "encoder"])
def test_text_for_a_folder_without_tokenizer_is_3(architecture: str, here: Path) -> None:
    """transformers 5 makes up an empty tokenizer, which would turn every word into [UNK]."""
    from driftwalk_backends import demo

    demo.DEMOS[f"demo:{architecture}"]().save_pretrained(here / "model")
    done = invoke("verify", "./model", "-c", "torch", "--prompt", "hello")
    done.refused(3, "okenizer", "model", "Give token ids or arrays instead")
    assert invoke("verify", "./model", "-c", "torch").code == 0, "it is fine without text"


def test_text_for_a_factory_is_3() -> None:
    done = invoke("verify", TINY, "-c", "torch", "--prompt", "hello")
    done.refused(3, "without a tokenizer")


def test_a_device_that_is_not_here_is_3() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    invoke("verify", TINY, "-c", "torch:cuda").refused(3, "torch:cuda is not usable here")


def test_a_provider_that_is_not_installed_is_3() -> None:
    import onnxruntime

    if "OpenVINOExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("OpenVINO is installed")
    done = invoke("verify", TINY, "-c", "onnxruntime:openvino")
    done.refused(3, "OpenVINOExecutionProvider", "Install onnxruntime-openvino")


def test_a_reference_with_nan_is_3() -> None:
    done = invoke("verify", "cli.factories:with_nan", "-c", "torch:cpu:fp64")
    assert done.code == 3
    assert "UNVERIFIED" in done.out
    assert "layer.1" in done.out
    assert "PASS" not in done.out


def test_a_candidate_that_alone_has_nan_is_1() -> None:
    done = invoke("verify", "cli.factories:too_large_for_fp16", "-c", "torch:cpu:fp16")
    assert done.code == 1
    assert "first divergence at layer.1" in done.out


@pytest.mark.parametrize(
    "command",
    [
        ["record"],
        ["bench", "-b", "torch"],
        ["selftest"],
        ["contrast"],
        ["geometry"],
        ["visibility"],
        ["hwcheck", "--model"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("model", ["./nowhere", "no-such-org/no-such-model", "no_such_module:make"])
def test_a_missing_model_is_3_in_every_command(command: list[str], model: str) -> None:
    invoke(*command, model).refused(3, model)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("m.pt", ["never read", "load it in Python", "package.module:factory"]),
        ("m.pth", ["never read"]),
        ("m.bin", ["never read"]),
        ("m.jit", ["TorchScript", "load it in Python"]),
        ("m.ts", ["TorchScript"]),
        ("m.pt2", ["torch.export.load", "pickle", "never read"]),
        ("m.safetensors", ["no architecture", "config.json"]),
        ("m.txt", ["folder that holds config.json"]),
    ],
)
def test_a_file_that_is_no_model_says_what_to_give(file: str, words: list[str], here: Path) -> None:
    if file != "m.txt":
        invoke("verify", file).refused(3, "There is no file", *words)
    (here / file).write_bytes(b"")
    invoke("verify", file).refused(3, f"'{file}' is a file", *words)
    if file == "m.safetensors":
        (here / "config.json").write_text("{}")
        invoke("verify", f"./{file}").refused(3, "give the folder it lies in")


def test_a_program_file_is_no_candidate_and_the_message_says_why(here: Path) -> None:
    (here / "m.pt2").write_bytes(b"")
    for given in ("m.pt2", str(here / "m.pt2"), "M.PT2"):
        run = invoke("verify", "demo:decoder", "-c", given)
        run.refused(2, "is a file, and no backend", "pickle", "torch.export.load(FILE).module()")


def test_a_gguf_file_that_is_none_says_so(here: Path) -> None:
    invoke("verify", "m.gguf").refused(3, "There is no file 'm.gguf'")
    (here / "m.gguf").write_bytes(b"GGUF")
    invoke("verify", "gguf:m.gguf").refused(3, "'m.gguf' is not read: it ends within its version")


def test_a_length_that_was_cut_is_noted() -> None:
    run = ["verify", "demo:decoder", "-c", "torch", "--policy", "dtype", "--no-blame"]
    assert "300, was cut to 254" in " ".join(invoke(*run, "--length", "300").out.split())
    assert "was cut" not in invoke(*run, "--length", "30").out


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "./nowhere"],
        ["record", "./nowhere", "-b", "torch", "-o", "x.trace"],
        ["bench", "./nowhere", "-b", "torch"],
        ["selftest", "./nowhere"],
        ["weights", "./nowhere", "demo:decoder"],
        ["weights", "demo:decoder", "./nowhere"],
        ["contrast", "./nowhere", "a", "b"],
        ["geometry", "./nowhere"],
        ["visibility", "./nowhere"],
    ],
    ids=" ".join,
)
def test_a_model_that_is_not_there_is_3_whatever_was_asked_of_it(arguments: list[str]) -> None:
    done = invoke(*arguments)
    assert done.code == 3
    assert "There is no folder './nowhere'" in " ".join(done.err.split())
