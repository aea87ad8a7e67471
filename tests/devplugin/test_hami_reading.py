"""Annotations, decoded for the log: guide-amd.md (dp.logVerbosity 5), decision 25."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from devplugin.hami import LOCK, Node, Pod, Vocabulary, readings

WORDS = Vocabulary(register="r", to_allocate="hami.io/to", allocated="hami.io/given")


def lines(lock: str | None = None, **annotations: str) -> list[str]:
    node = Node("n1", "u", {} if lock is None else {LOCK: lock})
    pod = Pod("ns", "p", "u", "n1", "Running", {f"hami.io/{key}": text for key, text in annotations.items()})
    return list(readings(node, [pod], WORDS))


def test_each_slot_is_a_line_with_its_devices() -> None:
    assert lines(to=";b,T,1,2:;", given="a,T,4096,25:c,T,0,0:;b,T,1,2:;") == [
        "node n1: locked by nobody",
        "pod ns/p: hami.io/to: slot 0: nothing",
        "pod ns/p: hami.io/to: slot 1: 'b' ('T') 1 MiB, 2 cores",
        "pod ns/p: hami.io/given: slot 0: 'a' ('T') 4096 MiB, 25 cores, 'c' ('T') 0 MiB, 0 cores",
        "pod ns/p: hami.io/given: slot 1: 'b' ('T') 1 MiB, 2 cores",
    ]


def test_the_locks_owner_is_told() -> None:
    assert lines("2026-11-30T10:00:00Z,ns,p") == ["node n1: locked by ns/p since 2026-11-30T10:00:00Z"]


def test_what_does_not_parse_is_told_as_its_parsers_error() -> None:
    (lock, told) = lines("never,\x1b[31m", to="a,T,x,1:;")
    assert lock.startswith("node n1: lock: malformed")
    assert told.startswith("pod ns/p: hami.io/to: ")


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_annotation_breaks_out_of_its_line(lock: str, text: str) -> None:
    for line in lines(lock, to=text, given=text.replace(":", ",T,1,1:") + ";"):
        assert line.isprintable()
        assert line.isascii()
