"""Holding a parser to its word: whatever arrives, it answers or refuses as documented, soon, keeping nothing.

For any parser, yours too; needs neither pytest nor Hypothesis::

    from gpusim.testing.parsers import Parser, check_parser

    check_parser(Parser("annotation", decode, sound=(b"a,b,1,2:;",), refuses=(CodecError,)), runs=10_000)

Inputs are `gpusim.testing.damage`'s. Number n of a seed is the same bytes everywhere, so that one failing
input can be looked at alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from gpusim.errors import GpusimError
from gpusim.testing.damage import damaged
from gpusim.testing.limits import Kept, StuckError, Watch, only_new_is_collected, seconds, watched
from gpusim.testing.rules import CheckError, name_of

_SHOWN = 400
"""Bytes of an input that a failure prints."""
_RATIO = 25
"""How many times as long as of a sound input a byte may take."""
_ROUNDS, _FURTHER = 4, 3
"""Memory is looked at after each round; where it grew in all, so many whole checks more must show it too."""
_FEW = 400
"""Inputs that are one round: nothing can be said of memory."""
_LINE = 2000
"""Characters of a refusal that names two clipped texts, every sign of them escaped."""


@dataclass(frozen=True, slots=True)
class Parser:
    """A function of bytes, and what it says of itself.

    Attributes:
        name: seeds the inputs, too.
        parse: reads bytes; its answer is thrown away.
        sound: inputs it takes.
        refuses: exceptions it documents for what it does not take.
        errnos: of an OSError, where it documents that: only these.
        one_line: what it says of a refusal is one printable line of at most 2000 characters, as it must be
            where it goes to a log and the input comes from strangers.
        moment: seconds that any input may take, however short.
    """

    name: str
    parse: Callable[[bytes], object]
    sound: Sequence[bytes]
    refuses: tuple[type[Exception], ...] = ()
    errnos: frozenset[int] = frozenset()
    one_line: bool = False
    moment: float = 0.05


class ParserError(CheckError):
    """A parser broke its word: which input, and how to see it again.

    Attributes:
        parser: its name.
        seed: of the inputs.
        number: of the input; -1: a sound one, or not about one input.
        data: the input.
        why: what happened.
    """

    def __init__(self, parser: Parser, why: str, data: bytes, *, seed: int = 0, number: int = -1) -> None:
        self.parser, self.why, self.data, self.seed, self.number = parser.name, why, data, seed, number
        text = f"parser {parser.name}: {why}"
        if number >= 0:
            text += f"\n  input {number} of seed {seed}, {len(data)} bytes: {shortened(data)}"
            text += f"\n  again: check_parser(PARSER, runs=1, seed={seed}, first={number})"
        super().__init__(text)


@dataclass(slots=True)
class Survived:
    """What a check did: one in which everything was refused, or nothing, proves little."""

    runs: int = 0
    refused: int = 0
    bytes: int = 0
    slowest: float = 0.0
    """Seconds of the slowest input, others' load included."""
    slowest_number: int = -1
    kept: Kept = field(default_factory=Kept)


def case(parser: Parser, *, seed: int, number: int) -> bytes:
    """Input `number` of a seed: the same everywhere, for the same name and sound inputs."""
    return damaged(parser.sound, Random(f"{parser.name}/{seed}/{number}"))


def check_parser(
    parser: Parser, *, runs: int, seed: int = 0, first: int = 0, patience: float = 5.0
) -> Survived:
    """Put damaged inputs through a parser.

    Args:
        parser: which.
        runs: how many inputs; more, where it seems to keep memory.
        seed: of the inputs.
        first: number of the first; with ``runs=1`` that input alone.
        patience: seconds of processor time after which it hangs; watched in the main thread only.

    Raises:
        ParserError: it raised something else than it documents, refused a sound input, hung, took far longer
            a byte than for sound inputs, or kept memory.
        GpusimError: no run, or no sound input.
    """
    if runs < 1:
        raise GpusimError(f"a check of {runs} inputs proves nothing")
    each = runs // _ROUNDS if runs >= _FEW else 0
    with only_new_is_collected(), watched(patience) as watch:
        check = _Check(parser, seed, first, watch)
        check.round(runs - each * (_ROUNDS - 1))
        for _ in range(_ROUNDS - 1 if each else 0):
            check.round(each)
        for _ in range(_FURTHER):
            if check.done.kept.grew(each):
                check.round(runs)
    if check.done.kept.grew(each):
        why = f"keeps memory: after rounds of {each} inputs, seed {seed}, there are {check.done.kept}"
        raise ParserError(parser, why, b"", seed=seed)
    return check.done


def shortened(data: bytes) -> str:
    """Bytes for a message: exactly, and of a long input beginning and end."""
    if len(data) <= _SHOWN:
        return repr(data)
    return f"{data[: _SHOWN * 3 // 4]!r} … {data[-_SHOWN // 4 :]!r}"


class _Check:
    """A check that goes on."""

    def __init__(self, parser: Parser, seed: int, first: int, watch: Watch) -> None:
        self.done = Survived()
        self._parser, self._seed, self._next, self._watch = parser, seed, first, watch
        self._pace = _pace(parser)

    def round(self, runs: int) -> None:
        clock, done = time.perf_counter, self.done
        for number in range(self._next, self._next + runs):
            data = case(self._parser, seed=self._seed, number=number)
            self._watch.number = number
            begun = clock()
            try:
                done.refused += _refused(self._parser, data)
            except StuckError:
                raise self._error("hangs", data, number) from None
            except _BrokenWordError as error:
                raise self._error(str(error), data, number) from error.__cause__
            finally:
                self._watch.number = -1
            took = clock() - begun
            if took > done.slowest:
                done.slowest, done.slowest_number = took, number
            if took > self._parser.moment:
                self._in_time(took, data, number)
            done.bytes += len(data)
        done.runs += runs
        self._next += runs
        done.kept.look()

    def _in_time(self, took: float, data: bytes, number: int) -> None:
        """Whether the input needs no more time than its length is worth; others' load does not count."""
        most = max(self._parser.moment, self._pace * (len(data) + 64) * _RATIO)
        if took > most and (alone := seconds(lambda: self._parser.parse(data))) > most:
            raise self._error(f"takes {alone:.2f} s; {most:.2f} s would be long", data, number)

    def _error(self, why: str, data: bytes, number: int) -> ParserError:
        return ParserError(self._parser, why, data, seed=self._seed, number=number)


def _pace(parser: Parser) -> float:
    """Seconds a byte that the slowest sound input takes."""
    if not parser.sound:
        raise GpusimError(f"parser {parser.name} has no sound input")
    pace = 0.0
    for data in parser.sound:
        try:
            if _refused(parser, data):
                raise ParserError(parser, f"refuses a sound input: {shortened(data)}", data)
        except _BrokenWordError as error:
            why = f"{error}, of a sound input: {shortened(data)}"
            raise ParserError(parser, why, data) from error.__cause__
        pace = max(pace, seconds(lambda data=data: parser.parse(data)) / (len(data) + 64))  # type: ignore[misc]
    return pace


class _BrokenWordError(Exception):
    """What a parser did wrong, in words; the cause is its exception."""


def _refused(parser: Parser, data: bytes) -> bool:
    """Whether the parser refuses the input, in the way it documents."""
    try:
        parser.parse(data)
    except (KeyboardInterrupt, StuckError):
        raise
    except BaseException as error:  # SystemExit and MemoryError are nobody's refusal
        if isinstance(error, OSError) and parser.errnos:
            if error.errno not in parser.errnos:
                raise _BrokenWordError(f"OSError of {name_of(error.errno or 0)}: {error}") from error
        elif not isinstance(error, parser.refuses):
            raise _BrokenWordError(f"{type(error).__name__}: {str(error)[:_SHOWN]}") from error
        text = str(error)
        if parser.one_line and not (text.isprintable() and len(text) <= _LINE):
            raise _BrokenWordError(f"its refusal is no printable line: {text[:_SHOWN]!a}") from error
        return True
    return False
