"""Seeded bugs for copies of a model, by which the self-test counts what the gate sees.

Places for a fault are found by the anatomy of a model, never by its name.

    fault      what a fault is, and what its places are looked for in
    weights    faults in numbers: flipped bits, scaled matrices, swapped heads
    code       faults in code: a wrong epsilon, activation, mask or position
    planning   every kind of fault, which of them a model has room for, the faulty copy
    graph      the same faults in the initialisers of an exported graph
    trusted/   lies: faults in what the gate trusts
"""
