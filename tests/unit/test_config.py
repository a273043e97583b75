"""The configuration: what it means, and that every mistake is named with file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftwalk.errors import UsageError
from driftwalk.project.config import Config, find_config, load_config
from driftwalk.tolerance import Tolerance

FULL = """
reference = "torch:cpu:fp64"
candidates = ["onnxruntime", "emulated:fp16"]
policy = "dtype"
allow-missing = ["norm"]
depth = "sublayer"
expected = "known.toml"
golden = "traces"

[rules]
"layer.*" = 1e-3
embed = "1e-4,1e-5"
logits = "dtype"

[probes.short]
prompts = ["one", "two"]

[probes.long]
length = 64
batch = 1
seed = 3

[[models]]
model = "demo:decoder"
name = "decoder"

[[models]]
model = "demo:encoder"
candidates = ["torch"]
policy = "fixed:1e-3"
rules = { }
prompts = ["its own"]
allow-missing = []
depth = "block"
blocks = "encoder.layer"
trust-remote-code = true

[[models]]
model = "vit"
probes = []
"""


def written(folder: Path, text: str, name: str = "driftwalk.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_everything(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, FULL))
    assert [run.title for run in config.runs] == [
        "decoder/short",
        "decoder/long",
        "demo:encoder",
        "vit",
    ]
    short, long, encoder, vit = config.runs
    assert short.common == config.common
    assert short.arguments == {
        "reference": "torch:cpu:fp64",
        "probe": ["one", "two"],
        "probes": None,
        "policy": config.common.policy,
        "depth": "sublayer",
        "allow_missing": ("norm",),
        "budget": None,
        "max_format_kl": None,
        "min_format_snr": None,
        "blocks": None,
        "trust_remote_code": False,
        "batch": None,
        "length": None,
        "seed": 0,
    }
    policy = config.common.policy
    assert [(rule.glob, rule.tolerance) for rule in policy.rules] == [
        ("layer.*", Tolerance(1e-3)),
        ("embed", Tolerance(1e-4, 1e-5)),
        ("logits", None),
    ]
    assert not policy.calibrated
    assert (long.inputs.given, long.inputs.batch, long.inputs.length) == (None, 1, 64)
    assert long.inputs.seed == 3
    assert encoder.common.policy.name == "fixed"
    assert encoder.common.candidates == ("torch",)
    assert encoder.common.reference == "torch:cpu:fp64"
    assert encoder.common.allow_missing == ()
    assert encoder.inputs.given == ["its own"]
    assert (encoder.blocks, encoder.trust_remote_code) == ("encoder.layer", True)
    assert vit.inputs.given is None
    assert config.common.expected == tmp_path / "known.toml"
    assert config.golden == "traces"


def test_the_defaults_are_those_of_verify(tmp_path: Path) -> None:
    import inspect

    from driftwalk import api
    from driftwalk.stage import Setting
    from driftwalk.tolerance import make_policy
    from driftwalk.verification import verify_all

    (run,) = load_config(written(tmp_path, '[[models]]\nmodel = "m"')).runs
    known = {
        name: parameter
        for function in (Setting, api.verify, api.verify_all, verify_all)
        for name, parameter in inspect.signature(function).parameters.items()
    }
    for name, value in run.arguments.items():
        default = known[name].default
        assert value == (make_policy(default) if name == "policy" else default), name
    assert run.common.candidates == (inspect.signature(api.verify).parameters["candidate"].default,)


def test_a_model_under_its_own_name(tmp_path: Path) -> None:
    (run,) = load_config(written(tmp_path, '[[models]]\nmodel = "m"\nname = "mine"')).runs
    assert run.named({"label": "m", "class": "M"}) == {"label": "mine", "source": "m", "class": "M"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("polcy = 'dtype'", ["unknown key 'polcy'", "Did you mean 'policy'?", "Known: reference"]),
        ("allow_missing = []", ["'allow_missing'", "Did you mean 'allow-missing'?"]),
        ("policy = 3", ["'policy' should be text, found a whole number (3)"]),
        ("policy = 'fixd'", ["'policy'", "Did you mean 'fixed'?"]),
        ("policy = ''", ["'policy' is empty"]),
        ("candidates = 'torch'", ["'candidates' should be a list, found text ('torch')"]),
        ("candidates = [1]", ["'candidates' should be a list of texts, found a whole number (1)"]),
        ("candidates = []", ["'candidates' is empty"]),
        ("candidates = ['torhc']", ["'candidates'", "Did you mean 'torch'?"]),
        ("candidates = ['torch:cpu:fp99']", ["'candidates'", "'fp99'"]),
        ("reference = 'troch'", ["'reference'", "unknown backend 'troch'"]),
        ("depth = 'blok'", ["'depth' is 'blok'", "Did you mean 'block'?"]),
        ("rules = { 'layer.*' = 'much' }", ["rules", "Cannot read tolerance 'much'"]),
        ("rules = { 'layer.*' = true }", ["rules: 'layer.*' should be ATOL"]),
        ("rules = { 'layer.*' = -1 }", ["finite number, zero or more"]),
        ("golden = '../elsewhere'", ["'golden' should be a folder below the tests"]),
        ("golden = '/elsewhere'", ["'golden' should be a folder below the tests"]),
        ("models = 3", ["'models' should be a list, found a whole number (3)"]),
        ("models = [3]", ["'models' should be an array of tables"]),
        ("[models]\nmodel = 'm'", ["'models' should be a list, found a table"]),
        ("[[models]]", ["models, entry 1: 'model' is missing"]),
        ("[[models]]\nmodel='m'\n[[models]]\nmodle='n'", ["entry 2:", "Did you mean 'model'?"]),
        ("[[models]]\nmodel='m'\n[[models]]\nmodel='m'", ["two models are called 'm'"]),
        ("[[models]]\nmodel='m'\ntrust-remote-code=1", ["'trust-remote-code' should be true or"]),
        ("[[models]]\nmodel='m'\nprompts=[]", ["entry 1: 'prompts' is empty"]),
        ("[[models]]\nmodel='m'\nprobes=['x']", ["there is no probe 'x'"]),
        ("[[models]]\nmodel='m'\nprobes=[]\nprompts=['x']", ["one of 'prompts' and 'probes'"]),
        ("probes = 3", ["'probes' should be a table"]),
        ("[probes.a]\nprompt=['x']", ["probes.a: unknown key 'prompt'", "'prompts'?"]),
        ("[probes.a]\nprompts=['x']\nids=[1]", ["probes.a: give one of"]),
        ("[probes.a]\nids=[1.5]", ["probes.a: 'ids' should be a list of whole numbers"]),
        ("[probes.a]\nids=[true]", ["'ids' should be a list of whole numbers"]),
        ("[probes.a]\nids=[[]]", ["'ids' should be a list of whole numbers"]),
        ("[probes.a]\nlength=0", ["probes.a: 'length' should be 1 or more, found 0"]),
        ("[probes.a]\nprompts=['x']\nlength=3", ["'length' shapes the default probe"]),
        ("[probes.'a/b']\nlength=3", ["'a/b' cannot be the name of a probe"]),
        ("policy = ", ["is not TOML"]),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_config(path)
    said = str(caught.value)
    assert str(path) in said
    for word in words:
        assert word in said


def test_a_mistake_in_pyproject_is_named_with_its_table(tmp_path: Path) -> None:
    path = written(tmp_path, "[[tool.driftwalk.models]]\nmodle = 'm'", "pyproject.toml")
    with pytest.raises(UsageError) as caught:
        load_config(path)
    assert str(caught.value).startswith(
        f"{path}: tool.driftwalk.models, entry 1: unknown key 'modle'. Did you mean 'model'?"
    )


def test_bytes_and_nesting_that_no_one_writes(tmp_path: Path) -> None:
    path = tmp_path / "driftwalk.toml"
    for raw in (b"\xff\xfe", b"a = " + b"[" * 5000, b"a = 1\x00"):
        path.write_bytes(raw)
        with pytest.raises(UsageError, match="is not TOML"):
            load_config(path)
    with pytest.raises(UsageError, match="Cannot read"):
        load_config(tmp_path / "nowhere.toml")
    with pytest.raises(UsageError, match=r"has no table \[tool.driftwalk\]"):
        load_config(written(tmp_path, "", "pyproject.toml"))
    with pytest.raises(UsageError, match="should be a table"):
        load_config(written(tmp_path, "tool.driftwalk = 3", "pyproject.toml"))


def test_the_nearest_file_counts(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    assert find_config(deep) is None
    shared = written(tmp_path, "[tool.driftwalk]", "pyproject.toml")
    assert find_config(deep) == shared
    written(tmp_path / "a", "[tool.other]", "pyproject.toml")  # not ours: it is passed over
    assert find_config(deep) == shared
    own = written(tmp_path, "")
    assert find_config(deep) == own, "beside each other, driftwalk.toml counts"
    (tmp_path / "a" / ".git").mkdir()
    assert find_config(deep) is None, "another repository is another project"


def test_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.chdir(tmp_path)
    config = load_config(Path("there") / written(there, "").name)
    with config.at_home():
        assert Path.cwd() == there
    assert Path.cwd() == tmp_path
    with Config().at_home():
        assert Path.cwd() == tmp_path


def test_limits_on_formats_hold_for_all_models_or_for_one(tmp_path: Path) -> None:
    text = """
max-format-kl = 0.01
[[models]]
model = "demo:decoder"
[[models]]
model = "demo:encoder"
max-format-kl = 1
min-format-snr = 20.5
"""
    first, second = load_config(written(tmp_path, text)).runs
    asked = [(r.arguments["max_format_kl"], r.arguments["min_format_snr"]) for r in (first, second)]
    assert asked == [(0.01, None), (1.0, 20.5)]


@pytest.mark.parametrize("line", ["max-format-kl = -0.1", 'min-format-snr = "20"'])
def test_a_limit_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match=line.partition(" ")[0]):
        load_config(written(tmp_path, f'{line}\n[[models]]\nmodel = "demo:decoder"\n'))
