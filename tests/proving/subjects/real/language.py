"""Transformers out of packages: sentences, chemistry, antibodies, Turkish words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as tf
from safetensors.torch import load_file
from torch import Tensor, nn

from .reading import fill, read

Inputs = Mapping[str, Any]

SENTENCES = (
    "A bird in the hand is worth two in the bush.",
    "The quick brown fox jumps over the lazy dog, twice.",
    "Stock prices fell sharply on Tuesday.",
)
LAYERS = 6
"""Of SmolLM2, of which one layer is much like the next."""
ROWS_OF_TABLE = 8192
"""Of its table of 49,152 rows: those of the ids that the probe has."""


def folder_of(folder: Path) -> Path:
    """Where the config lies."""
    return min(folder.rglob("config.json"), key=lambda path: len(path.parts)).parent


def minilm(folder: Path) -> nn.Module:
    return tf.AutoModel.from_pretrained(folder_of(folder), dtype=torch.float32)  # type: ignore[no-any-return]


def minilm_inputs(folder: Path) -> Inputs:
    tokenizer = tf.AutoTokenizer.from_pretrained(folder_of(folder))
    made = tokenizer(list(SENTENCES), padding=True, return_tensors="np")
    return {name: np.asarray(array) for name, array in made.items()}


def albert(folder: Path) -> nn.Module:
    return tf.AutoModel.from_pretrained(folder_of(folder), dtype=torch.float32)  # type: ignore[no-any-return]


def albert_inputs(folder: Path) -> Inputs:
    """A reaction, cut into atoms and bonds as its own tokenizer does."""
    names = (folder_of(folder) / "vocab.txt").read_text("utf-8").split("\n")
    numbers = {name: n for n, name in enumerate(names)}
    atoms = ["[CLS]", *"CC(=O)OCC.N", ">>", *"CC(=O)N.OCC", "[SEP]"]
    ids = [numbers.get(atom, numbers["[UNK]"]) for atom in atoms]
    return {"input_ids": np.array([ids, ids[::-1]]), "attention_mask": np.ones((2, len(ids)), int)}


def smollm2(folder: Path) -> nn.Module:
    """The first layers, on the first rows of the table."""
    file = next(folder.rglob("*.gguf"))
    given = {"gguf_file": file.name, "dtype": torch.float32}
    whole: Any = tf.AutoModelForCausalLM.from_pretrained(file.parent, **given)
    whole.resize_token_embeddings(ROWS_OF_TABLE)
    whole.model.layers = whole.model.layers[:LAYERS]
    whole.config.num_hidden_layers = LAYERS
    whole.config.layer_types = None
    return whole  # type: ignore[no-any-return]


def smollm2_inputs(_: Path) -> Inputs:
    ids = np.random.default_rng(0).integers(20, ROWS_OF_TABLE, (2, 16))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


HEAVY = (  # the variable domain of trastuzumab's heavy chain
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
    "SRWGGDGFYAMDYWGQGTLVTVSS"
)
AMINO = "ACDEFGHIKLMNPQRSTVWY"


def load_antiberty(folder: Path) -> nn.Module:
    inside = Path(folder) / "antiberty/trained_models/AntiBERTy_md_smooth"
    config = tf.BertConfig.from_json_file(inside / "config.json")
    state = read(inside / "pytorch_model.bin")
    heads = ("cls.species", "cls.chain", "cls.graft", "bert.pooler", "bert.embeddings.position_ids")
    kept = {key: value for key, value in state.items() if not key.startswith(heads)}
    return fill(tf.BertForMaskedLM(config), kept, ("position_ids",))


def probe_antiberty() -> dict[str, np.ndarray]:
    """[CLS], the sequence with one residue masked (a C that nearly every antibody has), [SEP]."""
    tokens = [2, *(5 + AMINO.index(letter) for letter in HEAVY[:40]), 3]
    masked = [[*tokens[:n], 4, *tokens[n + 1 :]] for n in (22, 30)]
    return {"input_ids": np.array(masked), "attention_mask": np.ones((2, len(tokens)), np.int64)}


def load_sapiens(folder: Path) -> nn.Module:
    state = read(Path(folder) / "sapiens/models/v1/checkpoint_vh.pt")["model"]
    config = tf.RobertaConfig(
        vocab_size=25, hidden_size=128, num_hidden_layers=4, num_attention_heads=8,
        intermediate_size=256, max_position_embeddings=146, type_vocab_size=1, layer_norm_eps=1e-5,
    )  # fmt: skip
    names = {
        "decoder.sentence_encoder.embed_tokens": "roberta.embeddings.word_embeddings",
        "decoder.sentence_encoder.embed_positions": "roberta.embeddings.position_embeddings",
        "decoder.sentence_encoder.emb_layer_norm": "roberta.embeddings.LayerNorm",
        "decoder.sentence_encoder.layers": "roberta.encoder.layer",
        "self_attn.k_proj": "attention.self.key",
        "self_attn.v_proj": "attention.self.value",
        "self_attn.q_proj": "attention.self.query",
        "self_attn.out_proj": "attention.output.dense",
        "self_attn_layer_norm": "attention.output.LayerNorm",
        "fc1": "intermediate.dense",
        "fc2": "output.dense",
        "final_layer_norm": "output.LayerNorm",
        "decoder.lm_head": "lm_head",
    }
    found = {}
    for key, value in state.items():
        name = key
        for old, new in names.items():
            name = name.replace(old, new)
        found[name] = value
    found["lm_head.decoder.weight"] = found.pop("lm_head.weight")
    found["lm_head.decoder.bias"] = found["lm_head.bias"]
    found["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, 128)
    return fill(tf.RobertaForMaskedLM(config), found, ("position_ids", "token_type_ids"))


def probe_sapiens() -> dict[str, np.ndarray]:
    """<s>, the sequence with one residue masked, </s>."""
    tokens = [0, *(4 + AMINO.index(letter) for letter in HEAVY[:40]), 2]
    masked = [[*tokens[:n], 24, *tokens[n + 1 :]] for n in (22, 30)]
    return {"input_ids": np.array(masked), "attention_mask": np.ones((2, len(tokens)), np.int64)}


def load_sre_embedding(folder: Path) -> nn.Module:
    inside = Path(folder) / "sre_embedding_model/model_weights"
    config = tf.BertConfig.from_json_file(inside / "config.json")
    return fill(tf.BertModel(config), load_file(inside / "model.safetensors"), ("position_ids",))


def probe_sre_embedding() -> dict[str, np.ndarray]:
    """'the database connection pool is exhausted', 'the cat sat on the mat'."""
    rows = [
        [101, 1996, 7809, 4434, 4770, 2003, 9069, 102],
        [101, 1996, 4937, 2938, 2006, 1996, 13523, 102],
    ]
    return {"input_ids": np.array(rows), "attention_mask": np.ones((2, 8), np.int64)}


class LemmaTurk(nn.Module):
    def __init__(self, letters: int, width: int = 256) -> None:
        super().__init__()
        self.transformer = nn.Transformer(width, 8, 3, 3, 512, batch_first=True)
        self.generator = nn.Linear(width, letters)
        self.src_tok_emb = nn.ModuleDict({"embedding": nn.Embedding(letters, width)})
        self.trg_tok_emb = nn.ModuleDict({"embedding": nn.Embedding(letters, width)})
        self.positional_encoding = nn.Module()
        self.positional_encoding.register_buffer("pe", torch.zeros(1, 5000, width))

    def embed(self, table: nn.ModuleDict, tokens: Tensor) -> Tensor:
        return table["embedding"](tokens) * 16.0 + self.positional_encoding.pe[:, : tokens.shape[1]]

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        ahead = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        found = self.transformer(
            self.embed(self.src_tok_emb, source),
            self.embed(self.trg_tok_emb, target),
            tgt_mask=ahead.to(target.device),
        )
        return self.generator(found)


def load_lemmaturk(folder: Path) -> nn.Module:
    inside = Path(folder) / "lemmaturk/weights"
    letters = json.loads((inside / "vocab.json").read_text())
    return fill(LemmaTurk(len(letters)), read(inside / "best_transformer.pth"))


def probe_lemmaturk() -> dict[str, np.ndarray]:
    """'kitaplardan' (from the books) and <EOS>; <SOS> and 'kitap', its lemma."""
    letters = {letter: 33 + i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
    source = [*(letters[letter] for letter in "kitaplardan"), 3]
    target = [2, *(letters[letter] for letter in "kitap")]
    return {"source": np.array([source]), "target": np.array([target])}
