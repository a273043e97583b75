"""Which class of transformers a checkpoint is loaded as."""

from __future__ import annotations

from typing import Any

_TASKS = (
    *("CausalLM", "Seq2SeqLM", "SpeechSeq2Seq", "MaskedLM", "SequenceClassification"),
    *("TokenClassification", "QuestionAnswering", "ImageClassification"),
)
_AUTO_CLASSES = (*(f"AutoModelFor{task}" for task in _TASKS), "AutoModel")


def class_for(config: Any, trust_remote_code: bool = False) -> Any:
    """The class the checkpoint was saved from, so that its head is kept; else an Auto class."""
    import transformers

    if not (trust_remote_code and getattr(config, "auto_map", None)):
        for name in config.architectures or ():
            kind = getattr(transformers, name, None)
            if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
                return kind
    for name in _AUTO_CLASSES:
        auto = getattr(transformers, name)
        if name in (getattr(config, "auto_map", None) or {}) or type(config) in auto._model_mapping:
            return auto
    return transformers.AutoModel
