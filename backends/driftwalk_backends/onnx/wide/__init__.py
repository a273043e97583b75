"""A graph in float64: the truth of pairs of graphs.

flat        a graph without functions, and with the branches inlined that a probe takes
widen       its tensors, casts and constants in float64; what stays narrow, and why
rewrites    operations that ONNX Runtime has not in float64, made of ones that it has
truth       that graph on a probe
"""
