"""Flags in Go's forms, and what is refused how (decision 34)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.settings import (
    GoParser,
    add_common_flags,
    add_flag,
    go_bool,
    go_float,
    go_int,
    shown,
)


def parser() -> GoParser:
    made = GoParser("some-plugin", "A plugin.")
    add_common_flags(made)
    add_flag(made, "split_count", go_int, 0, "sharers, 100% of them")
    add_flag(made, "dmem_backend", go_bool, True, "limits")
    add_flag(made, "scaling", go_float, 1.0, "factor")
    return made


@pytest.mark.parametrize("words", ["-split_count 2", "-split_count=2", "--split_count=2", "--split_count 2"])
def test_one_or_two_dashes_and_a_value_in_the_same_or_the_next_word(words: str) -> None:
    assert parser().parse_args(words.split()).split_count == 2


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("-dmem_backend", True),
        ("-dmem_backend=false", False),
        ("--dmem_backend=F", False),
        ("-dmem_backend=1", True),
    ],
)
def test_a_boolean_is_true_bare_and_takes_its_value_after_an_equals_sign(words: str, value: bool) -> None:
    assert parser().parse_args(words.split()).dmem_backend is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x10", 16), ("0X1f", 31), ("0o17", 15), ("017", 15), ("0b101", 5), ("0xff", 255),
        ("-0x10", -16), ("+7", 7), ("0", 0), ("00", 0), ("07", 7), ("9223372036854775807", 2**63 - 1),
    ],
)  # fmt: skip
def test_an_integer_is_what_gos_flag_package_takes(text: str, value: int) -> None:
    assert parser().parse_args(["-split_count", text]).split_count == value


def test_two_dashes_end_the_flags() -> None:
    assert parser().parse_args(["-split_count=3", "--"]).split_count == 3


def test_the_next_word_is_a_value_even_when_it_begins_with_a_dash() -> None:
    assert parser().parse_args(["-split_count", "-3"]).split_count == -3


def test_the_charts_logging_flags_are_taken_unchanged() -> None:
    args = parser().parse_args(["-logtostderr=true", "-stderrthreshold=INFO", "-v=5"])
    assert (args.logtostderr, args.stderrthreshold, args.v) == (True, "INFO", 5)
    assert parser().parse_args(["-stderrthreshold", "1"]).stderrthreshold == "WARNING"


def test_an_empty_value_is_a_value() -> None:
    assert parser().parse_args(["-simulate="]).simulate == ""


@pytest.mark.parametrize(
    "words",
    [
        ["-unknown"],
        ["-split"],
        ["-v4"],
        ["-v", "1_0"],
        ["-v", "0x_f"],
        ["-v", "0_7"],
        ["-v= 4"],
        ["-v=0x"],
        ["-v=08"],
        ["-v=0b2"],
        ["-v=9223372036854775808"],
        ["-v=" + "9" * 5000],
        ["-v"],
        ["-scaling=1_0.5"],
        ["-dmem_backend", "false"],
        ["-dmem_backend=maybe"],
        ["-stderrthreshold=loud"],
        ["word"],
        ["-"],
        ["--", "-v=4"],
        ["-v=4", "--", "word"],
        ["---v=4"],
        ["-=4"],
        [""],
    ],
)
def test_unknown_or_unparsable_prints_usage_and_exits_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "usage: some-plugin" in said.err


@pytest.mark.parametrize("word", ["-help", "--help", "-h"])
def test_help_names_every_flag_with_default_and_meaning(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([word])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "-split_count int sharers, 100% of them (default 0)" in text
    assert "-dmem_backend bool limits (default true)" in text
    assert "-simulate text" in text


@given(st.integers(-(10**17), 10**17))
def test_every_decimal_integer_reads_back(value: int) -> None:
    assert parser().parse_args([f"-split_count={value}"]).split_count == value


@given(st.floats())
def test_every_float_that_python_prints_is_parsed(value: float) -> None:
    read = parser().parse_args([f"-scaling={value!r}"]).scaling
    assert read == value or (read != read and value != value)


@given(st.text(max_size=12))
def test_no_word_makes_the_parser_do_anything_but_answer_or_exit_2(word: str) -> None:
    for words in ([word], [f"-split_count={word}"], ["-v", word]):
        try:
            parser().parse_args(words)
        except SystemExit as ended:
            assert ended.code == 2 or word.lstrip("-") in ("help", "h")


@given(st.text(max_size=200))
def test_a_foreign_text_is_shown_as_one_bounded_printable_word(text: str) -> None:
    word = shown(text)
    assert word.isascii() and word.isprintable()
    assert len(word) < 700
