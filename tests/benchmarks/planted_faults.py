"""Faults that the default probe passes: which of them do sets of probes and the search find?

    python tests/benchmarks/planted_faults.py [--model FOLDER] [--decoder FILE.gguf]
                                              [--minutes 10] [--seed 0] [--only WORDS]

Each fault is planted in a copy of a model, an nn.Module, which is the candidate. Without weights
the models are tiny and random. With a folder (a BERT, such as MiniLM) the faults that apply to it
are planted there; with the GGUF file of a Llama (such as SmolLM2) the two others: its first
layers as a Mistral with a window, and as a Mixtral whose experts are copies of its MLP, each times
a factor of its own. A line says which of the default probe, builtin:edge, builtin:text, suggest and
a search from builtin:edge found drift, and what the default probe's report said beforehand was not
covered.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as tf
from torch import nn

import driftwalk
from driftwalk.api import verify_all
from driftwalk.errors import DriftwalkError
from driftwalk.stage import open_model
from driftwalk.tasks.probes.run import own_set
from driftwalk.tasks.probes.search import search

SIZES = {"num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 4}
INPUTS, TOKENS = 2000, 24
"""Random inputs that thresholds are measured on."""


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 2000, "n_positions": 512, "n_embd": 48, "n_layer": 3, "n_head": 4}
    config = tf.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, initializer_range=0.1)
    return tf.GPT2LMHeadModel(config).eval()


def mistral() -> nn.Module:
    torch.manual_seed(0)
    more = {"vocab_size": 500, "intermediate_size": 96, "num_key_value_heads": 2}
    config = tf.MistralConfig(
        **SIZES, **more, sliding_window=40, max_position_embeddings=256, initializer_range=0.1
    )
    return tf.MistralForCausalLM(config).eval()


def mixtral() -> nn.Module:
    torch.manual_seed(0)
    more = {"vocab_size": 500, "intermediate_size": 64, "num_key_value_heads": 2}
    experts = {"num_local_experts": 32, "num_experts_per_tok": 1}
    config = tf.MixtralConfig(
        **SIZES, **more, **experts, max_position_embeddings=256, initializer_range=0.1
    )
    return tf.MixtralForCausalLM(config).eval()


LAYERS, EXPERTS, IDS = 4, 16, 4096
"""Of what is made of a real decoder: its first layers, and the first rows of its table."""


def llama(file: Path) -> Any:
    given = {"gguf_file": file.name, "dtype": torch.float32}
    model = tf.AutoModelForCausalLM.from_pretrained(file.parent, **given).eval().model
    model.resize_token_embeddings(IDS)
    return model


def real_mistral(file: Path) -> nn.Module:
    """The first layers of a Llama, which a Mistral computes alike, with a window."""
    first = llama(file)
    shape = {**first.config.to_dict(), "sliding_window": 40, "max_position_embeddings": 256}
    config = tf.MistralConfig(**{**shape, "num_hidden_layers": LAYERS, "layer_types": None})
    made = tf.MistralModel(config).eval()
    made.load_state_dict(first.state_dict(), strict=False)
    return made


def real_mixtral(file: Path) -> nn.Module:
    """The first layers of a Llama; experts are its MLP, times 0.8 to 1.2; routers random."""
    first = llama(file)
    more = {"num_local_experts": EXPERTS, "num_experts_per_tok": 1}
    shape = {**first.config.to_dict(), **more, "max_position_embeddings": 256}
    config = tf.MixtralConfig(**{**shape, "num_hidden_layers": LAYERS, "sliding_window": None})
    torch.manual_seed(0)
    made: Any = tf.MixtralModel(config).eval()
    made.load_state_dict(first.state_dict(), strict=False)
    with torch.no_grad():
        for mine, theirs in zip(made.layers, first.layers, strict=False):
            given = torch.cat([theirs.mlp.gate_proj.weight, theirs.mlp.up_proj.weight])
            mine.mlp.experts.gate_up_proj.copy_(given.expand(EXPERTS, -1, -1))
            factors = torch.linspace(0.8, 1.2, EXPERTS)[:, None, None]
            mine.mlp.experts.down_proj.copy_(theirs.mlp.down_proj.weight * factors)
            mine.mlp.gate.weight.normal_(0, 0.1)
    return made  # type: ignore[no-any-return]


def table_of(model: Any) -> nn.Embedding:
    return model.get_input_embeddings()  # type: ignore[no-any-return]


def untied(model: Any) -> Any:
    """A copy whose input table is its own."""
    other = copy.deepcopy(model)
    table = table_of(other)
    table.weight = nn.Parameter(table.weight.detach().clone())
    return other


def rare(model: Any) -> int:
    """An id that the default probe does not have, and that no set has for its own reasons."""
    used = set(np.unique(default_ids(model)).tolist())
    first = int(0.37 * table_of(model).num_embeddings)
    return next(n for n in range(first, 10**6) if n not in used)


def default_ids(model: Any) -> np.ndarray:
    from driftwalk.stage import make_probe

    return make_probe(open_model(model)).inputs["input_ids"].copy()


def wrong_row(model: Any) -> Any:
    other = untied(model)
    with torch.no_grad():
        table_of(other).weight[rare(model)] *= 1.5
    return other


def wrong_id(model: Any) -> Any:
    other, bad = copy.deepcopy(model), rare(model)

    def mapped(_: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (torch.where(args[0] == bad, bad + 1, args[0]), *args[1:])

    table_of(other).register_forward_pre_hook(mapped)
    return other


def rare_expert(model: Any) -> Any:
    """An expert of the second layer that the default probe routes nothing to, and text does."""
    other = copy.deepcopy(model)
    bank = layers_of(other)[1].mlp
    ids = torch.arange(table_of(model).num_embeddings)[None, :256]
    usual, wide = (_routed(model, torch.as_tensor(one)) for one in (default_ids(model), ids))
    chosen = next(iter(sorted(wide - usual)))
    with torch.no_grad():
        bank.experts.down_proj[chosen] *= 1.5
    return other


def layers_of(model: Any) -> Any:
    return getattr(model, "model", model).layers


def _routed(model: Any, ids: torch.Tensor) -> set[int]:
    chosen: set[int] = set()
    gate = layers_of(model)[1].mlp.gate

    def note(_: nn.Module, __: Any, out: Any) -> None:
        scores = out[0] if isinstance(out, tuple) else out
        chosen.update(scores.reshape(-1, scores.shape[-1]).argmax(-1).tolist())

    handle = gate.register_forward_hook(note)
    with torch.no_grad():
        model(input_ids=ids)
    handle.remove()
    return chosen


def far_positions(model: Any) -> Any:
    other = copy.deepcopy(model)
    names = ("wpe", "position_embeddings")
    table = next(m for n, m in other.named_modules() if n.rpartition(".")[2] in names)
    with torch.no_grad():
        table.weight[400:] = table.weight[400:].roll(1, 0)
    return other


def window_off_by_one(model: Any) -> Any:
    other = copy.deepcopy(model)
    other.config.sliding_window += 1
    for part in other.modules():
        if isinstance(getattr(part, "sliding_window", None), int):
            part.sliding_window += 1
    return other


def activation_of(model: Any, at: float = 0.5) -> nn.Module:
    """That in the middle of the model, or elsewhere.

    In the middle of MiniLM one unit is near 13.6 for every input, and nothing goes much farther.
    """
    names = ("act", "act_fn", "intermediate_act_fn")
    found = [m for n, m in model.named_modules() if n.rpartition(".")[2] in names]
    return found[min(int(at * len(found)), len(found) - 1)]


def largest(model: Any, part: nn.Module, ids: np.ndarray) -> np.ndarray:
    """The largest value that a module gives, for each of some rows of ids."""
    seen: list[float] = []

    def note(_: nn.Module, __: Any, out: Any) -> None:
        out = out[0] if isinstance(out, tuple) else out
        seen.extend(out.detach().abs().flatten(1).max(1).values.tolist())

    handle = part.register_forward_hook(note)
    with torch.no_grad():
        for rows in np.array_split(ids, max(1, len(ids) // 50)):
            model(input_ids=torch.as_tensor(rows))
    handle.remove()
    return np.array(seen)


def saturates(model: Any, at: float = 1.0) -> Any:
    """The last activation is cut off a little above all that the default probe has there."""
    most = float(largest(model, activation_of(model, at), default_ids(model)).max()) * 1.02
    other = copy.deepcopy(model)
    activation_of(other, at).register_forward_hook(lambda _, __, out: out.clamp(max=most))
    return other


def overflows(model: Any) -> Any:
    """A block overflows at a magnitude that 1 of 2,000 random inputs has."""
    ids = np.random.default_rng(7).integers(0, table_of(model).num_embeddings, (INPUTS, TOKENS))
    most = float(np.sort(largest(model, activation_of(model), ids))[-1])
    other = copy.deepcopy(model)

    def change(_: nn.Module, __: Any, out: torch.Tensor) -> torch.Tensor:
        return torch.where(out.abs() >= most, torch.inf, out)

    activation_of(other).register_forward_hook(change)
    return other


def ignores_left_padding(model: Any) -> Any:
    other = copy.deepcopy(model)
    plain = other.forward

    def forward(*args: Any, attention_mask: Any = None, **more: Any) -> Any:
        if attention_mask is not None and bool((attention_mask[:, 0] == 0).any()):
            attention_mask = torch.ones_like(attention_mask)
        return plain(*args, attention_mask=attention_mask, **more)

    other.forward = forward
    return other


FAULTS: dict[str, tuple[Callable[[], nn.Module] | None, Callable[[Any], Any]]] = {
    "a wrong row of the embedding": (gpt2, wrong_row),
    "an expert rarely used": (mixtral, rare_expert),
    "positions beyond 400": (gpt2, far_positions),
    "a window off by one": (mistral, window_off_by_one),
    "an activation that saturates": (gpt2, saturates),
    "the middle activation saturates": (gpt2, partial(saturates, at=0.5)),
    "one token id mapped wrongly": (gpt2, wrong_id),
    "a mask ignored under left padding": (gpt2, ignores_left_padding),
    "overflow at 1 of 2,000 inputs": (gpt2, overflows),
}
OF_DECODERS = {"an expert rarely used": real_mixtral, "a window off by one": real_mistral}


def first_drift(model: Any, candidate: nn.Module, probes: dict[str, Any]) -> str:
    """The probes one by one, no farther than the first that shows drift."""
    for number, (name, probe) in enumerate(probes.items(), 1):
        if driftwalk.verify(model, candidate, probe=probe, blame=False).verdict == "drift":
            return f"drift by {name}, number {number} of {len(probes)}"
    return f"pass, {len(probes)} probes"


def verdict(model: Any, candidate: nn.Module, probes: object) -> str:
    start = time.perf_counter()
    try:
        report = driftwalk.verify(model, candidate, blame=False, probes=probes)
    except DriftwalkError as error:
        return f"not run ({str(error)[:40]})"
    worst = f" by {report.worst.name}" if report.worst is not None and not report.ok else ""
    drifted = f", {report.probe_set.drifted} of {report.probe_set.count}"  # type: ignore[union-attr]
    return f"{report.verdict}{worst}{drifted} ({time.perf_counter() - start:.0f} s)"


def searched(model: Any, candidate: nn.Module, asked: Any) -> str:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        given = {"probes": "builtin:edge", "minutes": asked.minutes, "blame": False}
        found = search(verify_all, model, candidate, folder, seed=asked.seed, **given)
    word = "drift" if found.worst.used > 1 else "pass"
    spent = f"{found.tried} mutants, {found.runs} runs, {time.perf_counter() - start:.0f} s"
    ids = found.smallest.inputs["input_ids"].shape
    return f"{word} by {found.worst.name}, {found.worst.used:.3g} (smallest form {ids}); {spent}"


def makers(asked: Any) -> dict[str, Callable[[], Any]]:
    """What each fault is planted in."""
    if not asked.model and not asked.decoder:
        return {name: make for name, (make, _) in FAULTS.items()}
    made: dict[str, Callable[[], Any]] = {}
    for name in FAULTS:
        if asked.decoder and name in OF_DECODERS:
            made[name] = partial(OF_DECODERS[name], Path(asked.decoder))
        elif asked.model and name not in OF_DECODERS:
            made[name] = partial(open_model, asked.model)
    return made


def sets_of(model: Any, asked: Any) -> dict[str, Any]:
    """The sets for a model, made once for all of its faults."""
    made = {}
    for name in asked.sets.split(","):
        start = time.perf_counter()
        try:
            entries = list(own_set(model, name).read())
        except DriftwalkError as error:
            tell(f"{name}: none ({error})")
            continue
        made[name] = {entry.name: entry.given for entry in entries}
        tell(f"{name}: {len(entries)} probes, made in {time.perf_counter() - start:.0f} s")
    return made


def show(name: str, model: Any, sets: dict[str, Any], asked: Any) -> None:
    candidate = FAULTS[name][1](model.module)
    default = driftwalk.verify(model, candidate, blame=False)
    known = default.coverage.exercised
    left = {k: f"{v:.1%}" for k, v in known.shares.items() if v < 1} if known else {}
    tell(f"{name}: default probe {default.verdict}; of it covered: {left}")
    found = False
    for one, probes in sets.items():
        word = (first_drift if asked.first else verdict)(model, candidate, probes)
        found = found or word.startswith("drift")
        tell(f"    {one}: {word}")
    if asked.always_search or not found:
        tell(f"    search: {searched(model, candidate, asked)}")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--model")
    words.add_argument("--decoder")
    words.add_argument("--minutes", type=float, default=10)
    words.add_argument("--seed", type=int, default=0, help="of the search")
    words.add_argument("--only", default="")
    words.add_argument("--always-search", action="store_true")
    words.add_argument("--first", action="store_true", help="no farther than the first drift")
    words.add_argument("--sets", default="builtin:edge,builtin:text,suggest")
    asked = words.parse_args()
    made: dict[str, tuple[Any, dict[str, Any]]] = {}
    for name, make in makers(asked).items():
        if not any(words in name for words in asked.only.split(",")):
            continue
        which = str(getattr(make, "func", make)) + str(getattr(make, "args", ""))
        if which not in made:
            model = open_model(make())
            made = {which: (model, sets_of(model, asked))}
        show(name, *made[which], asked)


if __name__ == "__main__":
    main()
