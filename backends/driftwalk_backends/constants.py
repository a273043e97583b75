"""The register of the backends: each tuned number by which points, truths and choices are found."""

from __future__ import annotations

from typing import Final

# activations.py

SAME_ACTIVATION: Final = 1e-9
"""Absolute difference up to which a function computes the same as an activation that is known."""


# chains.py

HEAD_STACK_SHARE: Final = 0.1
"""Share of the largest stack's parameters below which a stack is part of a head."""


# choices.py

DISPLACED_SCORES: Final = 3.0
"""Times what a row of scores was moved: one that a choice before it moved may tip over in turn."""


# half_sums.py

SUMS_IN_HALF: Final = 2.0
"""Times the error of sums in float32 above which a processor adds up in half precision."""

HALF_SUMS_TRIED: Final = (((2, 3, 32, 32), (32, 3, 4, 4), 4), ((1, 64, 16, 16), (64, 64, 3, 3), 1))
"""Convolutions that are tried for that, as shapes of input and weight, and a stride: as patches of
an image are embedded, and as a ResNet's blocks are."""


# jitter.py

WHOLE_NUMBER_SIZE: Final = 1 / 4
"""Share of one over the roundoff below which a whole number is exact, and gets no noise."""


# matching.py

MATCH_MARGIN: Final = 4.0
"""Times as far away as the best match that the second best must be, or the match is ambiguous."""

MATCH_SAME: Final = 2.0**-22
"""Relative distance of two tensors that hold the same numbers, give or take a rounding."""

MATCH_SAMPLE: Final = 4096
"""Number of elements of each tensor that are compared at first."""

MATCH_CLOSEST: Final = 24
"""Number of tensors, the closest by that sample, that are compared as a whole."""

MATCH_AXES: Final = 4
"""Number of axes longer than one up to which transposed forms of a tensor are tried."""

MATCH_LIMITS: Final = {
    "fp64": 1e-3,
    "fp32": 1e-3,
    "tf32": 1e-2,
    "fp16": 1e-2,
    "bf16": 5e-2,
    "fp8": 2e-1,
}
"""Relative distance that a port's state may have from the one expected, by the coarser dtype of
both."""

MATCH_LIMIT_OTHERWISE: Final = 1e-3
"""The same as MATCH_LIMITS where neither dtype is in them."""


# saturation.py

SMOOTH_BEND: Final = 3.0
"""Distance from zero from which on a smooth activation is as good as flat or straight: GELU is
within 0.5 % of one of them."""

SEEN_TWICE: Final = 0.9
"""Share of a unit's largest input that another probe must reach for that to be seen twice."""


# shared.py

DROPPED_SCORE: Final = -9999.0
"""Largest number that is added to a score that must not count."""


# step_masks.py

SEES_ITSELF: Final = 0.5
"""Share of a step's tokens that must see themselves; else the mask was meant the other way
round."""


# tensors.py

CONTAINER_DEPTH: Final = 3
"""How deep containers are searched for tensors; what lies deeper is a cache, not a state."""


# tree.py

WRAPPED_SHARE: Final = 0.9
"""Share of a module's weights in one part from which on the module only wraps that part."""

STAGE_SHARE: Final = 2 / 3
"""Share of a module's weights in blocks that are alike from which on the module is a stage of
them."""

LARGE_PART_SHARE: Final = 0.5
"""Share of all weights above which a part is no unit."""

CLOSED_SEQUENCE_SHARE: Final = 0.05
"""Share of all weights below which a sequence is left closed."""

UNIT_LAYERS: Final = 6
"""Number of single layers up to which a sequence of them is one unit: a convolution and its norm
are best seen as one, since what runs a model may fold them into one."""


# watching.py

LATEST_TENSORS: Final = 16
"""Number of tensors, the latest ones, among which the origin of a tensor is looked for."""


# widening.py

MASK_SIZE: Final = 2.0**26
"""Size from which on a number is a mask that is added, such as -1e9; a model's own numbers are far
smaller."""


# onnx/feeds.py

FEED_SAME_MASK: Final = 1e-6
"""Relative distance from the model's outputs up to which the first way to feed a graph needs no
margin, where only positions are counted in several ways."""

FEED_SAME: Final = 1e-7
"""Relative distance from the model's outputs that two ways to feed a graph are compared with at
least."""

FEED_AGREES: Final = 1e-5
"""Relative distance up to which the second best way to feed a graph gives the model's outputs as
well."""


# onnx/finding.py

POINTS_AHEAD: Final = 3
"""Number of points ahead that a doubtful match is followed."""

MATCH_RIVALS: Final = 8
"""Number of tensors that are tried in the place of a doubtful state: of those closest to what the
model makes, and again of those at the graph's narrow places, where a state that is far off still
lies."""

LEAST_MATCH_ERROR: Final = 1e-9
"""Relative error below which a match counts as no better."""


# onnx/picks.py

BLOCK_ROUNDING: Final = {"fp64": 1e-3, "fp32": 1e-3, "fp16": 1e-2, "bf16": 5e-2}
"""Relative distance, in units of the state, that rounding in a format may put between a block's
result and the tensor of a graph that is it."""

BLOCK_ROUNDING_QUANTISED: Final = 0.1
"""The same as BLOCK_ROUNDING for a graph whose matrix products are of whole numbers."""

CLOSEST_OUTPUTS: Final = 1 << 10
"""Number of tensors, the closest by a sample, that are compared as a whole to find an output."""


# onnx/shapes.py

SHAPE_ELEMENTS: Final = 64
"""Number of elements up to which a stored tensor may be a shape; larger ones are weights."""


# onnx/structure.py

STREAM_STARTS: Final = 40
"""Number of tensors near the top of a graph that are tried as the start of the residual stream."""


# onnx/unrounded.py

FLOAT32_SLACK: Final = 2.0**-22
"""Relative error that a number with more digits than float32 may have."""

FEW_BITS: Final = 8
"""Number of bits above which stored numbers are given FLOAT32_SLACK."""

UNROUNDED_SAMPLE: Final = 64
"""Number of values that tell most parameters from a stored tensor."""

UNROUNDED_APART: Final = 0.5
"""Relative distance up to which a parameter may be what a stored tensor was rounded from: numbers
that are cut off may be off by anything."""


# onnx/pairs/plan.py

PAIRED_BY_VALUE: Final = 1e-3
"""Relative distance up to which tensors of two graphs are taken for the same by value."""


# onnx/pairs/probe.py

BRANCH_WAYS: Final = 4
"""Number of ways through the branches of a graph that are tried."""


# onnx/pairs/replay.py

NOISE_SEEDS: Final = (1, 2)
"""Seeds of the noisy runs of a node, one draw each, whose largest difference is its noise."""
