"""A signature is one text for one call, its number stays, and sizes have the values that their expressions say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import signatures
from conformance.signatures import Signature, SignatureError

ADDMM = Signature(
    "aten.addmm.default",
    "float32",
    [{"tensor": ["float32", [32]]}, {"tensor": ["float32", ["s0", 16]]}, {"tensor": ["float32", [16, 32], [1, 16], 4]}],
    {"beta": 1},
    {"s0": 16},
)

plain = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5)
arguments = st.lists(plain | st.lists(plain, max_size=3), max_size=4)


@given(arguments, st.dictionaries(st.text(min_size=1, max_size=4), plain, max_size=3))
def test_what_is_written_is_read(args, kwargs):
    signature = Signature("aten.add.Tensor", "int64", args, kwargs, {})
    assert signatures.decode(signatures.encode(signature)) == signature


def test_the_order_of_keywords_does_not_matter():
    one, other = (Signature("aten.x.y", "bool", [], kwargs, {}) for kwargs in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    assert signatures.encode(one) == signatures.encode(other)


def test_a_number_is_the_same_in_every_process_and_another_with_each_attempt():
    text = signatures.encode(ADDMM)
    assert signatures.number(text) == 2421912325
    assert len({signatures.number(text, attempt) for attempt in range(5)}) == 5


def test_it_is_shown_for_people():
    assert signatures.shown(ADDMM) == (
        "aten.addmm.default(float32[32], float32[s0, 16], float32[16, 32](1, 16)+4, beta=1) with s0=16"
    )


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1), max_size=6))
def test_packing_keeps_each_text_once(texts):
    assert signatures.unpack(signatures.pack(texts)) == list(dict.fromkeys(texts))


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", '["op"]'])
def test_what_is_no_signature_is_said(text):
    with pytest.raises(SignatureError, match="is no signature"):
        signatures.decode(text)


def test_what_is_not_packed_is_said():
    with pytest.raises(SignatureError, match="cannot be read"):
        signatures.unpack("no such thing")


@pytest.mark.parametrize(
    ("size", "value"),
    [
        (7, 7),
        ("s0", 6),
        ("2*s0 + s1 - 1", 15),
        ("((s0//4))", 1),
        ("Max(1, s1 - s0)", 1),
        ("Mod(s0, 4)", 2),
        ("ModularIndexing(s0, 2, 2)", 1),
        ("CeilDiv(s0, 4)", 2),
        ("s0**2", 36),
        ("-s0", -6),
        ("s0/2", 3),
    ],
)
def test_expressions_have_values(size, value):
    assert signatures.evaluate(size, {"s0": 6, "s1": 4}) == value


@pytest.mark.parametrize("size", ["s9", "s0/4", "s0//0", "__import__('os')", "s0 +", "open(s0)", "(lambda: 1)()"])
def test_what_has_no_value_is_said(size):
    with pytest.raises(SignatureError, match="has no value"):
        signatures.evaluate(size, {"s0": 6})


def test_strides_of_contiguous_tensors():
    assert signatures.contiguous([2, 3, 4]) == (12, 4, 1)
    assert signatures.contiguous([2, 0, 4]) == (4, 4, 1)
    assert signatures.contiguous([]) == ()
