"""The register of the reduction: every tuned number by which a drift is cut down to its cause."""

from __future__ import annotations

from typing import Final

# reducing/changes.py

LEAST_SIZE: Final = 16
"""Smallest stored whole number that may be a size; smaller ones may be the numbers of axes."""

KEPT_DIGITS: Final = (1, 2, 3)
"""Significant digits that values are rounded to, the fewest first."""


# reducing/cuts.py

MOST_SIZES: Final = 16
"""Number of whole numbers up to which a tensor holds sizes, axes or places, which a runtime wants
to know early."""

FEW_NUMBERS: Final = 4
"""Number of values up to which a tensor says nothing of a model: an epsilon, a scale."""


# reducing/graph_runs.py

GRAPH_SUMS: Final = 3.0
"""Times its roundoffs alone that an operation of a graph which adds up many numbers is off by."""


# reducing/graphs.py

STANDS_FOR_SHARE: Final = 0.2
"""Share of the drift at the guilty tensor that an earlier one must cause to stand for it."""

SUPPOSED_SHARE: Final = 0.7
"""The same as STANDS_FOR_SHARE for a tensor whose right numbers are only supposed."""

HINT_OF_DRIFT: Final = 1.2
"""Times what is honest at the end of a region above which a drift is looked for inside it."""

AS_WRONG_SHARE: Final = 0.3
"""Share of the guilty tensor's relative error that one of several wrong places must have."""

ROWS_APART: Final = 1e-9
"""Relative difference up to which rows that are left do not depend on those that are gone."""


# reducing/mending.py

MOST_WRONG_NODES: Final = 6
"""Number of nodes behind a wrong tensor, up to right ones, that may be what an operation of torch
does."""

LEAST_EFFECT: Final = 1e-3
"""Share of the error at the guilty tensor by which one of several wrong places must move it."""

RIGHT_TIMES: Final = 30.0
"""Times as wrong as a right tensor that the guilty one is at least."""


# reducing/program_runs.py

PROGRAM_SUMS: Final = 3.0
"""Times its roundoffs alone that an operation of torch which adds up many numbers is off by."""


# reducing/right.py

PARTNER_SUMS: Final = 8
"""Number of random sums by which tensors near to another one are found."""

PARTNERS_COMPARED: Final = 12
"""Number of tensors, the nearest by those sums, that are compared as a whole."""

PARTNER_STEPS: Final = 3
"""Number of operations of the torch model that a few nodes may stand for."""

PARTNERS_PROPOSED: Final = 6
"""Number of tensors that are proposed for a few nodes, the nearest first."""

CONSTANT_STEPS: Final = 12
"""Number of operations back to whatever the numbers that are stored in a graph were made of."""

PARTNER_FARTHEST: Final = 0.5
"""Relative distance below which a tensor of the torch model may be the partner of one in a
graph."""

PARTNER_MARGIN: Final = 3.0
"""Times as far as the partner that the next tensor must be."""

PARTNER_RIVAL: Final = 0.1
"""Share of a tensor's distance above which another one is a rival of the partner and not its
copy."""


# reducing/showing.py

DRIFT_LIMIT: Final = 4.0
"""Times what is honest: less than that is no drift (DESIGN.md, section 3)."""

SAME_DRIFT_COSINE: Final = 0.9
"""Least cosine of two errors at one place that are the same drift."""

SAME_DRIFT_SIZES: Final = 2.0
"""Largest quotient of the sizes of two errors at one place that are the same drift."""

SAME_DRIFT_RELATIVE: Final = 4.0
"""Largest quotient of their relative sizes where the values themselves differ."""

SAME_DRIFT_OVERALL: Final = 10.0
"""Largest quotient of relative sizes after any number of such steps."""

MARKED_SHARE: Final = 0.1
"""Share of the largest error in float64 from which on a number is marked."""

SIGNS_APART: Final = 0.3
"""Difference of the shares of positive errors up to which two errors are alike where values
differ."""

SIGNED_SHARE: Final = 0.1
"""Share of the largest error from which on an error counts among the signs."""


# reducing/states.py

SAME_NUMBERS: Final = 1e-4
"""Relative difference that nodes may have with the model's own numbers."""

MOST_CHOICES: Final = 64
"""Number of sets of the model's own numbers that are tried."""

SAME_CONSTANT: Final = 1e-6
"""Relative difference of two constants that are one: graphs have them in float32."""

LEAST_AWAY: Final = 0.1
"""Share of the numbers' distance from each other by which numbers in another order are off at
least."""

ALIKE_NUMBERS: Final = 2.0
"""Largest quotient of the largest errors of stored numbers that are one fault."""


# reducing/writing.py

SCRIPT_SHOWS: Final = 0.1
"""Relative difference up to which the ratio that a script prints is the one that was found."""
