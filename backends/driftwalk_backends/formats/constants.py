"""The register of stored numbers: every tuned number by which what a backend stored is judged."""

from __future__ import annotations

from typing import Final

# formats/in_torch.py

INPUT_ROUNDING_ROWS: Final = 8
"""Number of random rows by which it is seen how a kernel rounds its inputs."""


# formats/placing.py

PLACED_COSINE: Final = 0.9
"""Cosine with the weight that it was rounded from, below which a rounded weight is another
weight."""


# formats/rescaled.py

NORM_CHANGED: Final = 2.0**-7
"""Relative difference from which on a norm's weight is another one; rounding to bf16 changes
less."""

BLOCK_UNCHANGED: Final = 0.02
"""Relative (L2) difference below which a rescaled block gives the same."""

FACTOR_BELIEVED: Final = 0.7
"""Share of the difference that another factor may leave where it is believed."""

FACTOR_SURE: Final = 4.0
"""Standard errors of a fitted factor that a number may be off by."""

LEAST_FACTOR: Final = 1e-6
"""Smallest fitted factor of a row that is used."""

FACTOR_ERROR: Final = 1e-6
"""Relative error that every fitted factor has at least."""


# formats/rounded.py

ROUNDED_TIE: Final = 1e-3
"""Distance from half-way, in steps, up to which a weight may be rounded either way."""

ROUNDED_OWN_WAY: Final = 2.0
"""RMS distance, in steps, below which numbers may have been rounded in another way than to the
nearest."""

ZEROS_SHIFTED: Final = 0.5
"""Median distance to one side, in steps, above which the zeros of all blocks are wrong."""

ROUNDED_EXPLAINED: Final = 0.7
"""Share of the difference of all numbers below which something else than a way of rounding explains
it."""

GROUPED_ROWS: Final = 64
"""Number of rows that show which group a column is of."""

SAME_BLOCK_SHARE: Final = 0.99
"""Share of a block's numbers that must fit for only its step or its zero to be wrong."""

REFITTED_NEAR: Final = 0.7
"""Distance from its weight, in steps, up to which a number fits where the step was told from the
numbers."""

ROUNDED_COSINE: Final = 0.9
"""Cosine with the weights that they were rounded from, below which numbers are another weight's."""


# formats/rounding.py

TIPPING_NOISE: Final = 2.0**-15
"""Relative noise in every product of the yardstick that makes some of its roundings tip over.

Another honest implementation differs by about 2**-20, by which one number in ten thousand tips:
none or a few in a product, and what comes of it grows from layer to layer. A yardstick by whose
luck none does would allow nothing; what this hides of the whole, the parts show (judge/parts.py).
"""

HALF_WAY_PARTS: Final = 2.0**12
"""Parts of a step: a number that is nearer to half-way than one of them is half-way."""


# gguf/declared.py

GGUF_STEPS_OFF: Final = 0.51
"""Steps that a stored number may be off: as far as rounding to the nearest one, with a step in half
precision, may be."""

GGUF_BLOCK_SLACK: Final = 2.0**-10
"""Share of a block's largest number that a stored number may be off beside that: step and minimum
are rounded to half precision afterwards."""

GGUF_PLAIN_SLACK: Final = 1.01
"""Times its roundoff that a plain stored number may be off."""


# gguf/products.py

GGUF_HALF_SUM_NOISE: Final = 0.212 * 2.0**-10
"""Standard deviation of one rounding to half precision, relative to the number that is rounded."""


# programs/declared.py

PROGRAM_APART: Final = 2.0**-20
"""Relative difference above which a program computes something else in float64; its constants,
which are float32, make less."""

PROGRAM_BIAS_TIE: Final = 1e-3
"""Distance beyond half a step, in steps, that a bias rounded to whole numbers may be off."""
