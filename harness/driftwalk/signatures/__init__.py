"""Signatures: what is kept of a trace when the trace itself is too large to keep.

data.py      what a signature says of each state
weights.py   the seeded random numbers, the same on every machine
make.py      from a trace to its signature
bounds.py    what two signatures say of the difference of what they were made from
file.py      one JSON file
compare.py   a report, whose numbers are bounds
"""

from .data import Signature as Signature
