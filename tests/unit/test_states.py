"""Probes, points, states and traces: fixed, read-only, and told apart by content."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file

from driftwalk.dtypes import FORMATS
from driftwalk.errors import ProbeError
from driftwalk.states import Point, Probe, State, Trace, same_bits
from unit.material import info, trace

IDS = np.arange(6).reshape(2, 3)
dtypes = st.sampled_from(["int64", "int32", "uint8", "bool", "float16", "float32", "float64"])
inputs = st.dictionaries(
    st.text("abc_", min_size=1, max_size=8).filter(lambda n: not n.endswith("attention_mask")),
    dtypes.flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, max_side=3))
    ),
    min_size=1,
    max_size=3,
)


# -- the hash --------------------------------------------------------------------------------------


def sha(**arrays) -> str:
    return Probe(arrays).sha256


def test_the_hash_is_of_the_content_and_stays_what_it_is():
    assert sha(input_ids=IDS) == sha(input_ids=IDS.copy())
    content = b"input_ids|<i8|(2, 3)|" + IDS.tobytes()
    expected = hashlib.sha256(content).hexdigest()
    assert sha(input_ids=IDS) == expected, "a new hash voids every probe and trace on disk"


def test_the_hash_knows_names_dtypes_shapes_and_every_byte():
    other = IDS.copy()
    other[1, 2] += 1
    hashes = [
        sha(input_ids=IDS),
        sha(inputs_ids=IDS),
        sha(input_ids=IDS.astype(np.int32)),
        sha(input_ids=IDS.view(np.uint64)),
        sha(input_ids=IDS.reshape(3, 2)),
        sha(input_ids=IDS.ravel()),
        sha(input_ids=other),
        sha(input_ids=IDS, token_type_ids=IDS),
        sha(x=np.zeros(2, np.float16)),
        sha(x=np.zeros(2, FORMATS["bf16"].dtype)),
        sha(x=-np.zeros(2, np.float16)),
    ]
    assert len(set(hashes)) == len(hashes)


def test_the_hash_does_not_know_the_order_the_layout_or_the_texts():
    one = Probe({"a": IDS, "b": IDS[:, :1]}, texts=("hello",), origin="text")
    two = Probe({"b": IDS[:, :1].astype(">i8"), "a": np.asfortranarray(IDS)})
    assert one.sha256 == two.sha256


# -- the inputs ------------------------------------------------------------------------------------


def test_the_arrays_are_read_only_and_the_probes_own():
    given = IDS.copy()
    made = Probe({"input_ids": given})
    with pytest.raises(ValueError, match="read-only"):
        made.inputs["input_ids"][0, 0] = 9
    with pytest.raises(TypeError, match="item assignment"):
        made.inputs["more"] = IDS
    given[:] = 0
    assert made.inputs["input_ids"].tolist() == IDS.tolist(), "what was hashed stays what it was"
    assert given.flags.writeable, "the caller's array is left alone"


def test_lists_are_taken_and_a_scalar_stays_one():
    made = Probe({"ids": [[1, 2]], "step": np.array(3)})
    assert made.inputs["ids"].shape == (1, 2)
    assert made.inputs["step"].shape == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no inputs at all"),
        ({"input_ids": np.zeros((1, 0))}, r"'input_ids' is empty \(shape \(1, 0\)\)"),
        ({"input_ids": [[1], [1, 2]]}, "Rows of unequal length must be padded"),
        ({"input_ids": np.array(["a"])}, "'input_ids' is not an array of numbers"),
        ({"input_ids": np.array([None])}, "'input_ids' is not an array of numbers"),
        ({"input_ids": np.zeros(1, [("a", "f4")])}, "'input_ids' is not an array of numbers"),
    ],
)
def test_what_cannot_be_run_or_compared_is_refused(given, message):
    with pytest.raises(ProbeError, match=message):
        Probe(given)


def test_a_mask_of_one_unbatched_row_may_have_padding():
    assert Probe({"attention_mask": [1, 1, 0]}).inputs["attention_mask"].tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("shared.rotary.0", True),
        ("decoder.shared.mask", True),
        ("layer.0", False),
        ("layer.3.shared.proj", False),
        ("shared.layer.0", False),
        ("shared.norm", False),
    ],
)
def test_what_layers_share_is_told_by_its_name(name, shared):
    assert Point(name).is_shared is shared


# -- padding ---------------------------------------------------------------------------------------

LEFT, RIGHT = [[0, 0, 1], [1, 1, 1]], [[1, 0, 0], [1, 1, 0]]


@pytest.mark.parametrize("mask", [LEFT, RIGHT], ids=["left", "right"])
@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.float32])
def test_padding_left_or_right_is_not_kept(mask, dtype):
    made = Probe({"input_ids": IDS, "attention_mask": np.array(mask, dtype)})
    found = made.keep("layer.0", (2, 3, 8))
    assert found is not None
    assert found.tolist() == np.array(mask, bool).tolist()


@pytest.mark.parametrize("shape", [(2, 3), (2, 4, 8), (3, 2, 8), (6, 8), ()])
def test_a_state_without_the_masks_positions_is_kept_whole(shape):
    assert Probe({"attention_mask": LEFT}).keep("layer.0", shape) is None


def test_without_padding_or_without_a_mask_all_is_kept():
    assert Probe({"attention_mask": np.ones((2, 3))}).keep("layer.0", (2, 3, 8)) is None
    assert Probe({"input_ids": IDS}).keep("layer.0", (2, 3, 8)) is None


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ("encoder.layer.0", LEFT),
        ("decoder.layer.0", RIGHT),
        ("logits", RIGHT),
        ("encoder.norm", LEFT),
        ("decoder.embed", RIGHT),
    ],
)
def test_each_half_of_an_encoder_decoder_has_its_own_mask(point, expected):
    made = Probe({"attention_mask": LEFT, "decoder_attention_mask": RIGHT})
    found = made.keep(point, (2, 3, 8))
    assert found is not None
    assert found.astype(int).tolist() == expected


def test_the_encoders_mask_is_never_used_for_the_decoder():
    made = Probe({"attention_mask": LEFT, "decoder_input_ids": IDS})
    assert made.keep("decoder.layer.0", (2, 3, 8)) is None
    assert made.keep("logits", (2, 3, 8)) is None
    assert made.keep("encoder.layer.0", (2, 3, 8)) is not None


# -- files -----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(arrays=inputs, texts=st.lists(st.text(max_size=5), max_size=2))
def test_a_probe_comes_back_from_its_file(tmp_path_factory, arrays, texts):
    path = tmp_path_factory.mktemp("probe") / "p.safetensors"
    made = Probe(arrays, "text", tuple(texts), tuple((text, "</s>") for text in texts))
    made.save(path)
    back = Probe.load(path)
    assert back.sha256 == made.sha256
    assert same_bits(dict(back.inputs), dict(made.inputs))
    assert (back.origin, back.texts, back.tokens) == (made.origin, made.texts, made.tokens)


def test_bfloat16_and_big_endian_inputs_come_back(tmp_path):
    made = Probe({"x": np.ones((1, 2), FORMATS["bf16"].dtype), "y": np.arange(3, dtype=">i4")})
    made.save(tmp_path / "p")
    back = Probe.load(tmp_path / "p")
    assert back.sha256 == made.sha256
    assert back.inputs["y"].tolist() == [0, 1, 2]


def test_any_safetensors_file_with_named_inputs_is_a_probe(tmp_path):
    save_file({"pixel_values": np.ones((1, 3, 2, 2), np.float32)}, tmp_path / "image.safetensors")
    found = Probe.load(tmp_path / "image.safetensors")
    assert found.origin == "file image.safetensors"
    assert found.texts == ()


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"{}", b"\xff" * 8, b"not a probe" * 20])
def test_a_corrupt_probe_file_is_a_probe_error(tmp_path, content):
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(ProbeError, match=r"Cannot read a probe from .*one tensor per model input"):
        Probe.load(tmp_path / "p")


def test_a_truncated_probe_file_is_a_probe_error(tmp_path):
    whole = Probe({"input_ids": IDS}).save(tmp_path / "p").read_bytes()
    for end in (4, 20, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:end])
        with pytest.raises(ProbeError, match="Cannot read a probe"):
            Probe.load(tmp_path / "cut")


@pytest.mark.parametrize("notes", ["[]", "{", '"x"', '{"texts": 5}', '{"tokens": [1]}', "null"])
def test_spoiled_notes_in_a_probe_file_are_a_probe_error(tmp_path, notes):
    save_file({"x": np.ones(2)}, tmp_path / "p", metadata={"driftwalk.probe": notes})
    with pytest.raises(ProbeError, match="Cannot read a probe"):
        Probe.load(tmp_path / "p")


def test_no_file_a_folder_and_a_file_without_inputs_are_probe_errors(tmp_path):
    save_file({}, tmp_path / "empty")
    for path in (tmp_path / "none", tmp_path, tmp_path / "empty"):
        with pytest.raises(ProbeError):
            Probe.load(path)


# -- traces ----------------------------------------------------------------------------------------


def test_a_trace_keeps_the_order_of_execution():
    made = trace({"embed": IDS, "layer.10": IDS, "layer.2": IDS + 1})
    assert made.names == ("embed", "layer.10", "layer.2")
    assert [state.point.name for state in made] == list(made.names)
    assert len(made) == 3
    assert repr(made) == "<Trace of torch: embed, layer.10, layer.2>"


def test_a_state_is_found_by_the_name_of_its_point():
    made = trace({"embed": IDS, "layer.2": IDS + 1})
    assert made["layer.2"].tolist() == (IDS + 1).tolist()
    assert made.state("norm") is None
    with pytest.raises(KeyError, match=r"no point 'norm'; this trace has embed, layer\.2"):
        made["norm"]


def test_states_name_their_dtype_in_short():
    point = Point("embed")
    assert State(point, np.zeros(1, FORMATS["bf16"].dtype)).dtype == "bf16"
    assert State(point, np.zeros(1, np.float32)).dtype == "fp32"
    assert State(point, np.zeros(1, np.int64)).dtype == "int64"


def test_a_trace_may_have_no_states():
    empty = Trace((), Probe({"input_ids": IDS}), info())
    assert (len(empty), empty.names) == (0, ())


# -- bits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"x": np.array([1.0, np.nan])}, True),
        ({"x": np.array([1.0, -np.nan])}, False),
        ({"x": np.array([1.0, 2.0])}, False),
        ({"x": np.array([[1.0, np.nan]])}, False),
        ({"x": np.array([1.0, np.nan], np.float32)}, False),
        ({"y": np.array([1.0, np.nan])}, False),
        ({"x": np.array([1.0, np.nan]), "y": np.zeros(1)}, False),
        ({}, False),
    ],
)
def test_same_bits_means_every_bit(other, same):
    assert same_bits({"x": np.array([1.0, np.nan])}, other) is same


def test_minus_zero_and_a_zero_of_another_dtype_are_not_the_same():
    assert not same_bits({"x": np.zeros(1, np.int64)}, {"x": np.zeros(1, np.uint64)})
    assert not same_bits({"x": np.array([0.0])}, {"x": np.array([-0.0])})
