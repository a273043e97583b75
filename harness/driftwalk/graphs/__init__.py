"""Two graphs of one model (ONNX files), and the nodes of one.

verify.py      two graphs against each other, node by node
nodes.py       the nodes of a candidate, below its points
witness.py     the graph in float64 and as written: truth and yardstick
by_truth.py    how far both sides of a pair are from the truth, and may be
rows.py        how a pair of nodes is judged, and what of it is only inherited
weighing.py    what of a walk counts, once what is inherited is excused
own_doing.py   what a node introduced, and what honest arithmetic explains of it
"""
