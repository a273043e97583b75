"""Numbers of pairs of states: what they are, never whether they are good enough.

metric_list.py   all metrics: what is added up, formulas, how they are written
metrics.py       all numbers of a pair, from sums that may be formed in several ways
fused.py         in one pass of compiled code (../native), for float32 and halves
halves.py        float16 and bfloat16 to float32, and back
reduction.py     on the device where both states live
tokens.py        the error of each token, for heatmaps
ulp.py           distances in units in the last place
spectral.py      the strongest pattern of a state's error
norms.py         norms of that error
fused_norms.py   the same by compiled code
decisions.py     what a difference of logits changes: choices, ranks, KL
embeddings.py    what one of embeddings changes: directions, nearest neighbours
constants.py     every tuned number that changes a measured value
"""
