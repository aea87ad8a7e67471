"""The codec's cases: amd.md 14.5, ascend_ppu_hami.md F.2, cases.md B33 and B35, decision 16."""

from __future__ import annotations

import pytest

from devplugin.hami import CodecError, ContainerDevice, decode, encode, erase, filled, slots_left
from devplugin.hami.codec import clip

A = ContainerDevice("uuid-a", "AMDGPU", 4096, 25)
B = ContainerDevice("uuid-b", "AMDGPU", 1, 2)
TEXT_A = "uuid-a,AMDGPU,4096,25:"
TEXT_B = "uuid-b,AMDGPU,1,2:"


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("", ()),
        (";", ((),)),
        (";;", ((), ())),
        (f"{TEXT_A};", ((A,),)),
        (f";{TEXT_A}{TEXT_B};;", ((), (A, B), ())),
        ("UUID1,Type1,1000,30:;", ((ContainerDevice("UUID1", "Type1", 1000, 30),),)),
        (f"{TEXT_A};{TEXT_B};", ((A,), (B,))),
    ],
)
def test_texts_read_as_slots_and_back_to_the_same_bytes(
    text: str, slots: tuple[tuple[ContainerDevice, ...], ...]
) -> None:
    assert decode(text) == slots
    assert encode(slots) == text


def test_a_last_slot_or_device_without_its_end_mark_is_read_in_full() -> None:
    assert decode("uuid-a,AMDGPU,4096,25") == ((A,),)


def test_product_names_with_blanks_are_types() -> None:
    assert decode("u,AMD Instinct MI300X VF,1,1:;")[0][0].type == "AMD Instinct MI300X VF"


@pytest.mark.parametrize(
    "text",
    [
        "u1,AMD,4096,50:GARBAGE:;",
        "u1,AMD,-1,50:;",
        "u1,AMD,4096,-5:;",
        "u1,AMD,4096:;",
        "u1,AMD,abc,50:;",
        "uuid,type,100:;",
        f"{TEXT_A};GARBAGE;",
        "uuid-a,AMDGPU,x,25:;",
        "uuid-a,AMDGPU,4096,x:;",
        "u,t,2147483648,1:;",
        "u,t,1,2147483648:;",
        "u,t, 1,1:;",
        "u,t,+1,1:;",
        "u,t,1_0,1:;",
        "u,t,١,1:;",
        ",t,1,1:;",
        "a b,t,1,1:;",
        "a\nb,t,1,1:;",
        "u,t,1,1::;",
        ":;",
        "u,t,1," + "9" * 5000 + ":;",
    ],
)
def test_a_bad_segment_refuses_the_whole_text(text: str) -> None:
    with pytest.raises(CodecError):
        decode(text)


def test_the_error_names_the_segment_and_stays_printable() -> None:
    with pytest.raises(CodecError, match="GARBAGE"):
        decode(f"{TEXT_A}GARBAGE:;")
    with pytest.raises(CodecError) as caught:
        decode("evil\x1b[31m\n,t:;")
    assert str(caught.value).isprintable()


def test_the_largest_numbers_are_accepted() -> None:
    assert decode("u,t,2147483647,2147483647:;")[0][0].memory_mib == 2147483647


@pytest.mark.parametrize(
    ("fifth", "slots"), [("3", 3), ("x", 1), ("-2", 1), ("0", 1), ("", 1), ("3,more", 3)]
)
def test_the_fifth_field_is_the_slot_count_or_ignored(fifth: str, slots: int) -> None:
    assert decode(f"u,t,1,2,{fifth}:;")[0][0].slots == slots


def test_a_slot_count_is_written_only_above_one() -> None:
    assert encode([[ContainerDevice("u", "t", 1, 2, 3)]]) == "u,t,1,2,3:;"
    assert encode([[ContainerDevice("u", "t", 1, 2, 1)]]) == "u,t,1,2:;"


@pytest.mark.parametrize(
    "device",
    [
        ContainerDevice("a,b", "t", 1, 1),
        ContainerDevice("a:b", "t", 1, 1),
        ContainerDevice("a;b", "t", 1, 1),
        ContainerDevice("", "t", 1, 1),
        ContainerDevice("u", "a,b", 1, 1),
        ContainerDevice("u", "a:b", 1, 1),
        ContainerDevice("u", "a;b", 1, 1),
        ContainerDevice("u", "t", -1, 1),
        ContainerDevice("u", "t", 1, 2**31),
    ],
)
def test_what_the_grammar_cannot_carry_is_not_written(device: ContainerDevice) -> None:
    with pytest.raises(CodecError):
        encode([[device]])


def test_erasing_a_slot_keeps_every_other_byte() -> None:
    text = f";{TEXT_A};;{TEXT_B};;;"
    assert erase(text, 1) == f";;;{TEXT_B};;;"
    assert erase(erase(text, 1), 3) == ";;;;;;"


def test_erasing_a_last_slot_without_end_mark_leaves_nothing() -> None:
    assert erase(TEXT_A, 0) == ""


@pytest.mark.parametrize("slot", [-1, 2, 7])
def test_a_slot_that_is_not_there_cannot_be_erased(slot: int) -> None:
    with pytest.raises(CodecError):
        erase(f"{TEXT_A};{TEXT_B};", slot)


@pytest.mark.parametrize(
    ("text", "left"), [("", False), (";;", False), (f";{TEXT_A};", True), ("GARBAGE", True), (" ; ", False)]
)
def test_a_slot_is_filled_when_anything_is_in_it(text: str, left: bool) -> None:
    assert filled(text) is left


def test_slots_of_every_vendor_count_as_left_and_nothing_else_does() -> None:
    assert slots_left({"hami.io/Ascend910B4-devices-to-allocate": "x,y,1,1:;"})
    assert slots_left({"hami.io/vgpu-devices-to-allocate": ";x,y,1,1:;"})
    assert not slots_left(
        {
            "hami.io/amd-devices-to-allocate": ";;",
            "hami.io/amd-devices-allocated": f"{TEXT_A};",
            "example.com/amd-devices-to-allocate": f"{TEXT_A};",
        }
    )


def test_foreign_text_is_quoted_and_cut_after_eighty_characters() -> None:
    assert clip("a" * 80) == repr("a" * 80)
    assert clip("a" * 81) == ascii("a" * 80 + "…")
    assert clip("abc", 2) == ascii("ab…")


def test_the_error_says_which_number_is_wrong() -> None:
    with pytest.raises(CodecError, match=r": memory 'x'"):
        decode("u,t,x,1:;")
    with pytest.raises(CodecError, match=r": cores 'x'"):
        decode("u,t,1,x:;")
    with pytest.raises(CodecError, match=r": memory -1"):
        encode([[ContainerDevice("u", "t", -1, 1)]])
    with pytest.raises(CodecError, match=r": cores -1"):
        encode([[ContainerDevice("u", "t", 1, -1)]])


def test_a_device_with_numbers_of_ten_digits_has_one_slot() -> None:
    assert decode("u,t,2147483647,1:;") == ((ContainerDevice("u", "t", 2147483647, 1, 1),),)


def test_slot_counts_reach_from_two_to_the_largest_int32() -> None:
    for slots in (2, 2**31 - 1):
        device = ContainerDevice("u", "t", 1, 1, slots)
        assert encode([[device]]) == f"u,t,1,1,{slots}:;"
        assert decode(encode([[device]])) == ((device,),)
