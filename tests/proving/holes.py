"""Wrong answers that were known when this was made, as cases that are always asked."""

from __future__ import annotations

from .case import Case

HONEST = {
    "hidden units of an MLP permuted": ("tiny:bert/hidden-units-permuted/fp32",),
    "heads permuted together": ("tiny:bert/heads-permuted/fp32", "own:gpt/heads-permuted/fp32"),
    "a norm's gain folded into the next weight": ("tiny:llama/norm-gain-folded/fp32",),
    "scales moved between a norm and a product": ("tiny:llama/norm-scale-moved/fp32",),
    "the bias of the keys left out": (
        "tiny:bert/keys-bias-left-out/fp32",
        "real:minilm/keys-bias-left-out/fp32",
    ),
    "the bias of the values moved behind the product": ("tiny:bert/values-bias-moved/fp32",),
    "a sigmoid's output near zero, in ONNX Runtime": (
        "real:crepe/copied-alone/onnx",
        "real:fcpe/copied-alone/onnx",
        "real:face/copied-alone/onnx",
    ),
    "`channels_last`": ("real:crepe/channels-last/fp32", "net:small-resnet/channels-last/fp32"),
    "`compile=inductor`": ("tiny:gpt2/compiled/fp32", "real:crepe/compiled/fp32"),
    "a right port of BERT, module by module": (
        "real:minilm/products-as-convolutions-everywhere/module",
        "real:sapiens/products-as-convolutions-everywhere/module",
    ),
    "ports whose blocks are cut elsewhere": (
        "own:gpt/ports-with-nested-blocks/fp32",
        "own:gpt/ports-with-residual-outside/fp32",
        "own:gpt/ports-cut-elsewhere/fp32",
    ),
    "blocks that hand on two tensors": ("own:gpt/ports-that-hand-the-residual-on/fp32",),
    "a BERT fused and quantised by ONNX Runtime's tools": (
        "real:minilm/graph-fused-and-quantised/fp32",
        "tiny:bert/graph-fused-and-quantised/fp32",
    ),
    "a BERT quantised by them, not fused": ("real:minilm/graph-quantised-by-others/fp32",),
    "the right ONNX graph of an LSTM": (
        "net:lstm/graph-of-others/fp32",
        "real:g2p/graph-of-others/fp32",
    ),
    "products summed in another order in two layers": (
        "tiny:bert/sums-flipped-in-two-blocks/fp32",
        "real:minilm/sums-flipped-in-two-blocks/fp32",
    ),
    "a model trained with fake quantisation": (
        "tiny:bert/trained-for-integers/fp32",
        "real:sapiens/trained-for-integers/fp32",
        "own:gpt/trained-for-integers-and-permuted/fp32",
    ),
}
FAULTS = {
    "erf for tanh GELU, under bf16": (
        "real:minilm/gelu-of-other-kind/bf16",
        "net:mixer/gelu-of-other-kind/bf16",
    ),
    "a norm's epsilon, under bf16": (
        "tiny:llama/eps-of-one-norm/bf16",
        "real:minilm/eps-of-one-norm/bf16",
    ),
    "a query times 0.9, under bf16": (
        "tiny:gpt2/query-scaled/bf16",
        "tiny:bert/query-scaled/bf16",
        "real:minilm/query-scaled/bf16",
    ),
    "what stands behind one bf16 scale in a float32 block": (
        "tiny:llama/fault-behind-a-scale-in-bf16/fp32",
        "tiny:gpt2/fault-behind-a-scale-in-bf16/fp32",
        "real:minilm/fault-behind-a-scale-in-bf16/fp32",
        "real:sapiens/fault-behind-a-scale-in-bf16/fp32",
    ),
    "one block in train mode": (
        "tiny:bert/block-in-train-mode/fp32",
        "real:minilm/block-in-train-mode/fp32",
    ),
    "one BatchNorm in train mode": (
        "net:u-net/batch-norm-in-train-mode/fp32",
        "real:crepe/batch-norm-in-train-mode/fp32",
    ),
    "what differs from call to call": (
        "tiny:gpt2/wrong-at-every-other-call/fp32",
        "tiny:gpt2/right-at-first/fp32",
        "net:lstm/hidden-state-kept/fp32",
    ),
    "hidden states that were asked for": ("tiny:bert/hidden-states-wrong/fp32",),
    "attention weights that were asked for": ("tiny:bert/attention-weights-wrong/fp32",),
    "a cache": ("tiny:llama/cache-wrong/fp32",),
    "a dict whose only output is called loss": (
        "tiny:bert/output-called-loss-wrong/fp32",
        "real:face/output-called-loss-wrong/fp32",
    ),
    "a trace that says it is coarse": (
        "tiny:bert/trace-claims-a-coarse-dtype/fp32",
        "real:minilm/trace-claims-a-coarse-dtype/fp32",
    ),
    "six MLPs zeroed in bf16: flips are told as ties": (
        "real:smollm2/six-layers-zeroed/bf16",
        "tiny:llama/six-layers-zeroed/bf16",
    ),
    "keys and values exchanged: the cause is no weight": (
        "tiny:bert/key-and-value-swapped/fp32",
        "own:gpt/key-and-value-swapped/pair",
        "real:smollm2/key-and-value-swapped/fp32",
    ),
    "harmless weights beside a wrong activation": (
        "tiny:bert/activation-beside-harmless-weights/fp32",
        "real:minilm/activation-beside-harmless-weights/fp32",
        "tiny:roberta/activation-beside-harmless-weights/module",
    ),
    "both sides wrong in different layers": (
        "tiny:bert/both-wrong/fp32",
        "real:minilm/both-wrong/fp32",
    ),
    "the module under dynamic int8": (
        "real:minilm/row-zeroed/int8",
        "real:rxnmapper/table-row-of-another/int8",
        "real:minilm/norm-missing/int8",
        "real:smollm2/query-scaled/int8",
        "tiny:bert/other-activation/int8",
    ),
    "an epsilon that is wrong in every layer": (
        "tiny:bert/eps-everywhere/fp32",
        "real:minilm/eps-everywhere/fp32",
    ),
    "a transform of the head": (
        "tiny:bert/product-outside-the-layers/fp32",
        "tiny:roberta/product-outside-the-layers/fp32",
        "tiny:modernbert/product-outside-the-layers/fp32",
    ),
    "a faulty port that is cut elsewhere": ("own:gpt/faulty-port/fp32",),
}
TWO_ANSWERS = {
    "an int8 module in `verify` and in `generate`": (
        "tiny:llama/copied-alone/int8",
        "tiny:llama/copied-alone/int8-generate",
        "real:smollm2/copied-alone/int8",
        "real:smollm2/copied-alone/int8-generate",
    ),
    "a dynamic int8 graph in `verify` and in `selftest`": (
        "tiny:bert/graph-quantised-by-driftwalk/fp32",
        "tiny:bert/graph-quantised-by-driftwalk/selftest",
        "real:minilm/graph-quantised-by-driftwalk/fp32",
        "real:minilm/graph-quantised-by-driftwalk/selftest",
    ),
}
HOLES = {
    "Honest, and called drift": HONEST,
    "Wrong, and passed or told wrongly": FAULTS,
    "Two answers": TWO_ANSWERS,
}


def cases() -> list[Case]:
    """All of them, in order."""
    listed = (one for some in HOLES.values() for names in some.values() for one in names)
    return [Case.read(f"{name}/0") for name in listed]
