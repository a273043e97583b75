"""Does the truth compute the model's own function? Every architecture of transformers that a
generic shrinker can build, float64 in two ways against float32. Prints Markdown.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/truth_survey.py [model_type ...]
"""

from __future__ import annotations

import datetime
import inspect
import platform
import signal
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from driftwalk.measure.halves import widened
from driftwalk.registry import create
from driftwalk.states import Probe

SPECS = ("truth", "truth,casts=kept", "emulated:bf16", "emulated:fp16")
MOST_PARAMETERS = 40_000_000
SECONDS = 60
CLOSE = 1e-4
"""A truth this near to float32 computes the same function."""

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "dim": 64,
    "embed_dim": 64,
    "encoder_hidden_size": 64,
    "decoder_hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
    "ffn_dim": 96,
    "d_ff": 96,
    "d_kv": 16,
    "mlp_dim": 96,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "depth": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "speech_encoder_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "speech_encoder_attention_heads": 4,
    "speech_encoder_intermediate_size": 96,
    "t2u_encoder_layers": 1,
    "t2u_decoder_layers": 1,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "t2u_vocab_size": 50,
    "unit_hifi_gan_vocab_size": 50,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "max_source_positions": 64,
    "image_size": 64,
    "patch_size": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "sliding_window": 8,
    "num_mel_bins": 16,
    "projection_dim": 32,
    "embedding_size": 32,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_queries": 10,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "subsampling_conv_channels": 8,
}
BINS = ("num_mel_bins", "feature_size", "feature_projection_input_dim", "input_feat_per_channel")
AS_THEY_ARE = {
    "swin",
    "swinv2",
    "convnext",
    "convnextv2",
    "focalnet",
    "donut-swin",
    "maskformer-swin",
}
"""Their widths come in lists that must fit together; the shrinker would break them."""


class TooLong(BaseException):
    """An architecture took longer than a survey can wait."""


DEPTHS = tuple(name for name in SMALL if "layers" in name or name in ("depth", "n_layer"))
TRIES: tuple[tuple[str, ...], ...] = (
    (),
    ("head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
    ("patch_size", "image_size", "projection_dim", "embedding_size"),
    ("num_key_value_heads", "num_attention_heads", "num_heads", "hidden_size", "head_dim"),
    tuple(name for name in SMALL if name not in DEPTHS),
)
"""What the shrinker leaves alone, one try after another, until a model runs."""


def config_of(kind: type[Any], leave: tuple[str, ...] = ()) -> Any:
    """A config with few and narrow layers, sub-configs included."""
    names = set(inspect.signature(kind.__init__).parameters)
    if getattr(kind, "model_type", "") in AS_THEY_ARE:
        return kind()
    chosen = {n: v for n, v in SMALL.items() if n in names and n not in leave}
    for name, part in (getattr(kind, "sub_configs", None) or {}).items():
        if name in names and part.__name__ != "AutoConfig":
            chosen[name] = config_of(part, leave).to_dict()
    return kind(**chosen)


def model_of(model_type: str, leave: tuple[str, ...]) -> nn.Module:
    config = config_of(CONFIG_MAPPING[model_type], leave)
    found = MODEL_MAPPING[type(config)]
    kind = found[0] if isinstance(found, tuple | list) else found
    with torch.device("meta"):
        count = sum(p.numel() for p in kind(config).parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model: nn.Module = kind(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1 and parameter.is_floating_point():
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def inputs_of(model: Any) -> dict[str, np.ndarray]:
    """Random inputs with masks, by the names that forward takes."""
    rng = np.random.default_rng(0)
    takes = inspect.signature(model.forward).parameters
    config = model.config
    texts = [
        config,
        *(getattr(config, n, None) for n in ("text_config", "text_encoder", "decoder")),
    ]
    words = next((c.vocab_size for c in texts if getattr(c, "vocab_size", None)), 100)
    words = min(words, 250)
    mask = np.ones((2, 16), dtype=np.int64)
    mask[1, 10:] = 0
    inputs: dict[str, np.ndarray] = {}
    main = str(model.main_input_name)
    if "input_ids" in takes:
        inputs["input_ids"] = rng.integers(3, words, (2, 16))
    if "attention_mask" in takes:
        inputs["attention_mask"] = mask
    if "decoder_input_ids" in takes and "input_ids" in takes:
        inputs["decoder_input_ids"] = rng.integers(3, words, (2, 12))
    if "pixel_values" in takes and (
        main == "pixel_values" or "input_ids" not in takes or "clip" in config.model_type
    ):
        seen = getattr(config, "vision_config", config)
        size = getattr(seen, "image_size", 64)
        size = size if isinstance(size, int) else size[0] if isinstance(size, list | tuple) else 64
        shape = (2, getattr(seen, "num_channels", 3), size, size)
        inputs["pixel_values"] = rng.standard_normal(shape, dtype=np.float32)
        if "input_ids" not in takes:
            inputs.pop("attention_mask", None)
    if main == "input_values":
        inputs = {"input_values": rng.standard_normal((2, 4000), dtype=np.float32)}
        if "attention_mask" in takes:
            inputs["attention_mask"] = np.ones((2, 4000), dtype=np.int64)
            inputs["attention_mask"][1, 3000:] = 0
    if main == "input_features":
        bins = next((b for name in BINS if (b := getattr(config, name, None))), 80)
        shape = (2, 128, bins) if model.config.model_type != "whisper" else (2, bins, 128)
        inputs = {"input_features": rng.standard_normal(shape, dtype=np.float32)}
        if "attention_mask" in takes:
            inputs["attention_mask"] = np.ones((2, 128), dtype=np.int64)
            inputs["attention_mask"][1, 70:] = 0
        if "decoder_input_ids" in takes:
            inputs["decoder_input_ids"] = rng.integers(3, words, (2, 12))
    return inputs


def distance(outputs: Mapping[str, Any], truth: Mapping[str, Any]) -> float:
    """The largest relative L2 distance of any output; NaN and Inf must be in the same places."""
    worst = 0.0
    for name, array in truth.items():
        a, b = (widened(x).astype(np.float64) for x in (outputs[name], array))
        if a.shape != b.shape or (np.isfinite(a) != np.isfinite(b)).any():
            return float("inf")
        ok = np.isfinite(a)
        scale = float(np.linalg.norm(b[ok])) or 1.0
        worst = max(worst, float(np.linalg.norm(a[ok] - b[ok])) / scale)
    return worst


def surveyed(model_type: str) -> tuple[str, list[str]]:
    """A word for the row, and its cells; ValueError where float32 itself does not run."""
    first: Exception | None = None
    for leave in TRIES:
        try:
            model = model_of(model_type, leave)
            probe = Probe(inputs_of(model))
            plain = create("torch", model).run(probe)
            break
        except Exception as error:
            first = first or error
    else:
        assert first is not None
        raise first
    if not plain or not all(np.isfinite(a).all() for a in plain.values()):
        raise ValueError("nothing finite comes out in float32")
    cells, found = [], {}
    for spec in SPECS:
        try:
            found[spec] = distance(plain, create(spec, model).run(probe))
            cells.append(f"{found[spec]:.1e}")
        except Exception as error:
            cells.append(str(error).split("under")[-1][:120].replace("|", "/"))
    wide, kept = found.get(SPECS[0], np.inf), found.get(SPECS[1], np.inf)
    half = [found.get(spec, np.inf) for spec in SPECS[2:]]
    word = "ok" if wide < CLOSE or wide <= 1.05 * kept else "**another function**"
    if not np.isfinite(half).all():
        word += ", half fails"
    return word, cells


def main(asked: list[str]) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    out = sys.stdout.write
    out(
        f"{datetime.datetime.now(datetime.UTC).date()}, {platform.machine()}, torch "
        f"{torch.__version__}, transformers {transformers.__version__}\n\n"
        f"| model type | {' | '.join(f'`{s}`' for s in SPECS)} | |\n|---|{'---|' * 5}\n"
    )
    skipped = {}

    def give_up(*_: Any) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, give_up)
    for model_type in asked or sorted(CONFIG_MAPPING):
        signal.alarm(SECONDS)
        try:
            word, cells = surveyed(model_type)
            out(f"| {model_type} | {' | '.join(cells)} | {word} |\n")
        except (Exception, TooLong) as error:
            why = (str(error).splitlines() or [""])[0][:150]
            skipped[model_type] = f"{type(error).__name__}: {why}"
        finally:
            signal.alarm(0)
        sys.stdout.flush()
    out("\nNot built:\n\n" + "".join(f"- {name}: {why}\n" for name, why in skipped.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
