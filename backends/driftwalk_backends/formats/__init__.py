"""Quantised weights: what an artefact declares, and the model that it should then compute.

rounding    how the inputs of products are rounded while a model runs
stored      a weight as it is stored, and whether it is a rounding of the model's own
in_torch    the stored weights of a module that somebody quantised
declared    the model with these weights, and what is said of them
"""
