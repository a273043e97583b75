"""Lies told to the gate: faults in what it trusts, not in the candidate alone.

Each is told through a door that is there anyway: a model whose copies are wrong, a reference that
is handed over, a module with dtypes of its own, a cache folder. Nothing in the judge knows of it.

    lie          what a lie is, what it is made from, and the fault that goes with it
    witnesses    reference, truth, yardstick or cache are not of this model
    disguises    masks, dtypes or outputs of a model are not what they look like
    planning     every kind of lie, and which of them a model has room for
"""
