"""Sets of probes that are made for a model: what each of them holds.

texts           sentences in several scripts, and code: written for driftwalk
edges           what goes wrong at the edges: lengths, padding, special tokens, the config's limits
values          the same for numbers: pixels, sound, any floats
graphs          edges of what a graph declares that it takes
gradients       inputs that drive a module farther, for the search
suggest         a small set that covers most of the model
sets            a set by its name; what the model does not take is left out, with a note
"""
