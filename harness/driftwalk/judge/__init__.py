"""The judgement: from numbers to a verdict, and to the layer that caused it.

walk.py                hold each candidate state against the reference's, in order
calibrate.py           how much honest noise is: errors against the truth, and the yardstick's
calibration_cache.py   what was measured once is kept
witness.py             has truth and yardstick run, and is asked about blame
replay.py              run blocks on given states
blame.py               introduced, or inherited? The layer that made the error
exact.py               whole numbers and booleans: equal, or drift
infinities.py          outputs that are infinite on purpose
drill.py               the same inside that layer, module by module
gate.py                one verdict of all
"""
