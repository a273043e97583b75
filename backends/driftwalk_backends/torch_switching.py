"""What can be turned off when PyTorch runs a model, each as an option of the spec."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from torch import nn

from driftwalk.spec import Spec
from driftwalk.switches import Switch, listed, named

from .half_sums import has_convolution
from .torch_passes import SETTINGS, SUBSYSTEMS, Applied

STAGES = {
    "inductor": "aot_eager_decomp_partition",
    "decompositions": "aot_eager",
    "aot_autograd": "eager",
    "dynamo": "",
}
"""What torch.compile does, from the last to the first; with one off, what is left of it."""
_OPTIONS = {
    "attn": ("attn", "eager"),
    "tf32": ("tf32", "off"),
    "matmul": ("matmul", "highest"),
    "cudnn": ("cudnn", "off"),
    "nondeterminism": ("deterministic", "on"),
    "threads": ("threads", "1"),
}
"""Switches of eager PyTorch: the option of a spec that turns one off, and its value then."""


def eager_switches(spec: Spec, module: nn.Module) -> Iterator[Switch]:
    """Options that change what eager PyTorch computes."""
    config = getattr(module, "config", None)
    attention = spec.options.get("attn") or getattr(config, "_attn_implementation", None)
    if attention not in (None, "eager"):
        yield Switch("attn", f"{attention} in place of eager attention")
    if spec.options.get("tf32") == "on":
        yield Switch("tf32", "TF32 matrix products")
    if spec.options.get("matmul") in ("high", "medium"):
        yield Switch("matmul", f"matrix products of {spec.options['matmul']} precision")
    if spec.device.startswith("cuda"):
        if spec.options.get("cudnn") != "off" and has_convolution(module):
            yield Switch("cudnn", "convolutions by cuDNN")
        if spec.options.get("deterministic") != "on":
            yield Switch("nondeterminism", "algorithms that may differ between runs")
    if spec.options.get("threads") != "1":
        yield Switch("threads", "more than one thread")


def compiler_switches(spec: Spec, seen: Sequence[Applied]) -> Iterator[Switch]:
    """Stages of torch.compile, and what it was seen to apply."""
    stages = list(STAGES)
    known = list(STAGES.values())
    compiler = spec.options.get("compile", "")
    own = stages[known.index(compiler) + 1 :] if compiler in known else stages
    gone = named(spec.options.get("disable", ""))
    if compiler == "inductor":
        there = {one.subsystem for one in seen} - set(gone)
        subsystems = [name for name in SUBSYSTEMS if name in there]
        for place, name in enumerate(subsystems):
            steps = (one for one in seen if one.subsystem == name)
            parts = tuple(one.name for one in steps if one.name not in gone)
            yield Switch(name, SUBSYSTEMS[name], parts, (*subsystems[place + 1 :], *stages))
        for name in (name for name in SETTINGS if name not in gone):
            yield Switch(name, "setting of inductor", needs=(*subsystems, *stages))
    elif compiler not in known:  # of others nothing is known: all of it, or none
        own = ["dynamo"]
    for place, name in enumerate(own):
        left = STAGES[name]
        what = f"stage of torch.compile; without it, compile={left}" if left else "torch.compile"
        yield Switch(name, what, needs=tuple(own[place + 1 :]))


def spec_without(spec: Spec, off: Collection[str]) -> Spec:
    """The spec with these switches turned off."""
    options = dict(spec.options)
    options |= dict(setting for name, setting in _OPTIONS.items() if name in off)
    left_out = named(options.pop("disable", ""))
    left_out += tuple(name for name in off if name not in {*_OPTIONS, *STAGES})
    for stage in [name for name in STAGES if name in off]:
        options["compile"] = STAGES[stage]
    if not options.get("compile", "x"):
        del options["compile"]
    if left_out and options.get("compile") == "inductor":
        options["disable"] = listed(left_out)
    return replace(spec, options=options)
