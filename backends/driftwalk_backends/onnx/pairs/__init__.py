"""A graph that is itself the model, and another one held against it.

No torch model is known here, so points are tensors of the graph, and there is no truth.

    model       the graph in the place of a torch model
    probe       what it is given: arrays of the user's, or seeded defaults
    runtime     that graph, or another, in ONNX Runtime; states are tensors of the graph
    blocks      the points: blocks, if the graph says or shows which; else every node
    partners    which tensor of one graph is which of the other
    plan        what is compared: pairs of tensors in topological order, some at a time
    sizes       how large tensors will be: what bounds the memory of it
    survivors   which tensors are left once ONNX Runtime has optimised a graph
    replay      the reference's nodes on the candidate's tensors: what each of them introduced
    noise       noise of a few units of roundoff in a graph: how far honest kernels stray
    nodes       the graphs behind a backend for a torch model, walked node by node (`--depth op`)
"""
