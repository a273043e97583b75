"""All that knows ONNX graphs and ONNX Runtime. Four backends share one name, `onnxruntime`; `kinds`
says which one a spec means:

    runtime         a torch model, exported by driftwalk; the same export in eight bits
    file            `file=`, `exporter=optimum`: a graph that others made, beside the torch model
    pairs/          the graph is the model: run as written, optimised, or against another graph
    wide/           a graph in float64: the truth of those pairs

What they have in common

    backend         options, offers, what each says of itself; the sessions of a backend
    session_config  `config=`: entries of a session that change numbers
    optimisers      graph transformers by name, and which of them changed a graph
    switching       what can be turned off, each as an option of the spec: `driftwalk bisect`

Making a graph of a torch model

    exposed         the model as a function that gives its states, too
    exporters       what an exporter is, and our own
    transformers_exporter  transformers' own exporter, and the inputs that it adds
    export_options  which exporters a spec asks for
    time_limit      an end to an export that hangs
    left_behind     what an exporter changed is put back
    exported        an export in its folder, and which of its outputs is what
    export          exports are made once, kept for reuse, and believed only where nothing changed
    decoder_export  the same of a model that decodes: the graph takes and gives what is kept

Reading a graph that others made

    reading         from a file that is hostile until proven otherwise
    graph           nodes in topological order, who depends on whom; inputs, outputs, weights
    stored          what a tensor of a graph holds, wherever it is kept
    shapes          how large its tensors will be
    sessions        a session for a question that is asked once
    structure       a graph's points: by modules that nodes name, narrow places, repeated blocks

Decoding step by step

    past            what is kept from one step to the next, as inputs and outputs of a graph
    stepping        graphs with a past, called as a torch module that keeps a cache is
    decoding        what a backend has that decodes so
    decoder_files   which graphs of a file or a folder begin, and which go on

Running it beside the torch model

    parts           the graphs of one model (one, or an encoder's and a decoder's), and their runs
    feeds           every way in which the model's probe fits the graph's inputs, and which is meant
    finding         which of its tensors are the model's states
    picks           which tensor a state may be: an output, a scope, or its numbers
    quantised       what a graph declares of its weights
    islands         half precision with parts in float32: the dtype of each point
    declared_graph  a graph that rounds between its products, as it declares itself
    unfused         operations on whole numbers, written out as what they stand for
    unrounded       the same graph with nothing rounded: is it the model?
    saturation      whether products of eight bits are exact on this CPU

Elsewhere: `matching` (which tensor holds the expected numbers), `faults.graph` (faults in an
export), `bundles` (one layer cut out of a graph).
"""
