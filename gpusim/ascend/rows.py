"""The process slots of a mapped ledger: taking, writing, sweeping them, and the sums made of them.

Every function here wants the mapping's lock held. A store is one number; their order is what makes a writer
that is killed between any two of them harmless: what a slot says is complete before its pid appears and after
it is gone, and sums follow what they are made of (decision 47). Rows are named by the index of their first
64-bit word.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpusim.ascend.liveness import Alive
from gpusim.ascend.mapping import SEQ, Mapping
from gpusim.ascend.shm import MAX_DEVICES, V141

LIMIT, USED, RESERVED = (V141.fields[name].offset // 8 for name in ("limit", "used", "reserved"))
ACTIVE_WORKERS = V141.fields["active_workers"].offset // 4

_TABLE = V141.tables["procs"]
_FIRST, _END, _STRIDE = _TABLE.offset // 8, _TABLE.base(_TABLE.rows) // 8, _TABLE.stride // 8
# Of a row: 64-bit words, and 32-bit halves.
_START, ROW_USED, ROW_RESERVED = (_TABLE.fields[name].offset // 8 for name in ("start", "used", "reserved"))
_PID, _ACTIVE = (_TABLE.fields[name].offset // 4 for name in ("pid", "active"))

_REPORTS = V141.tables["reports"]
_REPORT_PID, _OCCUPIED = (_REPORTS.fields[name].offset // 4 for name in ("pid", "occupied"))


def pids(file: Mapping) -> list[int]:
    """Of all slots in order, 0 where nobody is registered."""
    found: list[int] = file.halves[_FIRST * 2 + _PID : _END * 2 : _STRIDE * 2].tolist()
    return found


def row_of(place: int) -> int:
    """First word of the slot at this place of the table."""
    return _FIRST + place * _STRIDE


def holds(file: Mapping, row: int, pid: int, start: int) -> bool:
    """Whether a row is this process's."""
    return bool(row >= 0 and file.halves[row * 2 + _PID] == pid and file.words[row + _START] == start)


def begin(file: Mapping) -> None:
    """From here to `recount` the file is between two states, and says so."""
    file.words[SEQ] |= 1


def recount(file: Mapping) -> None:
    """Make the sums anew from what the processes say, and end what `begin` or a killed writer began."""
    words = file.words
    for device in range(MAX_DEVICES):
        words[USED + device] = total(file, ROW_USED + device)
        words[RESERVED + device] = total(file, ROW_RESERVED + device)
    file.halves[ACTIVE_WORKERS] = sum(_occupied(file))
    words[SEQ] = (words[SEQ] | 1) + 1


def total(file: Mapping, word: int) -> int:
    """The sum of one word over all rows."""
    return sum(file.words[_FIRST + word : _END : _STRIDE])


def sweep(file: Mapping, spared: int, alive: Alive) -> dict[int, tuple[int, ...]]:
    """Empty the slots of dead processes on every device.

    Args:
        file: the ledger.
        spared: a pid that is not asked about: the caller's.
        alive: whether the process (pid, start) lives.

    Returns:
        What each had, bytes a device, by pid.
    """
    found: dict[int, tuple[int, ...]] = {}
    registered = pids(file)
    for pid in {*registered} - {0, spared}:
        row = row_of(registered.index(pid))
        if not alive(pid, file.words[row + _START]):
            begin(file)
            found[pid] = clear(file, row)
    if found:
        recount(file)
    return found


def clear(file: Mapping, row: int) -> tuple[int, ...]:
    """Empty a slot; what it had. Its pid goes after all else: until then the next sweeper finds it dead."""
    words, halves = file.words, file.halves
    halves[row * 2 + _ACTIVE] = 0
    had = []
    for device in range(MAX_DEVICES):
        used, reserved = row + ROW_USED + device, row + ROW_RESERVED + device
        had.append(words[used] + words[reserved])
        words[used] = 0
        words[reserved] = 0
    _end_workers(file, halves[row * 2 + _PID])
    halves[row * 2 + _PID] = 0
    words[row + _START] = 0
    return tuple(had)


def enter(
    file: Mapping, row: int, pid: int, start: int, *, used: Sequence[int], reserved: Sequence[int]
) -> None:
    """Register a process in an empty slot with what it has, bytes a device."""
    file.words[row + _START] = start
    write(file, row, used, reserved)
    file.halves[row * 2 + _PID] = pid
    file.halves[row * 2 + _ACTIVE] = 1


def write(file: Mapping, row: int, used: Sequence[int], reserved: Sequence[int]) -> None:
    """All that a process has."""
    for device in range(MAX_DEVICES):
        file.words[row + ROW_USED + device] = used[device]
        file.words[row + ROW_RESERVED + device] = reserved[device]


def store(file: Mapping, row: int, device: int, used: int, reserved: int) -> None:
    """What a process has on one device, now: its own words first, then the sums by the difference."""
    words = file.words
    mine, held, seq = row + ROW_USED + device, row + ROW_RESERVED + device, words[SEQ]
    more, more_held = used - words[mine], reserved - words[held]
    words[SEQ] = seq | 1
    if more:
        words[mine] = used
    if more_held:
        words[held] = reserved
    if more:
        words[USED + device] += more
    if more_held:
        words[RESERVED + device] += more_held
    words[SEQ] = (seq | 1) + 1


def take_report(file: Mapping, pid: int) -> int | None:
    """A worker's place among the reports, or None: all are taken."""
    free = next((place for place, taken in enumerate(_occupied(file)) if not taken), None)
    if free is not None:
        half = _REPORTS.base(free) // 4
        begin(file)
        file.halves[half + _REPORT_PID] = pid
        file.halves[half + _OCCUPIED] = 1
        recount(file)
    return free


def give_report(file: Mapping, place: int, pid: int) -> None:
    """The worker is done; nothing happens if the place is another process's by now."""
    half = _REPORTS.base(place) // 4
    if file.halves[half + _REPORT_PID] == pid:
        begin(file)
        file.halves[half + _OCCUPIED] = 0
        file.halves[half + _REPORT_PID] = 0
        recount(file)


def _reports(file: Mapping, half: int) -> list[int]:
    first, end, stride = (
        size // 4 for size in (_REPORTS.offset, _REPORTS.base(_REPORTS.rows), _REPORTS.stride)
    )
    found: list[int] = file.halves[first + half : end : stride].tolist()
    return found


def _occupied(file: Mapping) -> list[int]:
    return _reports(file, _OCCUPIED)


def _end_workers(file: Mapping, pid: int) -> None:
    """A process's workers go with it. `recount` counts who is left."""
    if pid:
        for place, owner in enumerate(_reports(file, _REPORT_PID)):
            if owner == pid:
                half = _REPORTS.base(place) // 4
                file.halves[half + _OCCUPIED] = 0
                file.halves[half + _REPORT_PID] = 0
