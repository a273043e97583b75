"""Lies told to the gate: faults in what it trusts, not in the candidate alone.

Each is told through a door that is there anyway: a model whose copies are wrong, a reference that
is handed over, a module with dtypes of its own, a cache folder. Nothing in the judge knows of it.

    lie          what a lie is, what it is made from, and the fault that goes with it
    references   the reference is wrong, and the candidate may be right
    witnesses    the truth computes something else; the yardstick is coarser than its name
    stale        stored for an earlier version of the model, under the key in use
    masks        masks that are read the other way round, or added to scores
    dtypes       modules that compute in other dtypes than meets the eye
    heads        an output beside the main one is wrong
    planning     every kind of lie, and which of them a model has room for
"""
