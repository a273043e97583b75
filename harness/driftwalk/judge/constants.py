"""The register of the judgement: every tuned number that a verdict or an allowance depends on."""

from __future__ import annotations

from typing import Final

# judge/honest.py

YARDSTICKS: Final = 4.0
"""How many times the yardstick's own error an honest side may be off, where nobody says
otherwise."""

FINE_ROUNDOFF: Final = 2.0**-24
"""Roundoff of the coarsest format that counts as fine: up to here the order of summation makes most
of the noise, beyond it the rounding of results does."""

COARSE_MIDDLE: Final = 1.5
"""Times the yardstick's error that the median token may be off in a coarse format, of very many
tokens: rounding is most of the noise there, whoever computes, and averages out."""

COARSE_FEW_TOKENS: Final = 2.5
"""What is added to COARSE_MIDDLE for n tokens, times 1 / sqrt(n); the sum is at most YARDSTICKS."""

ROOM_PER_NORM: Final = {
    "l2": 1.0,
    "max_abs": 2.0,
    "channel": 1.5,
    "spectral": 3.0,
    "spread": 1.0,
    "peak": 2.0,
    "token_middle": 1.0,
    "token_upper": 1.5,
    "token_worst": 2.0,
    "channel_middle": 1.0,
}
"""Times the limit, for each norm, that another implementation gets. It differs from PyTorch on a
CPU most in the systematic patterns of its approximations, then in its extremes, least in the
middle. Chosen so that clean pairs stay below three quarters of it: docs/calibration.md."""

ROOM_OF_A_COPY: Final = 0.5
"""Times the limit, in every norm, for a candidate that computes most layers bit by bit as the
reference does: where it does not, two honest results are at most two yardsticks apart."""

ROOM_OF_FEW_LAYERS: Final = 1.0
"""Times the limit, in every norm, for a candidate that differs from the reference in few layers,
and says in what: another attention computes the rest bit by bit alike, and is no copy."""

FLOOR_ROUNDOFFS: Final = 2.0
"""Roundoffs that every element may be off where the yardstick is exact, as lookups and copies
are."""

MANY_TOKENS: Final = 0.05
"""Share of the tokens above which a jump is the layer's own and not one token that tipped over
honestly (another expert, a tie)."""

GUESS_TOKENS: Final = 4
"""Number of tokens that a guess of the noise counts as: the noise of a channel over few tokens is
mixed with so many of the median channel's, and the extremes of few tokens get so much more room."""

NARROW_TOKEN: Final = 8
"""Numbers in a token below which its own noise is a guess, too: a pooled image has one number a
line, and a line of almost equal numbers is rounded as if it were one."""

CORRELATION_TOKENS: Final = 512
"""Number of tokens sampled to estimate how strongly rounding errors within one token are
correlated."""

MOST_LUCK: Final = 8.0
"""Largest factor of extra room for the extremes of narrow states."""

THIRD_RUN_APART: Final = 1.5
"""Times the distance of two honest runs that a third one may be away from them, at its worst
token."""

UPPER_TAIL_TOKENS: Final = 20
"""The upper tail is what one token in this many exceeds."""

MOST_NOISE_GAIN: Final = 16.0
"""Largest factor between a yardstick's noise and that of a run with roundoffs: sums round many
times."""

ROUNDED_RMS: Final = 0.4
"""RMS error of rounding to nearest, in roundoffs of the number that is rounded: the least noise of
a state in a coarse format. In a fine one it is FLOOR_ROUNDOFFS, that of a long sum: a single huge
element, the sum of terms of one sign, is off by several roundoffs in one implementation and by none
in another."""

SEQUENTIAL_SUM: Final = 1 / 32
"""Times the width, in roundoffs: error of a norm that adds squares one by one where one of them
outweighs the rest, a sixteenth of the bound. Kernels that add in pairs have next to nothing of it,
and where an element is all of its token, nothing else is rounded."""


# judge/calibrate.py

TIE_OF_SIDES: Final = 1.5
"""Quotient of two sides' errors below which both count as equally close to the truth."""


# judge/attention.py

MOST_ATTENTION_SUM: Final = 1.01
"""Largest sum of the weights of one query that still looks like attention: one, and what half
precision makes of it."""


# judge/conditioning.py

ROUNDOFFS_CEILING: Final = 100.0
"""Times the travelled roundoffs above which a token's error in a fine format is not honest
arithmetic, if it exceeds LEAST_DIGITS_LOST as well: the truth computes something else."""

LEAST_DIGITS_LOST: Final = 2.0**10
"""Roundoffs of the state above which an error is large enough to be compared with
ROUNDOFFS_CEILING."""

COARSE_ROUNDOFFS_CEILING: Final = 8.0
"""Times the travelled roundoffs that the middle token may be off in a coarse format. An honest
yardstick is off by 0.3 to 2.0 times; a token that becomes an attention sink by up to 15 times, so
that there is more room where tokens are few."""

VOID_SHARE: Final = 1 / 3
"""Share of a state's size: an honest error as large as this leaves no digit to compare."""


# judge/drill.py

NAMED_SHARE: Final = 0.5
"""Share of the squared error above which one channel or token is named."""

NAMED_TIMES_EVEN: Final = 5.0
"""Times its even share of the error that a channel or token must hold to be named."""

CLEARLY_WRONG: Final = 64.0
"""Times the yardstick's own error above which a module computes something else, however little of
that is left at the end of its layer; it is named before one that is off by less."""


# judge/exact.py

MOST_CHANCE_ENTRIES: Final = 1 / 2
"""Share of an output's entries that may be chance; with more, too little is left to compare."""


# judge/habit.py

UNUSUAL_SIZES: Final = {
    "channel": 3.0,
    "spectral": 2.5,
    "spread": 1.75,
    "peak": 4.5,
    "token_middle": 1.5,
    "token_upper": 2.0,
    "token_worst": 2.5,
    "channel_middle": 1.5,
}
"""Times the median size over all probes, for each norm, above which a probe is judged whole. Chosen
so that few clean probes are (docs/probes.md)."""

UNUSUAL_BEYOND: Final = 1.1
"""Times the largest size seen so far above which a probe is judged whole."""

REMEMBERED_PROBES: Final = 64
"""Number of probes, the latest ones, that say which sizes are usual."""


# judge/in_float.py

MOVED_NUMBERS: Final = 4.0
"""Times the distance between the model and one whose stored numbers are moved by chance, that a
graph which rounds may be away from the model in float: both were rounded by chance once."""


# judge/outputs.py

OUTPUT_STATES: Final = 4
"""Number of states, the last ones first, in which an output is looked for."""


# judge/parts.py

PART_LIMIT: Final = 0.01
"""Relative error that a part may have from what its whole numbers give, in a fine format: a few of
them may tip over. In a coarse one, where more do, it is a multiple of the same part of the
yardstick."""

PART_TIPPED: Final = 2.0
"""Times the yardstick's error that a part may be off where many numbers may tip over in it. A graph
that rounds all that lies between products rounds twenty times in a layer of which only the end is
seen, and what tips over early tips over more. The yardstick's roundings are nudged by 32 times what
honest arithmetic differs by, so that it has more of it: honest runs had up to 1.6 times as much as
one of it had, in the layer with most, and 1.2 times in the same part of any layer."""

PART_MIDDLE: Final = 5e-5
"""Relative error that a part's median token may have where few tokens have a number that tips over:
only arithmetic is left. Sums in float32 are off by 1e-6, sums in float16 by 3e-4."""

PART_MIDDLE_ROUNDOFFS: Final = 16
"""Roundoffs of a coarse format that bound what a part's median token may be off."""

PART_TOKENS: Final = 8
"""Number of tokens below which no median token is judged: one that tips over may be the median."""


# judge/routers.py

ROUTER_LAYERS: Final = 3
"""Number of layers, the first suspects, that are searched for the router that is wrong."""

SURE_CHOICE: Final = 2.0
"""Times what noise explains: a choice that is farther off is drift, even if all states are
within."""


# judge/shared.py

SHARED_INPUT_LEFT: Final = 0.5
"""Share of a layer's introduced error that may be left where a shared input explains it."""

SHARED_INPUT_GUILT: Final = 0.01
"""Share of the cause's excess below which a layer is not guilty of the same shared input."""


# judge/sides.py

TIE_EXAMINED: Final = 0.5
"""Share of the allowance above which a side is examined for ties."""

TIE_EXPLAINS: Final = 0.75
"""Share of what a side needs plainly, below which it must come where tokens at a tie may tip over,
for one of them to have tipped over."""


# judge/ties.py

TIE_REACH: Final = 8.0
"""Times their typical noise: numbers nearer to one another than this are a tie."""

MOST_TIED_TOKENS: Final = 1 / 2
"""Share of the tokens at a tie in one layer above which the median token counts as one of them."""


# graphs/by_truth.py

TIE_OF_GRAPHS: Final = 1.05
"""Quotient of two graphs' errors up to which both count as equally close to the truth."""


# graphs/own_doing.py

NODE_NOISES: Final = 4.0
"""Times the measured noise that a node may introduce before it counts as wrong."""

HALF_WAY: Final = 2.0**-8
"""How near the middle between two steps, in steps, a number may be rounded either way."""

HALF_WAY_SOFTMAX: Final = 2.0**-3
"""The same as HALF_WAY for a softmax, which runtimes compute in whole numbers throughout."""

ONE_OFF_SHARE: Final = 1e-3
"""Share of whole numbers that may be one step off where their boundary is not known."""

FINE_NODE_ROUNDOFFS: Final = 8
"""Roundoffs by which each element is moved to measure the noise in float32 and finer formats: the
order of a long sum costs several."""

COARSE_NODE_ROUNDOFFS: Final = 2
"""The same in half precision, where sums are formed in float32 and rounded once."""


# graphs/rows.py

BOUND_ROUNDING: Final = 1 + 1e-6
"""Factor on the bound of a tensor that introduced nothing, which meets it exactly: its own rounding
is no excess."""


# tolerance.py

DTYPE_ALLOWANCES: Final = {
    "fp64": (1e-7, 1e-7),
    "fp32": (3e-5, 1.3e-6),
    "tf32": (3e-2, 1e-3),
    "fp16": (3e-2, 1e-3),
    "bf16": (2.4e-1, 1.6e-2),
    "fp8": (1.0, 1.25e-1),
}
"""Absolute and relative tolerance of whole models for each dtype: the first in units of the state's
RMS, the second as in torch.testing. torch.testing's own absolute tolerance is made for single
operations; these leave honest 12-layer models about half of the room unused (docs/cuda.md has the
measurements)."""


# effects.py

EFFECT_TIMES: Final = 2.0
"""Factor by which a predicted effect must be too large or too small to disagree strongly with the
measured one."""

EFFECT_OFF: Final = 0.5
"""Share of the measured effect, as a vector, by which a prediction must be off to disagree
strongly."""


# signatures/bounds.py

SIGNATURE_CHANCE: Final = 1e-6
"""Chance that a bound made of a signature does not hold, for each state and either side of it."""
