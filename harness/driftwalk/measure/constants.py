"""The register of the measures: every tuned number that changes a measured value."""

from __future__ import annotations

from typing import Final

# measure/norms.py

UPPER_TAIL_QUANTILE: Final = 0.95
"""The quantile of the tokens' errors that stands for their upper tail."""

TIPPED_ONE_IN: Final = 8
"""One number in this many of a channel is left out of its error, the largest ones: they may have
tipped over to the next step by chance."""

MOST_TOKEN_WEIGHT: Final = 1e3
"""Largest weight of a token whose honest noise is far below that of the others, in units of
theirs."""

WIDEST_PATTERN: Final = 1 << 13
"""Width of a state above which its largest singular value is not measured: logits are too wide."""


# measure/spectral.py

SKETCH_PASSES: Final = 3
"""Number of products with a matrix and its transpose that estimate its largest singular value."""

SKETCH_VECTORS: Final = 8
"""Number of random columns in that estimate; the compiled products take exactly as many."""


# measure/decisions.py

RANKED_LOGITS: Final = 5
"""Number of largest logits whose overlap between two sides is measured."""


# measure/embeddings.py

FEWEST_NEIGHBOURS: Final = 3
"""Number of rows below which the order of neighbours among embeddings is not measured."""
