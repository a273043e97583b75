"""Numbers of pairs of states: what they are, never whether they are good enough.

metric_list.py   all metrics: name, formula, how it is written
metrics.py       all numbers of a pair, from sums that may be formed in several ways
sums.py          what is added up
fused.py         in one pass of compiled code (../native), for float32 and halves
halves.py        float16 and bfloat16 to float32, and back
reduction.py     on the device where both states live
tokens.py        the error of each token, for heatmaps
ulp.py           distances in units in the last place
norms.py         norms of a state's error, the strongest pattern among them
fused_norms.py   their compiled parts
decisions.py     what a difference of logits changes: choices, ranks, KL
"""
