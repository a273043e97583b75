"""`driftwalk reduce`: the smallest graph, or module, that still shows a drift.

cuts            some nodes of a graph between tensors that are given and one that comes out
changes         cuts that are smaller: shorter axes, rounded values, other weights
axes            which axes of its tensors are one
showing         whether a cut shows a drift, how large, and whether it is the same one
states          a cut that shows it, and what is right there
right           tensors that are right: those of the torch model, or of another graph, in float64
mending         what is right in a region, and what right numbers take away of its error
graphs          what a search asks of a graph: smaller cuts with the same drift
graph_runs      cuts of a graph in ONNX Runtime, and in float64
regions         the part of a graph that makes a guilty point, and whose fault it is there
opening         from a candidate and a guilty point to such a part
writing         the reproduction: `repro.onnx`, `repro.py`, the numbers beside them
programs        operations of a torch module as a graph
program_runs    cuts of those as PyTorch runs them, compiled or not, and in float64
torch_opening   from a candidate that runs a torch module to its operations
torch_writing   the reproduction of those: `repro.py`
constants       every tuned number by which a drift is cut down to its cause
graph_repro.py.txt, torch_repro.py.txt      the scripts, as they are written out
"""
