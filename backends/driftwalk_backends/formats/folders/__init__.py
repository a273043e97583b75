"""Saved models whose weights are packed: GPTQ, AWQ and block-wise fp8, read from safetensors.

declaring   what config.json says of the weights
words       numbers of a few bits out of words of 32
layouts     a linear layer's stored tensors as a rounded weight
loading     the folder as a model of transformers, its weights plain numbers
undeclared  layers that are in float though config.json says that they are packed

The libraries that run such folders need a GPU, or other versions of PyTorch; what the folder
declares is read without them.
"""
