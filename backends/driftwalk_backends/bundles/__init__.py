"""`driftwalk extract`: one layer in a folder that is read where driftwalk is not.

It holds plain numpy archives, JSON, an ONNX graph and Python that calls torch.

    bundle            the folder: both layers, inputs, outputs, and `replay.py` to run them
    layer_code        a layer of a torch model as plain Python
    layer_graph       a layer of an ONNX graph as a graph of its own
    candidate_graph   the graph a candidate runs, and what its tensors held
    replay.py.txt     the script, as it is copied into the folder
"""
