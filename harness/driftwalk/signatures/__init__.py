"""Signatures: what is kept of a trace when the trace itself is too large to keep.

state.py     what a signature says of each state
weights.py   the seeded random numbers, the same on every machine
make.py      from a trace to what is said of its states
bounds.py    what two signatures say of the difference of what they were made from
file.py      one JSON file
data.py      a whole signature: made, saved, loaded
compare.py   a report, whose numbers are bounds
"""

from .data import Signature as Signature
