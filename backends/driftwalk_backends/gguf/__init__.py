"""All that knows GGUF files, and llama.cpp, which runs them.

header     what a file says of itself, read without any trust in it
types      how the numbers of a tensor are stored
steps      how far apart the numbers of a block are
source     the file as a torch model: its weights, made plain numbers
in_torch   the backend that runs a file's weights in torch
naming     what GGUF, llama.cpp and transformers call the same thing
products   what llama.cpp makes of the inputs of products
attention  what it makes of keys and values in half precision
declared   the model that a file declares, with all that
library    llama.cpp by its C interface
llamacpp   the backend that has llama.cpp run a file
"""
