"""Backend specs: `name[:device][:dtype][,option=value...]`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk.errors import UsageError
from driftwalk.spec import DTYPE_NAMES, TAKES_TEXT, Spec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch", Spec("torch")),
        ("  torch ", Spec("torch")),
        ("torch:cpu", Spec("torch", "cpu")),
        ("torch:fp16", Spec("torch", "", "fp16")),
        ("torch:cuda:fp16", Spec("torch", "cuda", "fp16")),
        ("torch:cuda:1", Spec("torch", "cuda:1")),
        ("torch:cuda:1:bf16", Spec("torch", "cuda:1", "bf16")),
        ("torch:CUDA:FP16", Spec("torch", "cuda", "fp16")),
        ("torch:cpu:float64", Spec("torch", "cpu", "fp64")),
        ("torch:double", Spec("torch", "", "fp64")),
        ("torch:float", Spec("torch", "", "fp32")),
        ("torch:half", Spec("torch", "", "fp16")),
        ("torch:bfloat16", Spec("torch", "", "bf16")),
        ("emulated:tf32", Spec("emulated", "", "tf32")),
        ("emulated:fp8", Spec("emulated", "", "fp8")),
        ("trace:a,b.trace", Spec("trace", text="a,b.trace")),
        ("trace:a,b.trace,map=m.toml", Spec("trace", options={"map": "m.toml"}, text="a,b.trace")),
        (
            'trace:d,whole="a, b",map=m.toml',
            Spec("trace", options={"whole": "a, b", "map": "m.toml"}, text="d"),
        ),
        ("trace:d,map=a,map=b", Spec("trace", options={"map": "b"}, text="d,map=a")),
        ("command:./p --x,whole=1", Spec("command", text="./p --x,whole=1")),
        ("command:./p --x=1,2", Spec("command", text="./p --x=1,2")),
        (
            'command:./p -m a,map="m,n.toml"',
            Spec("command", "", "", {"map": "m,n.toml"}, "./p -m a"),
        ),
        ("torch,attn=eager", Spec("torch", options={"attn": "eager"})),
        ("torch:cuda:fp32,tf32=on", Spec("torch", "cuda", "fp32", {"tf32": "on"})),
        (
            "onnxruntime, opt = basic ,file=a=b.onnx",
            Spec("onnxruntime", options={"opt": "basic", "file": "a=b.onnx"}),
        ),
        ("onnxruntime,file=", Spec("onnxruntime", options={"file": ""})),
        ("onnxruntime,file=C:\\m.onnx", Spec("onnxruntime", options={"file": "C:\\m.onnx"})),
        (
            'onnxruntime,file="a, b=1:2.onnx",opt=off',
            Spec("onnxruntime", options={"file": "a, b=1:2.onnx", "opt": "off"}),
        ),
        ('x,a="say ""hi"", you"', Spec("x", options={"a": 'say "hi", you'})),
        ('x,a=5" disk', Spec("x", options={"a": '5" disk'})),
    ],
)
def test_specs_are_read(text, expected):
    assert Spec.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no name"),
        (":cuda", "has no name"),
        (",a=b", "has no name"),
        ("torch:", "Cannot read ''"),
        ("torch:cuda:cpu", "Cannot read 'cpu'"),
        ("torch:fp16:cuda", "Cannot read 'cuda'"),
        ("torch:fp16:fp32", "Cannot read 'fp32'"),
        ("torch:1", "Cannot read '1'"),
        ("torch:cuda:1:2", "Cannot read '2'"),
        ("torch:fp16:1", "Cannot read '1'"),
        ("torch:cuda0", "Cannot read 'cuda0'"),
        ("torch:fp17", "Cannot read 'fp17'.*dtypes: fp64, fp32, fp16"),
        ("torch,eager", "Cannot read option 'eager'.*write option=value"),
        ("torch,=eager", "Cannot read option '=eager'"),
        ("torch,", "Cannot read option ''"),
        ("torch,a=1,a=2", "Option 'a' stands twice"),
        ("onnxruntime,file=a,b.onnx", 'Cannot read option .b.onnx.*stands in quotes: file="a,b'),
        ('onnxruntime,file="a,b.onnx', "A quote is opened and not closed"),
    ],
)
def test_what_is_not_a_spec_is_refused_with_the_part_that_is_wrong(text, message):
    with pytest.raises(UsageError, match=message):
        Spec.parse(text)


words = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=6)
names = words.filter(lambda word: word not in TAKES_TEXT)
devices = st.sampled_from(["", "cpu", "cuda", "cuda:0", "cuda:12"])
values = st.text('abc019._/=-," ', max_size=6)


@settings(max_examples=100, deadline=None)
@given(
    spec=st.builds(
        Spec, names, devices, st.sampled_from(["", *DTYPE_NAMES]), st.dictionaries(words, values)
    )
)
def test_a_spec_is_written_as_it_is_read(spec):
    assert Spec.parse(str(spec)) == spec


@settings(max_examples=100, deadline=None)
@given(text=st.text(':,=abcfp16. "', max_size=20))
def test_any_text_is_a_spec_or_a_usage_error(text):
    try:
        spec = Spec.parse(text)
    except UsageError:
        return
    assert Spec.parse(str(spec)) == spec


# -- options ---------------------------------------------------------------------------------------


def test_known_options_are_let_through():
    Spec.parse("torch,attn=eager").allow_options(["attn", "tf32"])


def test_an_unknown_option_is_refused_with_the_nearest_known_one():
    with pytest.raises(UsageError, match=r"'torch' has no option 'atn'. Did you mean 'attn'"):
        Spec.parse("torch,atn=eager").allow_options(["tf32", "attn"])
    with pytest.raises(UsageError, match=r"'torch' has no option 'x'. It takes none"):
        Spec.parse("torch,x=1").allow_options([])


def test_an_option_of_few_words_takes_one_of_them():
    on = Spec.parse("torch,tf32=on")
    assert on.choice("tf32", ("on", "off"), "off") == "on"
    assert Spec.parse("torch").choice("tf32", ("on", "off"), "off") == "off"
    with pytest.raises(UsageError, match="tf32=yes of backend 'torch': expected one of on, off"):
        Spec.parse("torch,tf32=yes").choice("tf32", ("on", "off"), "off")
