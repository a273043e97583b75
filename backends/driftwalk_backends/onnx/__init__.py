"""All that knows ONNX graphs and ONNX Runtime. Four backends share one name, `onnxruntime`; `kinds`
says which one a spec means:

    runtime         a torch model, exported by driftwalk
    int8            the same export, its matrices in eight bits
    file            `file=`, `exporter=optimum`: a graph that others made, beside the torch model
    pairs/          the graph is the model: run as written, optimised, or against another graph

What they have in common

    backend         options, offers, what each says of itself
    sessions        provider, optimisation level and threads: the sessions of a backend

Making a graph of a torch model

    export          torch.export with the hooks inside, so that states are outputs
    export_cache    exports that are made once, in memory and on the disk
    optimum         optimum's exporter
    layer_times     ONNX Runtime's profile of an export, folded into layers

Reading a graph that others made

    reading         from a file that is hostile until proven otherwise
    graph           nodes in topological order, and who depends on whom
    values          inputs and outputs: names, types, shapes, and casting to them
    scopes          the modules that nodes say they come from
    structure       narrow places, and the blocks that repeat between them
    parts           the graphs of one model: one, or an encoder's and a decoder's

Running it beside the torch model

    feeds           every way in which the model's probe fits the graph's inputs
    outputs         which of its outputs are the model's, and so which feed is meant
    runs            the graphs one after the other, with any tensors as outputs
    finding/        which of its tensors are the model's states
    quantised       what a graph in eight bits may honestly compute

Elsewhere: `matching` (which tensor holds the expected numbers), `faults.graph` (faults in an
export), `bundles` (one layer cut out of a graph).
"""
