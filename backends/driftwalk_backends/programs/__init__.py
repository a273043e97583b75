"""Exported programs of PyTorch (`torch.export`), as PT2E quantises them: one flat graph.

frames     the graph's operations, grouped by the modules that they were traced in
nested     these groups as modules again, so that layers can be looked at
roundings  operations that round: what they are, and what they do in float
stored     the weights that a program stores rounded, and how inputs are rounded
declared   the program in float, rounded where it says so; and whether it is the model, unrounded
"""
