"""The judgement: from numbers to a verdict, and to the layer that caused it.

walk.py                compare each candidate state with the reference's, in order
outputs.py             what the model's outputs are: choices, or embeddings
sides.py               one side compared with the truth, at its own dtype
honest.py              how wrong honest arithmetic is at a point, and so what is allowed there
honest_table.py        the same of many points, to be kept
calibrate.py           the truth, and that for every point of a model
habit.py               what is usual for a side over many probes, and which probe is not
in_float.py            whether a quantised graph, with nothing rounded, is the model
conditioning.py        whether the truth can be trusted
ties.py                choices that honest arithmetic may tip over, and where the other branch leads
unrounded.py           casts that a runtime leaves out, and what the layer behind may be off for it
calibration_cache.py   what was measured once is kept
cautions.py            what a report says about one candidate alone
witness.py             has truth and yardstick run, and is asked about blame
replay.py              run blocks on given states
blame.py               introduced, or inherited? The layer that made the error
exact.py               whole numbers and booleans: equal, or drift; infinities on purpose
attention.py           what one of two attentions gives beside its result, and another never has
depth.py               what one side lacks; one layer more or fewer: which one that comes down to
shared.py              what all layers are handed: a wrong rotary table is no fault of layer 0
drill.py               the same inside that layer, module by module
accusation.py          whose error it is: candidate, reference, both
gate.py                one verdict of all
constants.py           every tuned number that a verdict or an allowance depends on
"""
