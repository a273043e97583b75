"""All that knows GGUF files, and llama.cpp, which runs them.

header    what a file says of itself, read without any trust in it
types     how the numbers of a tensor are stored
source    the file as a torch model: its weights, made plain numbers
"""
