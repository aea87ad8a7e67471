"""What goes wrong: files that arrive damaged, and plans of faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from gpusim.testing.faults import VERBS, Fault, Plan
from gpusim.testing.strategies.arguments import among, between, words

_Damage = Callable[[bytes, int], bytes]
_NUMBERS = (b"", b"-1", b"99999999999999999999999", b"0x10", b"1e9", b"NaN", b"\xff\xfe", b"1 2")


def _lines(content: bytes, place: int, change: Callable[[bytes], list[bytes]]) -> bytes:
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    place %= len(lines)
    return b"".join([*lines[:place], *change(lines[place]), *lines[place + 1 :]])


def _number(content: bytes, place: int) -> bytes:
    def change(line: bytes) -> list[bytes]:
        name, blank, _ = line.rstrip(b"\n").rpartition(b" ")
        return [name + blank + _NUMBERS[place % len(_NUMBERS)] + b"\n"]

    return _lines(content, place // len(_NUMBERS), change)


def _flip(content: bytes, place: int) -> bytes:
    if not content:
        return b"\x01"
    at = place // 8 % len(content)
    return content[:at] + bytes((content[at] ^ 1 << place % 8,)) + content[at + 1 :]


DAMAGES: Mapping[str, _Damage] = MappingProxyType(
    {
        "truncated": lambda content, place: content[: place % max(len(content), 1)],
        "padded": lambda content, place: content + bytes(4096 - len(content) % 4096 + 4096 * (place % 2)),
        "line lost": lambda content, place: _lines(content, place, lambda line: []),
        "line twice": lambda content, place: _lines(content, place, lambda line: [line, line]),
        "line without value": lambda content, place: _lines(
            content, place, lambda line: [line.partition(b" ")[0] + b"\n"]
        ),
        "number replaced": _number,
        "bit flipped": _flip,
        "no line break": lambda content, place: content.replace(b"\n", b" " * (place % 2)),
        "carriage returns": lambda content, place: content.replace(b"\n", b"\r\n"),
    }
)
"""How a file is damaged; the number says where."""


def damaged_files(
    contents: bytes | st.SearchStrategy[bytes], *, kinds: Iterable[str] | None = None, max_damages: int = 2
) -> st.SearchStrategy[bytes]:
    """A file's content after something happened to it, once or several times.

    Args:
        contents: the sound content, or a strategy for it.
        kinds: keys of `DAMAGES`, the simplest first; None: all.
        max_damages: at most so many one after the other.

    Shrinks to an empty file, cut at its start.

    Raises:
        InvalidArgument: an unknown word, nothing to choose from, `contents` is text, a bound out of range.
    """
    if isinstance(contents, bytes):
        contents = st.just(contents)
    elif not isinstance(contents, st.SearchStrategy):
        raise InvalidArgument(f"contents={contents!r}: bytes or a strategy of bytes is needed")
    chosen = among("kinds", kinds, DAMAGES)
    between("1", 1, "max_damages", max_damages, least=1)
    damage = st.tuples(st.sampled_from(chosen), st.integers(0, 4095))

    def hurt(content: bytes, damages: list[tuple[str, int]]) -> bytes:
        for kind, place in damages:
            content = DAMAGES[kind](content, place)
        return content

    return st.builds(hurt, contents, st.lists(damage, min_size=1, max_size=max_damages))


def fault_plans(
    *,
    verbs: Iterable[str] | None = None,
    gpus: Iterable[str] = (),
    paths: Iterable[str] = ("*",),
    within: int = 50,
    max_faults: int = 3,
) -> st.SearchStrategy[Plan]:
    """Plans for `gpusim.testing.faulty.Faulty` (and `faults.arm`).

    Args:
        verbs: keys of `VERBS`; None: those of host and machine, the latter where `gpus` are named.
        gpus: PCI addresses for the machine's verbs.
        paths: shell patterns for the host's verbs.
        within: a fault strikes one of the first so many matching operations.
        max_faults: at most so many.

    Shrinks to no faults, then to one that strikes the first operation once.

    Raises:
        InvalidArgument: an unknown word, nothing to choose from, a bound out of range, a verb of the machine
            without `gpus`.
    """
    addresses = words("gpus", gpus, empty=True)
    patterns = words("paths", paths)
    usual = [v for v, row in VERBS.items() if row.where == "host" or (row.where == "machine" and addresses)]
    chosen = usual if verbs is None else among("verbs", verbs, VERBS)
    between("1", 1, "within", within, least=1)
    between("0", 0, "max_faults", max_faults)
    lone = [verb for verb in chosen if VERBS[verb].where == "machine" and not addresses]
    if lone:
        raise InvalidArgument(f"verbs: {lone[0]!r} happens to a GPU, and gpus names none")
    kinds = [_fault(verb, patterns, addresses, within) for verb in chosen]
    return (
        st.lists(st.one_of(*kinds), max_size=max_faults)
        .map(tuple)
        .flatmap(lambda f: st.builds(Plan, st.just(f)))
    )


def _fault(verb: str, paths: tuple[str, ...], gpus: tuple[str, ...], within: int) -> st.SearchStrategy[Fault]:
    row = VERBS[verb]
    fields: dict[str, st.SearchStrategy[object]] = {"nth": st.integers(1, within)}
    if row.where == "host":
        fields["times"] = st.sampled_from((1, 2, None))
    if row.where in ("host", "machine"):
        fields["path"] = st.sampled_from(paths)
    if "gpu" in row.needs:
        fields["gpu"] = st.sampled_from(gpus)
    if "seconds" in row.needs:
        fields["seconds"] = st.sampled_from((1.0, 30.0))
    if "name" in row.needs:
        fields["name"] = st.just("v1" if verb == "version" else "amd.com/gpu")
    if verb in ("truncate", "pad"):
        fields["size"] = st.sampled_from((0, 1, 16) if verb == "truncate" else (0, 16))
    return st.builds(Fault, st.just(verb), **fields)
