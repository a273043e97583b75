"""Quantised weights: what an artefact declares, and the model that it should then compute.

rounding      how the inputs of products are rounded while a model runs
rounded       a weight as it is stored, and whether it is a rounding of the model's own
in_torch      the stored weights of a module that somebody quantised
in_libraries  those of bitsandbytes and compressed-tensors
folders       those that saved models pack: GPTQ, AWQ, block-wise fp8
placing       which module a stored weight is of, where the artefact does not say
rescaled      weights that were scaled before they were rounded: AWQ, SmoothQuant
folding       batch normalisation, folded into the layer before it
declared      the model with these weights, and what is said of them
restoring     that model, some of its modules back in float
constants     every tuned number by which stored weights are judged, those of GGUF files too
"""
