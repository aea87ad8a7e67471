"""The check of parsers catches each way to break one's word, and leaves alone those that keep it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpusim.errors import GpusimError
from gpusim.testing.limits import Kept
from gpusim.testing.parsers import Parser, ParserError, case, check_parser, shortened

SOUND = (b"key 12\nother 13\n",)


def good(data: bytes) -> dict[bytes, int]:
    """Lines of a name and a number; ValueError for anything else."""
    found = {}
    for line in data.splitlines():
        name, blank, number = line.partition(b" ")
        if not blank or not number.isdigit() or len(number) > 20:
            raise ValueError("no number")
        found[name] = int(number)
    return found


def parser(parse: Callable[[bytes], object], **fields: Any) -> Parser:
    return Parser("toy", parse, SOUND, **{"refuses": (ValueError,), **fields})


def caught(parse: Callable[[bytes], object], *, runs: int = 2000, **fields: Any) -> ParserError:
    with pytest.raises(ParserError) as error:
        check_parser(parser(parse, **fields), runs=runs, patience=0.5)
    return error.value


def strange(data: bytes) -> bool:
    """Some damaged inputs, and no sound one."""
    return b"1212" in data


def test_a_parser_that_keeps_its_word_survives_and_is_told_how_much_it_got() -> None:
    done = check_parser(parser(good), runs=2000, seed=5)
    assert done.runs == 2000
    assert 200 < done.refused < 1900
    assert done.bytes > 2000 * 10
    assert done.slowest > 0
    assert len(done.kept.blocks) == 4


def test_an_undocumented_exception_is_caught_with_the_input_that_did_it() -> None:
    def broken(data: bytes) -> object:
        return {b"12": 1}[b"key"] if strange(data) else good(data)

    error = caught(broken)
    assert error.why == "KeyError: b'key'"
    assert isinstance(error.__cause__, KeyError)
    assert strange(error.data)
    text = str(error)
    assert "parser toy: KeyError" in text
    assert f"input {error.number} of seed 0, {len(error.data)} bytes: {error.data!r}" in text
    assert f"seed=0, first={error.number}" in text
    # What the message says does it again, alone.
    assert case(parser(broken), seed=0, number=error.number) == error.data
    with pytest.raises(ParserError) as again:
        check_parser(parser(broken), runs=1, seed=0, first=error.number)
    assert str(again.value) == text


@pytest.mark.parametrize("raised", [SystemExit(0), MemoryError(), RecursionError("deep"), OSError("none")])
def test_nothing_else_counts_as_a_refusal(raised: BaseException) -> None:
    def broken(data: bytes) -> object:
        if strange(data):
            raise raised
        return good(data)

    assert caught(broken).why.startswith(type(raised).__name__)


def test_an_oserror_counts_only_with_a_documented_errno() -> None:
    def refusing(code: int) -> Callable[[bytes], object]:
        def parse(data: bytes) -> object:
            if data != SOUND[0]:
                raise OSError(code, os.strerror(code))
            return None

        return parse

    allowed = frozenset({errno.EINVAL})
    assert check_parser(parser(refusing(errno.EINVAL), refuses=(), errnos=allowed), runs=50).refused > 40
    assert "ENOENT" in caught(refusing(errno.ENOENT), refuses=(), errnos=allowed).why


def hangs_in_a_loop(data: bytes) -> object:
    while strange(data):
        with contextlib.suppress(Exception):
            raise ValueError
    return good(data)


def hangs_in_a_pattern(data: bytes) -> object:
    return re.fullmatch(rb"(a+)+b", b"a" * 40) if strange(data) else good(data)


@pytest.mark.parametrize("broken", [hangs_in_a_loop, hangs_in_a_pattern])
def test_a_hang_is_caught_even_where_every_exception_is_swallowed(broken: Callable[[bytes], object]) -> None:
    error = caught(broken)
    assert error.why == "hangs"
    assert strange(error.data)


def test_the_watch_is_gone_afterwards_and_pytests_own_alarm_was_never_touched() -> None:
    alarm, before = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGVTALRM)
    remaining = signal.getitimer(signal.ITIMER_REAL)
    caught(hangs_in_a_loop)
    assert signal.getsignal(signal.SIGALRM) is alarm
    assert signal.getitimer(signal.ITIMER_REAL)[0] <= remaining[0]
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_time_that_others_take_is_no_hang_and_not_slow() -> None:
    def slept(data: bytes) -> object:
        if strange(data):
            time.sleep(0.06)
        return good(data)

    check_parser(parser(slept), runs=400, patience=0.2)


def test_time_out_of_proportion_to_the_length_is_caught() -> None:
    def quadratic(data: bytes) -> object:
        if len(data) > 4000:
            for at in range(0, len(data), 8):
                data.count(b"no such word", at)
        return good(data)

    error = caught(quadratic)
    assert "would be long" in error.why
    assert len(error.data) > 4000


def test_memory_that_stays_of_every_input_is_caught() -> None:
    seen: list[bytes] = []

    def hoarding(data: bytes) -> object:
        seen.append(data)
        return good(data)

    assert "keeps memory" in caught(hoarding).why


def test_memory_that_stays_of_refused_inputs_only_is_caught() -> None:
    seen: list[object] = []

    def hoarding(data: bytes) -> object:
        try:
            return good(data)
        except ValueError as error:
            seen.append([str(error)])
            raise

    assert "keeps memory" in caught(hoarding).why


def test_memory_outside_of_pythons_blocks_is_looked_at_too() -> None:
    seen: list[bytearray] = []

    def hoarding(data: bytes) -> object:
        if not seen:
            seen.append(bytearray())
        seen[0].extend(b"x" * 20_000)
        return good(data)

    assert "keeps memory" in caught(hoarding, runs=800).why


def test_a_cache_of_bounded_size_is_no_leak() -> None:
    seen: dict[bytes, object] = {}

    def caching(data: bytes) -> object:
        if len(seen) >= 3000:
            seen.clear()
        seen[data] = object()
        return good(data)

    check_parser(parser(caching), runs=2000)


def test_memory_grew_only_if_it_did_in_every_round() -> None:
    assert Kept([0, 300, 600, 900], [0] * 4).grew(1000)
    assert not Kept([0, 300, 310, 900], [0] * 4).grew(1000)
    assert Kept([0] * 4, [0, 2 << 20, 4 << 20, 7 << 20]).grew(1000)
    assert not Kept([0, 90_000], [0, 1 << 30]).grew(1000)


def test_a_refusal_for_the_log_is_one_printable_line() -> None:
    def echoing(data: bytes) -> object:
        try:
            return good(data)
        except ValueError:
            raise ValueError(f"{data.decode('latin-1')} is no number") from None

    check_parser(parser(echoing), runs=500)
    assert "printable line" in caught(echoing, one_line=True).why


def test_a_sound_input_must_be_taken() -> None:
    def closed(data: bytes) -> object:
        raise ValueError("never")

    assert "refuses a sound input: b'key 12" in caught(closed).why

    def broken(data: bytes) -> object:
        raise KeyError("never")

    assert "KeyError: 'never', of a sound input" in caught(broken).why


def test_a_check_of_nothing_is_refused() -> None:
    with pytest.raises(GpusimError, match="0 inputs"):
        check_parser(parser(good), runs=0)
    with pytest.raises(GpusimError, match="no sound input"):
        check_parser(Parser("toy", good, ()), runs=1)


def test_outside_of_the_main_thread_all_but_hangs_is_watched() -> None:
    found: list[object] = []

    def work() -> None:
        found.append(check_parser(parser(good), runs=500))
        try:
            check_parser(parser(lambda data: {}[0] if strange(data) else good(data)), runs=2000)
        except ParserError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert isinstance(found[1], ParserError)


def test_of_a_long_input_beginning_and_end_are_shown() -> None:
    assert shortened(b"a\0") == "b'a\\x00'"
    shown = shortened(b"a" * 5000 + b"z")
    assert shown.startswith("b'aaa")
    assert shown.endswith("az'")
    assert len(shown) < 500


def test_it_needs_neither_pytest_nor_hypothesis() -> None:
    code = "import sys, gpusim.testing.parsers; print('pytest' in sys.modules, 'hypothesis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_the_pages_example_finds_what_the_page_shows() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "property-tests.md").read_text()
    code, shown = re.findall(
        r"```python\n(from gpusim\.testing\.parsers .*?)```\n\n```log\n(.*?)```", page, re.S
    )[0]
    names: dict[str, Any] = {}
    exec(code, names)
    with pytest.raises(ParserError) as found:
        names["test_damaged_files_are_read_or_refused"]()
    assert f"{found.value}\n" == shown
