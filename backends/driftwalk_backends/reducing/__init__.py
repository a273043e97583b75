"""`driftwalk reduce`: the smallest graph, or module, that still shows a drift.

cuts        some nodes of a graph between tensors that are given and one that comes out
changes     cuts that are smaller: shorter axes, rounded values, other weights
showing     whether a cut shows a drift, how large, and whether it is the same one
right       tensors that are right: those of the torch model, or of another graph, in float64
graphs      what a search asks of a graph: smaller cuts with the same drift
regions     the part of a graph that makes a guilty point, and whose fault it is there
opening     from a candidate and a guilty point to such a part
writing     the reproduction: `repro.onnx`, `repro.py`, the numbers beside them
graph_repro.py.txt      the script, as it is written out
"""
