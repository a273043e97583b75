"""Finding the model's states in a graph that others made.

Whatever names the graph has or lacks, a state is taken for found only if its numbers prove it, its
scope says so, or the graph repeats just as the model does.

    finder     the search: the model runs along, each block on the state that was just found
    picks      which tensor a state may be: an output, a scope, or its numbers
    doubt      a state that no tensor clearly is: look ahead from all that it may be
    steering   one forward pass of the model, its states chosen while it runs
"""
