"""What a limit's text means: kernel.md 4.3, every oddity of memparse, and lines."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.dmem_parse import UNLIMITED, Line, limit, lines, memparse

EXA = 1 << 60


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("max", UNLIMITED),
        ("0", 0),
        ("17179869184", 17179869184),
        ("16G", 16 << 30),
        ("16g", 16 << 30),
        ("1k", 1024),
        ("3M", 3 << 20),
        ("2t", 2 << 40),
        ("1P", 1 << 50),
        ("1E", EXA),
        ("1e", EXA),
        ("0x10", 16),
        ("0X1F", 31),
        ("0xf", 15),
        ("0x1e", 30),  # a hexadecimal digit, no suffix
        ("0x1G", 1 << 30),
        ("010", 8),
        ("010K", 8192),
        ("00", 0),
        ("K", 0),  # a bare suffix is 0
        ("e", 0),
        ("16E", 0),  # 2^64 wraps
        ("17E", EXA),
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", 0),
        ("18446744073709551621", 5),
        ("99999999999999999999999", 99999999999999999999999 % 2**64),
    ],
)
def test_a_value_is_read_as_memparse_reads_it(text: str, value: int) -> None:
    assert limit(text) == value


def test_max_is_the_largest_number_of_pages_that_a_page_counter_holds() -> None:
    assert UNLIMITED == 2251799813685247


@pytest.mark.parametrize(
    "text",
    ["-1", "+1", "1.5G", "1GiB", "1GB", "16GB", "MAX", "Max", "maximum", "max ", " max", " 1", "1 ", "1\t",
     "0x", "0xg", "08", "09", "0o7", "1KK", "12a", "abc", "½", "1_000", "٣"],
)  # fmt: skip
def test_anything_left_over_is_einval(text: str) -> None:
    with pytest.raises(OSError, match="Invalid") as caught:
        limit(text)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("text", "number", "rest"),
    [("1KB", 1024, "B"), ("12a", 12, "a"), ("1KM", 1024, "M"), ("0xg", 0, "xg"), ("", 0, "")],
)
def test_what_is_left_over_begins_behind_one_suffix(text: str, number: int, rest: str) -> None:
    assert memparse(text) == (number, rest)


@given(st.integers(0, 2**80), st.sampled_from(" kKmMgGtTpPeE"), st.sampled_from(["{:d}", "0x{:x}", "0{:o}"]))
def test_numbers_of_any_base_and_suffix_wrap_modulo_2_64(number: int, suffix: str, form: str) -> None:
    suffix = suffix.strip()
    if suffix in ("e", "E") and form == "0x{:x}":
        suffix = ""  # would be a digit
    power = "kmgtpe".index(suffix.lower()) + 1 if suffix else 0
    assert memparse(form.format(number) + suffix) == (number * 1024**power % 2**64, "")


@pytest.mark.parametrize(
    ("data", "many", "one"),
    [
        (b"r 1", [Line("r", "1")], [Line("r", "1")]),
        (b"r 1\n", [Line("r", "1")], [Line("r", "1")]),
        (b"  r\t1 \r\n", [Line("r", "1")], [Line("r", "1")]),
        (b"r  1", [Line("r", " 1")], [Line("r", " 1")]),
        (b"r", [Line("r", None)], [Line("r", None)]),
        (b"r ", [Line("r", None)], [Line("r", None)]),
        (b"a 1\nb 2", [Line("a", "1"), Line("b", "2")], [Line("a", "1\nb 2")]),
        (b"\n\n a 1\n\n", [Line("a", "1")], [Line("a", "1")]),
        (b"a\n1", [Line("a", None), Line("1", None)], [Line("a\n1", None)]),
        (b"a 1\0b 2", [Line("a", "1")], [Line("a", "1")]),
        (b"a 1\xa0", [Line("a", "1")], [Line("a", "1")]),
    ],
)
def test_lines_are_split_as_each_kernel_does(data: bytes, many: list[Line], one: list[Line]) -> None:
    assert list(lines(data, many=True)) == many
    assert list(lines(data, many=False)) == one


@pytest.mark.parametrize("data", [b"\n", b" ", b"\n \n", b"\0r 1"])
def test_a_blank_write_is_nothing_to_old_kernels_and_einval_to_new_ones(data: bytes) -> None:
    assert list(lines(data, many=True)) == []
    with pytest.raises(OSError, match="Invalid"):
        list(lines(data, many=False))
