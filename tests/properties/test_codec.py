"""The codec for all inputs: round trip, byte-exact erase, and no half-understood text (decision 16)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from devplugin.hami import CodecError, ContainerDevice, decode, encode, erase, filled

ids = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=",:;"), min_size=1, max_size=12
)
types = st.text(st.characters(exclude_characters=",:;", exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(0, 2**31 - 1)
entries = st.builds(ContainerDevice, ids, types, numbers, numbers, st.integers(1, 99))
annotations = st.lists(st.lists(entries, max_size=3), max_size=5)


@given(annotations)
def test_what_is_written_reads_back_and_is_written_the_same(slots: list[list[ContainerDevice]]) -> None:
    text = encode(slots)
    assert decode(text) == tuple(map(tuple, slots))
    assert encode(decode(text)) == text


@given(annotations, st.integers(0, 6))
def test_trailing_empty_slots_never_grow(slots: list[list[ContainerDevice]], trailing: int) -> None:
    text = encode(slots) + ";" * trailing
    assert encode(decode(text)) == text


@given(annotations, st.data())
def test_erasing_changes_one_slot_and_no_byte_of_another(
    slots: list[list[ContainerDevice]], data: st.DataObject
) -> None:
    if not slots:
        return
    chosen = data.draw(st.integers(0, len(slots) - 1))
    text = encode(slots)
    erased = erase(text, chosen)
    kept = text.split(";")
    assert erased.split(";") == [*kept[:chosen], "", *kept[chosen + 1 :]]
    assert decode(erased) == tuple(() if i == chosen else tuple(slot) for i, slot in enumerate(slots))
    assert filled(erased) == any(slot for i, slot in enumerate(slots) if i != chosen)


@given(st.text(st.sampled_from("a1,:; -;,:"), max_size=24))
def test_a_text_is_understood_in_full_or_refused(text: str) -> None:
    try:
        slots = decode(text)
    except CodecError as error:
        assert str(error).isprintable()
        return
    # Every device that could be meant was understood: as many as there are pieces with something in them.
    assert sum(map(len, slots)) == sum(1 for slot in text.split(";") for piece in slot.split(":") if piece)


@given(st.text(max_size=40))
def test_no_text_whatever_crashes_the_reader(text: str) -> None:
    try:
        slots = decode(text)
    except CodecError:
        return
    for slot in slots:
        for device in slot:
            assert 0 <= device.memory_mib < 2**31
            assert 0 <= device.cores < 2**31
            assert not set(device.id) & set(",:; \n\t")


@given(st.text(max_size=8), st.text(max_size=8))
def test_ids_and_types_that_are_written_read_back_and_others_are_refused(identifier: str, kind: str) -> None:
    device = ContainerDevice(identifier, kind, 1, 2)
    try:
        text = encode([[device]])
    except CodecError:
        assert (
            not identifier
            or not identifier.isascii()
            or not identifier.isprintable()
            or set(identifier + kind) & set(",:; ")
        )
        return
    assert decode(text) == ((device,),)
