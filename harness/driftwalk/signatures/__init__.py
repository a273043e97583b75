"""Signatures: what is kept of a trace when the trace itself is too large to keep.

make.py      what a signature says of each state, and how it comes of a trace
bounds.py    what two signatures say of the difference of what they were made from
data.py      a whole signature: made, saved to one JSON file, loaded
compare.py   a report, whose numbers are bounds
"""

from .data import Signature as Signature
