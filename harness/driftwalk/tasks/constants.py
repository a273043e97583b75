"""The register of the tasks: each tuned number that a task's verdict or a named cause rests on."""

from __future__ import annotations

from typing import Final

# tasks/bench/result.py

THROTTLED: Final = 1.15
"""Quotient of the medians of a run's second half and its first above which throttling is
suspected."""


# tasks/bench/run.py

BUSY_LOAD: Final = 0.5
"""Other work per core, by the load average, above which timings are called doubtful."""


# tasks/bench/timing_stats.py

TIMING_MARGIN: Final = 0.05
"""Relative difference of two timings below which neither is called slower."""

TIMING_CONFIDENCE: Final = 0.999
"""Confidence of the interval of a ratio of timings."""

FEWEST_TIMED_PAIRS: Final = 8
"""Number of pairs of timings below which an interval of TIMING_CONFIDENCE cannot be had."""

TIMING_RESAMPLES: Final = 4000
"""Number of bootstrap samples that the interval of a ratio of timings is made of."""

NOISY_SPREAD: Final = 0.10
"""Interquartile range, as a share of the median, above which timings are called noisy."""

PERCENTILE_SAMPLES: Final = {"p90": 20, "p95": 40}
"""Number of samples that a percentile needs, so that at least two lie beyond it."""


# tasks/bisect/repeats.py

REPEATS_CONFIDENCE: Final = 0.95
"""Confidence that no answer of a bisection was luck, where nobody says otherwise."""

REPEATS_AT_FIRST: Final = 2
"""Number of further runs with all switches on that show whether runs of one setting disagree."""

REPEATS_AT_LAST: Final = 3
"""Number of runs that confirm a cure."""

REPEATS_IF_TOGETHER: Final = 8
"""Number of further bad runs with all switches on that must confirm that several do harm only
together."""

RUNS_FOR_RATE: Final = 20
"""Number of runs with all switches on from which the share of bad runs is estimated."""

MOST_REPEATS: Final = 400
"""Largest number of runs of one setting, however rarely runs are bad."""

SPARE_QUESTIONS: Final = 6
"""Number of questions beyond those of two halvings that a bisection is expected to ask; the
confidence of each answer is shared among all."""


# tasks/bundles/extraction.py

SAME_INTRODUCED: Final = 0.01
"""Relative difference from the report's introduced error up to which a replayed one is the same."""


# tasks/fleet/jobs.py

SAME_CLOCK: Final = 100.0
"""Clocks of two nodes that differ by less than this are the same, in MHz."""


# tasks/generation/cells.py

LIKE_ANOTHER_ROW: Final = 0.05
"""Share of a row's error: a row that is nearer than this to another one has that row's numbers."""


# tasks/generation/paths.py

TWO_PATHS_APART: Final = 2.0
"""Times the allowance that two runs may be apart: each may be as far from the truth as is
allowed."""


# tasks/hardware/checks.py

LEAST_HOT_RUNS: Final = 3
"""Number of runs of each kind under load, however little time there is: of two that differ nobody
knows which one is wrong."""


# tasks/probes/mutation.py

RESIZED_SHARE: Final = 0.4
"""Share of runs whose mutants have another length than the probe that they are made of."""

REPLACED_TOKENS: Final = (0.02, 0.1, 0.5)
"""Shares of a probe's tokens of which one is drawn, to be replaced by random ones."""

SCALED_INPUTS: Final = (0.1, 0.5, 1.5, 2.0, 4.0)
"""Factors of which one is drawn, to scale a float input."""

NOISED_INPUTS: Final = 0.3
"""Noise that is added to a float input, in units of its standard deviation."""

SPIKED_ONE_IN: Final = 100
"""One number in this many of a float input gets a spike."""

SPIKES: Final = (1.0, 3.0)
"""Times the largest number of an input that a spike is high; one of these is drawn."""


# tasks/probes/run.py

SMALL_SET: Final = 16
"""Number of probes up to which a set is judged whole."""

WORST_WHOLE: Final = 1
"""Number of the worst screened probes of a set that are always judged whole."""

PROBES_A_WORST: Final = 256
"""One more of the worst probes is judged whole for each of this many probes that ran."""

MOST_WORST_WHOLE: Final = 10
"""Largest number of the worst screened probes that are judged whole."""


# tasks/probes/screening.py

SCREENED_USE: Final = 0.75
"""Share of an allowance above which a screened probe is judged whole."""

LEARNED_PROBES: Final = 2
"""Number of probes that are judged whole before one is screened."""


# tasks/probes/search.py

FARTHER_TIMES: Final = 1.02
"""Times the largest number seen at a module that a mutant must reach there to be kept."""

UPWARD_TIMES: Final = 1.0005
"""The same as FARTHER_TIMES at the module that the search drives farther: some units are near their
most for any input, and climb by small steps."""

UNSCREENED_SHARE: Final = 0.2
"""Share of runs in which a mutant is judged whatever a quick look says of it."""

UPHILL_SHARE: Final = 0.5
"""Share of runs whose mutants are made by a gradient."""

FARTHEST_PARENT_SHARE: Final = 0.75
"""Share of those whose parent is the probe that drives the module farthest."""

PROMISING_SHARE: Final = 0.5
"""Share of the needed difference that the sides must show at a quick look for a smaller form to be
judged."""

KEPT_USE: Final = 0.95
"""Share of its use of the allowance that a smaller form of a probe without drift must keep."""


# tasks/probes/weighing.py

UPHILL_STEPS: Final = (0.01, 0.05, 0.2)
"""Lengths of which one is drawn for a step uphill, as a share of the largest value in the set."""

WORST_GOAL_SHARE: Final = 0.25
"""Share of runs that drive the module farther which uses most of an allowance; the others drive an
activation."""


# tasks/reduce/run.py

REDUCED_POINTS: Final = 4
"""Number of points that drift of which one is reduced: the root cause, or where a part of it
shows."""

WHOLE_CAUSE_SHARE: Final = 0.2
"""Share of a drift that a place must cause for nothing else to be said of it."""


# tasks/reduce/search.py

CAUSE_SHARE: Final = 0.7
"""Share of a drift that a place must cause to be the one that is reduced."""

RATIO_LEFT: Final = 0.1
"""Share of the first ratio to the allowance that must be left at the end: a drift that fades is
another one."""

SHORT_AXIS: Final = 64
"""Length of an axis from which on it is cut further only where RATIO_LEFT_OF_SHORT is left."""

RATIO_LEFT_OF_SHORT: Final = 0.5
"""Share of the ratio that must be left when a short axis is cut further."""

RATIO_FADES: Final = 0.7
"""Share of the ratio that must be left for each value left of an axis: the error of a sum grows
with its length, and fades as the axis is cut."""

ODD_AXIS_SIZES: Final = (64, 63, 61, 60, 56, 50, 48, 40, 33)
"""Lengths that an axis is also cut to where halving ends above SHORT_AXIS: some drifts come with
some lengths alone, those of fast Fourier transforms for example."""


# tasks/selftest/run.py

NO_EFFECT: Final = 64 * 2.0**-53
"""Share of a state's size, a few roundoffs of float64, below which a seeded fault has changed
nothing."""


# tasks/studies/contrast.py

CONTRAST_ROUNDOFFS: Final = 1024
"""Roundoffs by which a mixture of experts may differ before the first differing token: its matrices
are as tall as the tokens that chose an expert are many, and so round otherwise. One layer 768 wide
was seen to need about 40, and layers add up."""


# tasks/studies/visibility.py

VISIBILITY_DIRECTIONS: Final = 2
"""Least number of random directions for each estimated norm: of one alone the error cannot be
told."""


# tasks/weights/cause.py

WEIGHTS_COMPARED_WHOLE: Final = 1 << 26
"""Entries of a model up to which all its weights are compared, and not only those of the root
cause."""

SAME_WEIGHT_ROUNDOFFS: Final = 8.0
"""Roundoffs that two numbers may be apart and still be the same number."""

SOUND_TWIN_TIMES: Final = 4.0
"""Times the difference of its like in a sound layer up to which a weight is not accused."""

SOUND_LAYERS: Final = 2
"""Number of sound layers whose weights are compared with those of the root cause."""


# tasks/weights/compare.py

FACTOR_ROUNDOFFS: Final = 8
"""Roundoffs within which the factors, or the offsets, between two weights are one number."""

FACTOR_ENTRIES: Final = 3
"""Number of entries below which no common factor or offset is told of a weight."""


# tasks/weights/order.py

PERMUTATION_FACTORINGS: Final = 4096
"""Number of factorings of an axis that are tried before a permutation is called no simple one."""


# tasks/weights/pairing.py

PAIRING_SAMPLE: Final = 512
"""Number of entries by which weights are told apart."""

PAIRING_MARGIN: Final = 4.0
"""Times as far as the nearest weight that the next one must be, and one that agrees in nothing,
too."""

PAIRING_TRIES: Final = 4_000_000
"""Number of pairs of one shape up to which the nearest weight is looked for."""
