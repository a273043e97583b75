"""`python tests/meta/api_page.py` writes docs/api.md: every public name, its docstring, an example.

The examples stand here. They are marked to run, so that test_docs runs them on the page.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import driftwalk

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
WIDTH = 100

HEAD = """\
# The Python interface

Made by `python tests/meta/api_page.py` from the docstrings. Every example runs in the tests, on a
model that is built in. What a spec, a point, a probe and a policy may be: [verify.md](verify.md).
"""

VERIFY = 'report = driftwalk.verify("demo:decoder", candidate="torch,attn=eager")\n'
TRACE = 'trace = driftwalk.record("demo:decoder", probe={"input_ids": [[5, 17, 42]]})\n'

EXAMPLES = {
    "verify": VERIFY + "assert report.ok and report.first_divergence is None",
    "verify_all": """\
reports = driftwalk.verify_all("demo:decoder", ["torch,attn=eager", "emulated:bf16"])
assert [report.candidate.dtype for report in reports] == ["fp32", "bf16"]""",
    "Report": VERIFY
    + """\
assert report.verdict == "pass" and report.at_fault is None
assert [layer.point.name for layer in report.layers][-2:] == ["norm", "logits"]
report.save("out")  # result.json, report.html, summary.md, junit.xml, layers.csv""",
    "LayerDrift": VERIFY
    + """\
layer = report.layer("layer.3")
assert layer.ok and layer.metrics.rel_l2 < 1e-5""",
    "load": VERIFY
    + """\
report.save("out", ["json"])
assert driftwalk.load("out/result.json").verdict == report.verdict""",
    "Tolerance": """\
loose = {"layer.*": driftwalk.Tolerance(atol=1e-3, rtol=1e-2), "*": driftwalk.Tolerance(1e-2)}
assert driftwalk.verify("demo:decoder", candidate="torch,attn=eager", policy=loose).ok""",
    "backend": """\
with driftwalk.backend("torch:cpu:fp64", "demo:decoder") as backend:
    assert backend.trace([[5, 17, 42]])["layer.0"].dtype == "float64\"""",
    "Backend": """\
with driftwalk.backend("torch", "demo:decoder") as backend:
    outputs = backend.run([[5, 17, 42]])  # plain: nothing is instrumented
assert list(outputs) == ["logits"]""",
    "BackendInfo": TRACE + 'assert (trace.backend.device, trace.backend.dtype) == ("cpu", "fp32")',
    "Probe": """\
probe = driftwalk.Probe({"input_ids": [[5, 17, 42]], "attention_mask": [[1, 1, 0]]})
probe.save("probe.safetensors")
assert driftwalk.Probe.load("probe.safetensors").sha256 == probe.sha256""",
    "Point": 'assert driftwalk.Point("layer.3", module="transformer.h.3").name == "layer.3"',
    "State": TRACE + 'assert trace.state("layer.3").shape == (1, 3, 64)',
    "Trace": TRACE
    + """\
trace.save("golden.trace")
assert driftwalk.Trace.load("golden.trace").names == trace.names""",
    "record": TRACE + 'assert trace.names[:2] == ("embed", "layer.0")',
    "compare": TRACE
    + "assert driftwalk.compare(trace, trace, policy=driftwalk.Tolerance(atol=0.0)).ok",
    "Signature": TRACE
    + """\
driftwalk.Signature.of(trace).save("golden.signature.json")  # kilobytes, fit for git
assert driftwalk.Signature.load("golden.signature.json").names == trace.names""",
    "generate": """\
found = driftwalk.generate("demo:decoder", "torch,attn=eager", prompt=[[5, 17, 42]], steps=4)
assert found.ok and found.cause is None and len(found.steps) == 5  # step 0 is the prompt
found.save("out")  # generation.json, generation.html, generation.md, junit.xml""",
    "weights": """\
found = driftwalk.weights("demo:decoder", "demo:decoder")
assert not found.differing""",
    "extract": """\
report = driftwalk.verify("demo:decoder", candidate="torch:cpu:bf16", blame=True)
made = driftwalk.extract(report, "layer.2", "bundle")  # python bundle/replay.py
assert made.introduced.l2 > 0""",
    "bisect": """\
found = driftwalk.bisect("demo:decoder", "torch,attn=sdpa")
print(found.outcome, found.switches, found.spec)  # what to turn off, and the spec that does""",
    "repair": """\
int8 = "onnxruntime,quantize=dynamic-int8"
found = driftwalk.repair("demo:decoder", int8, goal="kl=0.0001", by="block")
print(found.chosen, found.lists)  # what to leave in float, in the quantiser's own words""",
    "reduce": """\
found = driftwalk.reduce("demo:decoder", "onnxruntime", "repro", minutes=5)
assert not found.found  # nothing drifts; else: repro/repro.py, repro/repro.onnx""",
    "hwcheck": """\
found = driftwalk.hwcheck(checks=["repeat"], dtypes=["fp32"])
print(found.verdict)""",
    "contrast": """\
found = driftwalk.contrast("demo:decoder", "Paris is old.", "Paris is new.")
assert found.layers[0].point.name == "embed\"""",
    "geometry": """\
found = driftwalk.geometry("demo:encoder", "cities-incomplete", candidate="emulated:bf16")
assert 0 < found.least_overlap.agreement.knn_overlap <= 1""",
    "visibility": """\
found = driftwalk.visibility("demo:decoder", "It is done.", layer=3, position=4, directions=1)
found.save("out")  # visibility.json, visibility.html""",
    "DriftwalkError": """\
try:
    driftwalk.verify("demo:decoder", candidate="torhc")
except driftwalk.DriftwalkError as error:
    assert error.exit_code == 2  # the message names the nearest backend
else:
    raise AssertionError("there is no such backend")""",
}


def page() -> str:
    """All of docs/api.md."""
    names = [*EXAMPLES, *(name for name in driftwalk.__all__ if name not in EXAMPLES)]
    return "\n".join([HEAD, *(section(name) for name in names)])


def section(name: str) -> str:
    """One name: its signature, its docstring, what a class has, and an example."""
    thing = getattr(driftwalk, name)
    parts = [f"## {name}"]
    if called := signature(name, thing):
        parts.append(f"```text\n{called}\n```")
    parts.append(inspect.getdoc(thing) or "")
    if inspect.isclass(thing) and (rows := list(members(thing))):
        table = [f"| `{member}` | {kind} | {said} |" for member, kind, said in rows]
        parts.append("\n".join(["| member | type | |", "|---|---|---|", *table]))
    parts.append(f"<!-- runs -->\n```python\nimport driftwalk\n\n{EXAMPLES[name]}\n```")
    return "\n\n".join(parts) + "\n"


def signature(name: str, thing: Any) -> str:
    """How it is called; most classes are not made by users, and shown by their members alone."""
    if inspect.isclass(thing) and name not in ("Point", "Probe", "Tolerance"):
        return ""
    found = inspect.signature(thing)
    shown, keywords = [], False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            shown.append("*")
            keywords = True
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        text = f"{stars}{parameter.name}: {plain(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            made = repr(parameter.default)
            text += f" = {'...' if made == '<factory>' else made}"
        shown.append(text)
    gives = name if inspect.isclass(thing) else plain(found.return_annotation)
    line = f"driftwalk.{name}({', '.join(shown)}) -> {gives}"
    if len(line) <= WIDTH:
        return line
    inner = "".join(f"    {text},\n" for text in shown)
    return f"driftwalk.{name}(\n{inner}) -> {gives}"


def plain(annotation: Any) -> str:
    """An annotation without what only the JSON writer reads: `Later[...]`, `Sparse[...]`."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"^(?:Later|Sparse)\[(.*)\]$", r"\1", text)
    return re.sub(r"^Annotated\[(.*), \w+\(.*\)\]$", r"\1", text)


def members(cls: type) -> Iterator[tuple[str, str, str]]:
    """Public fields, properties and methods: the name, its type, and what is said of it."""
    seen = set()
    for base in cls.__mro__:
        if not base.__module__.startswith("driftwalk"):
            continue
        said, fields = field_docs(base), inspect.get_annotations(base)
        for name, value in {**fields, **vars(base)}.items():
            if name.startswith("_") or name.isupper() or name in seen:
                continue
            seen.add(name)
            function = getattr(value, "fget", getattr(value, "func", value))
            function = getattr(function, "__func__", function)
            if isinstance(function, FunctionType):
                kind = plain(function.__annotations__.get("return", ""))
                text = inspect.getdoc(function) or ""
            else:
                kind, text = plain(fields.get(name, type(value).__name__)), said.get(name, "")
            is_method = isinstance(value, FunctionType | classmethod | staticmethod)
            first = " ".join(text.split("\n\n")[0].split())
            cells = (f"`{kind}`" if kind else "", first)
            yield f"{name}()" if is_method else name, *(cell.replace("|", "\\|") for cell in cells)


def field_docs(cls: type) -> dict[str, str]:
    """The string below a field, by the field's name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
