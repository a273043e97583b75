"""What of a model a probe exercises: exact counts, and the proof that the rest is really unread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from torch import nn

import driftwalk
import zoo
from driftwalk.exercised import Exercised, Touched
from driftwalk.states import Probe
from driftwalk_backends.calls import call, inputs_for, quietly
from driftwalk_backends.exercised import Watch
from driftwalk_backends.model_outputs import named_outputs
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.touching import Touching

_SMALL = zoo._GROUPED | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _seeded(model: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.data.normal_(std=0.2)
    return model.eval()


def _qwen2_moe() -> nn.Module:
    config = tf.Qwen2MoeConfig(
        **_SMALL,
        num_experts=16,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )
    return _seeded(tf.Qwen2MoeForCausalLM(config))


def _deepseek() -> nn.Module:
    config = tf.DeepseekV3Config(
        **(_SMALL | {"num_key_value_heads": 4}),
        moe_intermediate_size=16,
        n_routed_experts=16,
        n_shared_experts=1,
        num_experts_per_tok=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=None,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    )
    return _seeded(tf.DeepseekV3ForCausalLM(config))


def _gpt_oss() -> nn.Module:
    config = tf.GptOssConfig(
        **_SMALL, num_local_experts=16, num_experts_per_tok=1, head_dim=8, sliding_window=8
    )
    return _seeded(tf.GptOssForCausalLM(config))


def _mixtral() -> nn.Module:
    config = tf.MixtralConfig(**_SMALL, num_local_experts=16, num_experts_per_tok=1)
    return _seeded(tf.MixtralForCausalLM(config))


def _switch() -> nn.Module:
    config = tf.SwitchTransformersConfig(
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        num_experts=16,
        vocab_size=99,
        decoder_start_token_id=0,
    )
    return _seeded(tf.SwitchTransformersForConditionalGeneration(config))


def _granite() -> nn.Module:
    config = tf.GraniteMoeConfig(**_SMALL, num_local_experts=16, num_experts_per_tok=1)
    return _seeded(tf.GraniteMoeForCausalLM(config))


class Odd(nn.Module):
    """A plain module that uses weights in ways that no hook on a module sees."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 8)
        self.places = nn.Embedding(12, 8)
        self.scale = nn.Parameter(torch.randn(6, 8))
        self.bank = nn.Parameter(torch.randn(5, 8, 8) / 3)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)
        )
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.kept = self.experts[3].weight.t()  # memory of a weight under another name
        self.adapter = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.eval()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1])) * self.scale[2:4].sum(0)
        x = x + self.scale[[0]]
        x = x @ self.bank[1] + x @ self.bank.transpose(1, 2)[ids[0, 0]]
        for block in self.blocks:
            x = block(x)
        x = x + self.experts[1](x) + x @ self.kept
        self.experts[2](x[:, :0])  # no token is routed to it
        return self.head(x)


MODELS: dict[str, Any] = {
    **{name: lambda name=name: zoo.build(name) for name in zoo.NAMES},
    "mixtral16": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "deepseek_v3": _deepseek,
    "gpt_oss": _gpt_oss,
    "switch": _switch,
    "granite_moe": _granite,
    "odd": Odd,
}
MOE = ("mixtral16", "qwen2_moe", "deepseek_v3", "gpt_oss", "switch", "granite_moe")


def _probe(name: str, model: nn.Module) -> Probe:
    if name == "odd":
        return Probe({"ids": np.array([[3, 3, 1, 7, 9]])})
    return make_probe(open_model(model))


def _watched(
    model: nn.Module, probe: Probe
) -> tuple[Touching, dict[str, torch.Tensor], Mapping[str, torch.Tensor]]:
    with quietly(model):
        inputs = inputs_for(model, probe, torch.device("cpu"))
        touching = Touching(model, inputs)
        with touching:
            call(model, inputs)
        # Watched, an attention of torch.nn takes another way: what must hold is the plain run.
        outputs = named_outputs(call(model, inputs))
    return touching, inputs, outputs


def _exercised(model: nn.Module, probe: Probe) -> Exercised:
    watch = Watch()
    with quietly(model):
        inputs = inputs_for(model, probe, torch.device("cpu"))
        watch.run(model, inputs, lambda: call(model, inputs))
    found = watch.known(inputs)
    assert found is not None
    return found


def _one(found: Exercised, what: str, where: str = "") -> Touched:
    (item,) = [item for item in found.of(what) if item.where.endswith(where)]
    return item


@pytest.mark.parametrize("name", MODELS)
def test_what_is_called_unread_may_be_nan(name: str) -> None:
    model = MODELS[name]()
    probe = _probe(name, model)
    found = _exercised(model, probe)
    touching, inputs, outputs = _watched(model, probe)
    assert not touching.blind
    kept = total = 0
    for weight in touching.weights:
        total += weight.parameter.numel()
        unread = torch.from_numpy(~weight.used)
        rows = weight.parameter.data.view(len(unread), -1)
        rows[unread] = math.nan
        kept += int((~rows.isnan()).sum())
    with quietly(model):
        again = named_outputs(call(model, inputs))
    for key, output in outputs.items():
        assert torch.equal(output, again[key]), key
    assert found.weights == pytest.approx(kept / total, abs=0)


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "odd", *MOE])
def test_a_nan_in_a_weight_that_took_part_shows(name: str) -> None:
    """The other half: what is said to be used is not padded out with what is not."""
    model = MODELS[name]()
    probe = _probe(name, model)
    touching, inputs, _ = _watched(model, probe)
    tables = [w for w in touching.weights if 0 < w.used.sum() < len(w.used) and not w.whole]
    assert tables
    for weight in tables:
        for row in np.flatnonzero(weight.used)[[0, -1]]:
            before = weight.parameter.data[row].clone()
            weight.parameter.data[row] = math.nan
            with quietly(model):
                outputs = named_outputs(call(model, inputs))
            weight.parameter.data[row] = before
            spoilt = any(bool(output.isnan().any()) for output in outputs.values())
            assert spoilt, f"{weight.name}[{row}]"


def _ids(probe: Probe, name: str = "input_ids") -> np.ndarray:
    return probe.inputs[name]


def test_gpt2_counts_tokens_and_positions() -> None:
    model = zoo.build("gpt2")
    probe = Probe({"input_ids": np.array([[5, 6, 5, 7, 98]])})
    found = _exercised(model, probe)
    words = _one(found, "embedding rows")
    assert (words.where, words.used, words.of) == ("transformer.wte", 4, 99)
    assert words.shared, "the tied output layer reads every row"
    assert _one(found, "positions") == Touched(
        "positions", "transformer.wpe", 5, 64, False, "a text of 64 tokens"
    )
    total = sum(p.numel() for p in model.parameters())
    assert found.weights == (total - 59 * zoo.WIDTH) / total


def test_an_untied_table_counts_by_its_rows() -> None:
    model = zoo.build("llama")
    probe = make_probe(open_model(model))
    found = _exercised(model, probe)
    used = len(set(_ids(probe).flatten().tolist()))
    words = _one(found, "embedding rows")
    assert (words.used, words.of, words.shared) == (used, 99, False)
    assert words.advice == "input_ids of the whole vocabulary (2 rows of 64)"
    total = sum(p.numel() for p in model.parameters())
    assert found.weights == (total - (99 - used) * zoo.WIDTH) / total
    assert _one(found, "positions").used == _ids(probe).shape[1]


def test_the_advice_for_a_vocabulary_works() -> None:
    model = zoo.build("llama")
    ids = np.resize(np.arange(99), (2, 64))
    found = _exercised(model, Probe({"input_ids": ids}))
    assert found.weights == 1
    assert _one(found, "embedding rows").tried
    assert _one(found, "positions").tried


def test_bert_counts_token_types() -> None:
    model = zoo.build("bert")
    ids = np.array([[5, 6, 7, 8]])
    one = _one(_exercised(model, Probe({"input_ids": ids})), "token types")
    assert (one.used, one.of) == (1, 2)
    assert one.advice == "token_type_ids of 0 to 1"
    both = Probe({"input_ids": ids, "token_type_ids": np.array([[0, 0, 1, 1]])})
    assert _one(_exercised(model, both), "token types").tried


def test_ids_that_count_are_still_no_positions() -> None:
    found = _exercised(zoo.build("llama"), Probe({"input_ids": np.arange(9)[None]}))
    assert _one(found, "embedding rows").used == 9


def test_roberta_counts_positions_behind_padding() -> None:
    probe = Probe(
        {
            "input_ids": np.array([[5, 6, 7, 8], [5, 6, 1, 1]]),
            "attention_mask": np.array([[1, 1, 1, 1], [1, 1, 0, 0]]),
        }
    )
    positions = _one(_exercised(zoo.build("roberta"), probe), "positions")
    assert positions.used == 5, "four from padding_idx + 1 on, and padding_idx itself"


@pytest.mark.parametrize("name", MOE)
def test_experts_are_those_that_the_router_chose(name: str) -> None:
    model = MODELS[name]()
    probe = _probe(name, model)
    chosen: dict[str, set[int]] = {}
    width = 16

    def hook(path: str) -> Any:
        def look(part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            logits = output[0] if isinstance(output, tuple) else output
            if name == "switch":
                picked = set(output[0].reshape(-1, width).nonzero()[:, 1].tolist())
            elif name == "deepseek_v3":
                picked = set(output[2].flatten().tolist())
            else:
                picked = set(logits.topk(1).indices.flatten().tolist())
            chosen[path.rpartition(".")[0]] = picked

        return look

    routers = [
        (path, part)
        for path, part in model.named_modules()
        if path.rpartition(".")[2] in ("gate", "router") and not isinstance(part, nn.Linear)
    ]
    handles = [p.register_forward_hook(hook(path), with_kwargs=True) for path, p in routers]
    found = _exercised(model, probe)
    for handle in handles:
        handle.remove()
    experts: dict[str, int] = {}
    for item in found.of("experts"):
        assert item.of == 16
        experts[item.where.rpartition(".")[0]] = item.used
    assert experts
    assert any(used < 16 for used in experts.values()), "else nothing is shown"
    assert experts == {path: len(picked) for path, picked in chosen.items()}


def test_both_ways_to_run_experts_count_the_same() -> None:
    model = _mixtral()
    probe = _probe("mixtral16", model)
    found = {}
    for how in ("eager", "batched_mm", "grouped_mm"):
        model.set_experts_implementation(how)
        found[how] = _exercised(model, probe)
    assert found["eager"] == found["batched_mm"] == found["grouped_mm"]


def test_a_plain_module_is_read_through_its_functions() -> None:
    found = _exercised(Odd(), Probe({"ids": np.array([[3, 3, 1, 7, 9]])}))
    assert _one(found, "embedding rows", "words").used == 4
    assert _one(found, "positions", "places").used == 5
    assert [(i.where, i.used, i.of) for i in found.of("weight rows")] == [("bank", 2, 5)]
    assert _one(found, "embedding rows", "scale").used == 3
    assert _one(found, "experts").used == 2, "one by its module, one by its memory"
    assert [item.where for item in found.of("unused")] == ["adapter"]
    assert not found.of("padding")
    assert not found.of("cache")
    assert _one(found, "batch").advice == "a second row"


MASKS = {
    "none": [[1, 1, 1, 1], [1, 1, 1, 1]],
    "right": [[1, 1, 1, 1], [1, 1, 0, 0]],
    "left": [[1, 1, 1, 1], [0, 0, 1, 1]],
    "left and right": [[1, 1, 1, 0], [0, 0, 1, 1]],
    "inner": [[1, 1, 1, 1], [1, 0, 1, 1]],
}


@pytest.mark.parametrize("sides", MASKS)
@pytest.mark.parametrize(("name", "causal"), [("llama", True), ("gpt2", True), ("bert", False)])
def test_padding_sides(sides: str, name: str, causal: bool) -> None:
    ids = np.array([[5, 6, 7, 8], [9, 10, 11, 12]])
    probe = Probe({"input_ids": ids, "attention_mask": np.array(MASKS[sides])})
    found = _one(_exercised(zoo.build(name), probe), "padding")
    assert found.where == sides
    assert found.tried == (sides != "none" and not (causal and sides == "right"))
    assert bool(found.advice) != found.tried
    assert ("left" in found.advice) == (causal and not found.tried)


def test_the_cache_is_named_where_there_is_one() -> None:
    for name in ("gpt2", "llama", "t5", "bart", "whisper"):
        model = zoo.build(name)
        assert not _one(_exercised(model, _probe(name, model)), "cache").tried, name
    for name in ("bert", "vit", "modernbert", "distilbert"):
        model = zoo.build(name)
        assert not _exercised(model, _probe(name, model)).of("cache"), name


@pytest.mark.parametrize(
    ("name", "length", "tried"),
    [("gemma3", 8, False), ("gemma3", 9, True), ("modernbert", 5, False), ("modernbert", 6, True)],
)
def test_a_window_is_tried_by_a_probe_that_is_longer(name: str, length: int, tried: bool) -> None:
    model = zoo.build(name)
    ids = np.arange(3, 3 + length)[None]
    window = _one(_exercised(model, Probe({"input_ids": ids})), "window")
    assert window.tried == tried
    assert bool(window.advice) != tried
    # What is claimed: only beyond it does the window change anything.
    wide = zoo.build(name)
    for part in (wide, *wide.modules()):
        for setting in ("sliding_window", "local_attention"):
            if isinstance(getattr(part, setting, None), int):
                setattr(part, setting, 10_000)
    for setting in ("sliding_window", "local_attention"):
        if isinstance(getattr(wide.config, setting, None), int):
            setattr(wide.config, setting, 10_000)
    with torch.no_grad():
        same = torch.equal(model(torch.from_numpy(ids)).logits, wide(torch.from_numpy(ids)).logits)
    assert same != tried


def test_mistral_says_that_its_window_is_longer_than_the_probe() -> None:
    model = zoo.build("mistral")
    window = _one(_exercised(model, _probe("mistral", model)), "window")
    assert (window.used, window.of, window.tried) == (16, 4096, False)


def test_t5_counts_both_halves() -> None:
    model = zoo.build("t5")
    probe = _probe("t5", model)
    found = _exercised(model, probe)
    ids = {int(i) for n in ("input_ids", "decoder_input_ids") for i in _ids(probe, n).flat}
    assert _one(found, "embedding rows", "shared").used == len(ids)
    halves = [i.where.partition(".")[0] for i in found.items if "relative" in i.where]
    assert halves == ["encoder", "decoder"]


def test_vit_has_nothing_to_say_of_text() -> None:
    model = zoo.build("vit")
    found = _exercised(model, _probe("vit", model))
    assert found.weights == 1
    assert {item.what for item in found.items} == {"batch"}


# -- in a run --------------------------------------------------------------------------------------


def test_a_report_says_what_was_looked_at_and_still_passes() -> None:
    model = zoo.build("llama")
    probe = {"input_ids": np.array([[5, 6, 7]])}
    broken = zoo.build("llama")
    rows = [row for row in range(99) if row not in (5, 6, 7)]
    broken.model.embed_tokens.weight.data[rows] = math.nan
    report = driftwalk.verify(model, candidate=broken, probe=probe, policy="dtype")
    assert report.ok
    found = report.coverage.exercised
    assert found is not None
    total = sum(p.numel() for p in model.parameters())
    assert found.weights == (total - 96 * zoo.WIDTH) / total
    assert _one(found, "embedding rows").used == 3


def test_each_probe_is_counted_by_itself() -> None:
    model = open_model(zoo.build("llama"))
    for count in (3, 5, 4):
        probe = {"input_ids": np.arange(1, 1 + count)[None]}
        report = driftwalk.verify(model, candidate="torch", probe=probe, policy="dtype")
        assert report.coverage.exercised is not None
        assert _one(report.coverage.exercised, "embedding rows").used == count


def test_no_run_is_made_for_it_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.build("llama")
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    report = driftwalk.verify(model, candidate="torch", policy="dtype")
    assert report.coverage.exercised is not None
    with_it = len(calls)
    calls.clear()
    monkeypatch.setattr("driftwalk.verification.exercised", lambda *_: None)
    monkeypatch.setattr(Watch, "run", lambda self, module, inputs, run: run())
    driftwalk.verify(zoo.build("llama"), candidate="torch", policy="dtype")
    again = zoo.build("llama")
    again.register_forward_pre_hook(lambda *_: calls.append(1))
    driftwalk.verify(again, candidate="torch", policy="dtype")
    assert with_it == len(calls)


def test_a_recorded_reference_uses_the_run_of_the_candidate(tmp_path: Any) -> None:
    model = zoo.build("llama")
    driftwalk.record(model).save(tmp_path / "golden.trace")
    golden = f"trace:{tmp_path / 'golden.trace'}"
    report = driftwalk.verify(model, candidate="torch", reference=golden, policy="dtype")
    assert report.coverage.exercised is not None
    alone = driftwalk.verify(zoo.build("llama"), golden, golden, policy="dtype")
    assert alone.coverage.exercised is None
    assert any("was not run here" in note for note in alone.notes)


class Spoilsport(nn.Module):
    """A parameter that breaks whoever watches it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.overrides._get_current_function_mode() is not None:
            raise RuntimeError("watched")
        for block in self.blocks:
            x = block(x)
        return x


def test_a_model_that_cannot_be_watched_is_verified_all_the_same() -> None:
    probe = {"x": np.ones((2, 4), dtype=np.float32)}
    report = driftwalk.verify(Spoilsport(), candidate="torch", probe=probe, policy="dtype")
    assert report.ok
    found = report.coverage.exercised
    assert found is not None
    assert found.weights is None
    assert "watched" in found.unknown


def test_a_function_that_is_given_a_function_hides_weights() -> None:
    class Mapped(Odd):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = super().forward(ids)
            x.map_(x.clone(), lambda a, b: a + float(self.adapter.bias[0]))
            return x

    found = _exercised(Mapped(), Probe({"ids": np.array([[3, 3, 1, 7, 9]])}))
    assert found.weights is None
    assert found.unknown
