"""Two graphs of one model (ONNX files), and the nodes of one.

verify.py      two graphs against each other, node by node
nodes.py       the nodes of a candidate, below its points
rows.py        how a pair of nodes is judged, and what of it is only inherited
own_doing.py   what a node introduced, and what honest arithmetic explains of it
"""
