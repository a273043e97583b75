"""Two graphs of one model (ONNX files), and the nodes of one.

verify.py      two graphs against each other, node by node
nodes.py       the nodes of a candidate, below its points
rows.py        how a pair of nodes is judged
replayed.py    a tensor of both sides, and what the reference makes of the candidate's inputs
own_doing.py   what a node introduced, and what honest arithmetic explains of it
inherited.py   rows beyond the table that only pass on honest rounding
"""
