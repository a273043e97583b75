"""`config=KEY:VALUE`: entries of ONNX Runtime's session configuration that change numbers.

ONNX Runtime takes any key without a word; one that is not listed here is refused.
"""

from __future__ import annotations

from driftwalk.errors import UsageError, nearest
from driftwalk.switches import SEPARATOR, named

INT4_PRODUCTS = "session.qdq_matmulnbits_accuracy_level"
"""What products with int4 weights are computed in: 1 is float32, 4, the default, int8."""
KEYS = (
    INT4_PRODUCTS,
    "session.set_denormal_as_zero",
    "session.disable_prepacking",
    "session.disable_quant_qdq",
    "session.enable_quant_qdq_cleanup",
    "session.qdqisint8allowed",
    "optimization.enable_gelu_approximation",
    "optimization.enable_cast_chain_elimination",
    "mlas.enable_gemm_fastmath_arm64_bfloat16",
)


def read_entries(text: str) -> dict[str, str]:
    """The entries that an option of a spec lists."""
    found: dict[str, str] = {}
    for item in named(text):
        key, colon, value = (part.strip() for part in item.partition(":"))
        if not colon or not value:
            raise UsageError(f"config={item}: write KEY:VALUE, such as {INT4_PRODUCTS}:1.")
        if key not in KEYS:
            raise UsageError(f"config={item}: no entry that changes numbers. {nearest(key, KEYS)}")
        if key in found:
            raise UsageError(f"config={text}: {key} stands twice.")
        found[key] = value
    return found


def written(entries: dict[str, str]) -> str:
    """Entries as an option of a spec lists them."""
    return SEPARATOR.join(f"{key}:{value}" for key, value in entries.items())
