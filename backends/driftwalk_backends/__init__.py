"""All that knows torch, transformers, ONNX Runtime and the rest; a runtime is one file, one class.

    torch_eager, emulated, truth     PyTorch as it is, in formats it lacks, in float64
    onnx/runtime, openvino_runtime   exported graphs; `onnx/` has a map of its own
    pte/backend                      programs of ExecuTorch; so has `pte/`
    programs/backend                 programs of torch.export; so has `programs/`
    recorded, command                states from a file, or from any program

Below them: `sources`, `probes` and `default_probe/` (models and their inputs), `points`, `hooks`
and `anatomy` (where the states of a torch model are), `on_device/` (sums where tensors live),
`widening` and `precision` (formats), `constants` (every tuned number of these). Beside them:
`faults/` (for the self-test), `bundles/` (one layer in a folder), `hardware/` (checks of a
machine), `ray_cluster` (jobs of a fleet).
"""
