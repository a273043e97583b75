"""What a report says about one candidate alone, from the flags that it declares."""

from __future__ import annotations

from ..adapter import BackendInfo
from ..mixture import FROM_BIAS, OWN

NO_YARDSTICK = (
    "The candidate is quantised in a way that driftwalk cannot repeat, and so without a yardstick: "
    "it was held to what its float dtype allows. See docs/quantised.md."
)

SATURATES = (
    "This CPU multiplies 8-bit numbers inexactly: ONNX Runtime adds two products in 16 bits and "
    "cuts off what does not fit (x86 without VNNI). A drift of the candidate may be just that; "
    "weights of 7 bits always fit (`reduce_range=True` of its quantisers). See docs/onnx.md."
)

HALF_SUMS = (
    "Convolutions of this CPU's own kernels sum in half precision, not in float32: their error is "
    "many times what rounding makes. The allowance is that of such sums."
)

BIAS_SUMS = (
    "The candidate begins the sums of its linear layers and convolutions with the bias, and rounds "
    "after each term: where the bias is large, each term costs a roundoff of it. The allowance is "
    "that of such sums."
)

INT8_INPUTS = (
    "The candidate's graph has products with 4-bit weights (DequantizeLinear, MatMul), which ONNX "
    "Runtime fuses, and computes with inputs rounded to int8, though the graph does not say so: a "
    "drift may be just that. Its option session.qdq_matmulnbits_accuracy_level = 1, or opt=basic, "
    "keeps float32. See docs/quantised.md."
)


def cautions(candidate: BackendInfo, has_own_model: bool) -> tuple[str, ...]:
    """Sentences about a candidate; `has_own_model`: its witness speaks for what it computes."""
    flags = candidate.flags
    said = {
        NO_YARDSTICK: "quantised" in flags and not has_own_model,
        SATURATES: flags.get("int8_products") == "saturate",
        INT8_INPUTS: flags.get("int4_products") == "int8 inputs",
        HALF_SUMS: flags.get("convolutions") == OWN,
        BIAS_SUMS: flags.get("sums") == FROM_BIAS,
        flags.get("export", ""): "export" in flags,
    }
    return tuple(text for text, holds in said.items() if holds)
