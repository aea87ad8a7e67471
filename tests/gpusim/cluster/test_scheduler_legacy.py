"""Strings of older releases, and the text of the filter's reasons: ascend_ppu_hami.md D.2, F.2 C7 to C14."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.cluster.scheduler_devices import RegistrationError, registered
from gpusim.cluster.scheduler_legacy import Entry, LegacyError, decode, encode
from gpusim.cluster.scheduler_ppu import ppu_vendors
from gpusim.cluster.scheduler_reasons import parse, summed, told
from gpusim.cluster.scheduler_vendors import AMD

P4 = "GPU-e,10,7680,100,NVIDIA-Tesla P4,0,true"
(PPU,) = ppu_vendors()


def refused(text):
    with pytest.raises(LegacyError) as error:
        decode(text)
    return str(error.value)


@pytest.mark.parametrize("text", ["", "a", ","])
def test_c7_a_string_without_a_separator_is_refused(text):
    assert refused(text) == "node annotation missing device separator"


@pytest.mark.parametrize("text", [":", "::"])
def test_c8_separators_alone_are_no_devices(text):
    assert decode(text) == ()


def test_c9_a_comma_alone_is_two_fields():
    assert refused(",:") == "unexpected field count 2 in node annotation"


def test_c10_a_segment_without_a_comma_is_malformed():
    assert refused("garbage:") == 'malformed node annotation segment: "garbage"'


def test_c11_seven_fields_are_a_device_with_the_usual_mode_and_index():
    assert decode(f"{P4}:") == (Entry("GPU-e", 10, 7680, 100, "NVIDIA-Tesla P4", 0, True, 0, "hami-core"),)


def test_c12_nine_fields_say_index_and_mode():
    (found,) = decode(f"{P4},1,hami-core:")
    assert (found.index, found.mode) == (1, "hami-core")
    assert decode(f"{P4},2,mig:")[0].mode == "mig"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("u,1,2,3,t:", "unexpected field count 5 in node annotation"),
        (f"{P4},1:", "unexpected field count 8 in node annotation"),
        ("u,x,2,3,t,0,true:", "invalid count field: 'x'"),
        ("u,1,x,3,t,0,true:", "invalid memory field: 'x'"),
        ("u,1,2,2147483648,t,0,true:", "invalid core field: '2147483648'"),
        ("u,1,2,3,t,,true:", "invalid numa field: ''"),
        ("u,1,2,3,t,0,yes:", "invalid health field: 'yes'"),
        (f"{P4},1_0,m:", "invalid index field: '1_0'"),
        (f"{P4},-1,m:", "index field must not be negative: -1"),
    ],
)
def test_c13_a_bad_field_is_named(text, why):
    assert refused(text) == why


words = st.text(st.characters(blacklist_characters=",:", blacklist_categories=["Cs"]), min_size=1, max_size=8)
numbers = st.integers(-(1 << 31), (1 << 31) - 1)


@given(
    st.lists(
        st.builds(
            Entry,
            words,
            numbers,
            numbers,
            numbers,
            words,
            numbers,
            st.booleans(),
            st.integers(0, (1 << 31) - 1),
            words,
        )
    )
)
def test_what_is_encoded_is_decoded_and_has_nine_fields(entries):
    text = encode(entries)
    assert all(piece.count(",") == 8 for piece in text.split(":")[:-1])
    assert list(decode(text) if text else ()) == entries


@given(st.text("a,:1-tru", max_size=30))
def test_any_string_is_read_or_refused(text):
    try:
        assert all(entry.index >= 0 for entry in decode(text))
    except LegacyError as error:
        assert str(error) != ""


def test_a_row_that_knows_the_string_reads_the_same_device_in_either_form():
    entry = Entry("u", 2, 98304, 100, "PPU-ZW810E", 1, True, 3)

    def node(text, vendor=PPU):
        return {"metadata": {"name": "n", "annotations": {vendor.register: text}}}

    assert registered(node(encode([entry])), PPU) == registered(node(json.dumps([entry.json()])), PPU)
    with pytest.raises(RegistrationError, match="unexpected field count 2"):
        registered(node(",:"), PPU)
    with pytest.raises(RegistrationError, match="no gpu found on node"):
        registered(node(":"), PPU)
    with pytest.raises(RegistrationError, match="no JSON"):
        registered(node(encode([entry]), AMD), AMD)


def test_c14_reasons_are_read_back():
    text = "3/8 CardInsufficientMemory, 2/8 CardInsufficientCore, 3/8 CardNotHealth"
    found = {"CardInsufficientMemory": 3, "CardInsufficientCore": 2, "CardNotHealth": 3}
    assert parse(text) == found
    assert parse(told(found, 8)) == found
    assert parse("NodeInsufficientDevice") == parse("") == {}
    assert summed([text, "1/1 CardNotHealth", "NodeInsufficientDevice"]) == {**found, "CardNotHealth": 4}
