"""`driftwalk extract`: one layer in a folder that is read where driftwalk is not.

It holds plain numpy archives, JSON, an ONNX graph and Python that calls torch.

    bundle          the folder: both layers, inputs, outputs, and `replay.py` to run them
    layer_code      a layer of a torch model as plain Python
    layer_graph     a layer of the ONNX graph that a candidate runs as a graph of its own
    replay.py.txt   the script, as it is copied into the folder
    README.md.txt   what the folder says of itself
"""
