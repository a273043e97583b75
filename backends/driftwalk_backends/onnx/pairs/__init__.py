"""A graph that is itself the model, and another one compared with it.

No torch model is known here, so points are tensors of the graph, and there is no truth.

    model       the graph in the place of a torch model; what it is given
    runtime     that graph, or another, in ONNX Runtime; the graphs behind a torch model's backend
    partners    which tensor of one graph is which of the other
    plan        what is compared: pairs of tensors in topological order, some at a time
    replay      the reference's nodes on the candidate's tensors: what each of them introduced
"""
