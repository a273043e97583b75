"""Studies of hidden states: does this drift matter?

contrast.py     how far two inputs are apart: a unit for drift
geometry.py     where labelled sentences lie at each layer; clouds.py has the formulas
visibility.py   what a state sees of earlier states, and which later ones see it
effects.py      what `verify` adds to a report when asked
inputs.py       pairs of inputs, and labelled sentences
results.py      the outcomes, frozen
"""
