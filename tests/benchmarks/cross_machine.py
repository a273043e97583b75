"""A trace recorded on one machine, held against the same model on this one.

PYTHONPATH=harness:backends:reports python3 tests/benchmarks/cross_machine.py
PYTHONPATH=harness:backends:reports python3 tests/benchmarks/cross_machine.py SPEC NAME FOLDER

tests/data/traces/ has a small GPT-2's traces and signatures, gpt2-NAME.trace and
gpt2-NAME.signature.json, recorded on aarch64 and on an H200. Here the same model is run again (on
the CPU; with CUDA in fp32 and fp16 as well) and compared with all of them. Its weights are not
drawn by torch, whose numbers depend on the machine, but counted out: the same everywhere. Prints
rows of the table in docs/trace-format.md. With a spec, a name and a folder it records two files.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers as tf

import driftwalk
from driftwalk.signatures.make import COUNT, weights

FOLDER = Path(__file__).resolve().parents[1] / "data" / "traces"
PROBE = {
    "input_ids": np.arange(2 * 12).reshape(2, 12) * 7 % 64,
    "attention_mask": (np.arange(12) < np.array([[12], [9]])).astype(np.int64),
}
L2 = "l2:1e-5"


def model() -> tuple[torch.nn.Module, str]:
    """A GPT-2 of three layers with weights that no machine rounds, and their hash."""
    config = tf.GPT2Config(
        vocab_size=64,
        n_positions=32,
        n_embd=32,
        n_layer=3,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    made = tf.GPT2LMHeadModel(config).eval()
    digest, at = hashlib.sha256(), 0
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            rows = -(-parameter.numel() // COUNT)
            drawn = weights(at, at + rows, 0).reshape(-1)[: parameter.numel()]
            gain = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
            values = (gain + drawn / 16).astype(np.float32).reshape(tuple(parameter.shape))
            parameter.copy_(torch.from_numpy(values))
            digest.update(name.encode() + values.tobytes())
            at += rows
    return made, digest.hexdigest()


def recorded(spec: str) -> driftwalk.Trace:
    """This machine's trace, known by its weights alone: other versions are to be compared too."""
    made, digest = model()
    trace = driftwalk.record(made, spec, PROBE)
    return replace(trace, model={"label": "tiny GPT-2", "fingerprint": digest})


def files(name: str, folder: Path = FOLDER) -> tuple[Path, Path]:
    """A trace and its signature, recorded on the machine of that name."""
    return folder / f"gpt2-{name}.trace", folder / f"gpt2-{name}.signature.json"


def known() -> list[str]:
    """The machines of which there is a trace."""
    return sorted(p.name[len("gpt2-") : -len(".trace")] for p in FOLDER.glob("gpt2-*.trace"))


def record(spec: str, name: str, folder: Path) -> None:
    trace = recorded(spec)
    # Of the system only what is said of any machine of its kind.
    kind = f"{platform.system()}-{platform.machine()}"
    trace = replace(trace, environment={**trace.environment, "platform": kind})
    trace_file, signature_file = files(name, folder)
    trace.save(trace_file)
    driftwalk.Signature.of(trace).save(signature_file)


def row(spec: str, name: str) -> str:
    trace_file, signature_file = files(name)
    here = recorded(spec)
    whole = driftwalk.compare(driftwalk.Trace.load(trace_file), here, "dtype")
    signature = driftwalk.Signature.load(signature_file)
    signed = driftwalk.compare(signature, here, "dtype")
    by_l2 = driftwalk.compare(signature, here, L2)
    closest = max(layer.tolerance.needed for layer in whole.layers if layer.tolerance)
    exact = sum(layer.bounds.exact for layer in signed.layers if layer.bounds)
    told = [note for note in whole.notes if note.startswith("Recorded on different")]
    items = told[0].partition(": ")[2].rstrip(".").split("; ") if told else []
    difference = "; ".join(item for item in items if not item.startswith(("platform ", "cores ")))
    return (
        f"| {name} | `{spec}` | {whole.verdict}, {100 * closest:.0f} % of the allowance | "
        f"{exact} of {len(signed.layers)} points | {signed.verdict} | {by_l2.verdict} | "
        f"{difference or 'none'} |\n"
    )


def main() -> None:
    if len(sys.argv) == 4:
        record(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
        return
    specs = ["torch"]
    if torch.cuda.is_available():
        specs += ["torch:cuda:fp32", "torch:cuda:fp16"]
    write = sys.stdout.write
    write("| recorded on | here | against the trace | bit-equal | signature, dtype | ")
    write(f"signature, {L2} | recorded there and here |\n{'| --- ' * 7}|\n")
    for name in known():
        for spec in specs:
            write(row(spec, name))


if __name__ == "__main__":
    main()
