"""A graph that is itself the model, and another one compared with it.

No torch model is known here, so points are tensors of the graph; its truth is made in `wide`.

    model       the graph in the place of a torch model
    probe       what it is given: arrays of a user, and made-up ones
    defaults    made-up inputs, for given sizes of open axes
    feeding     sizes that the graph runs with, found by trying
    selecting   inputs that select a branch, and which numbers take which
    runtime     that graph, or another, in ONNX Runtime; the graphs behind a torch model's backend
    partners    which tensor of one graph is which of the other
    plan        what is compared: pairs of tensors in topological order, some at a time
    replay      the reference's nodes on the candidate's tensors: what each of them introduced
"""
