"""What was done to a node, in order, with each answer: written as JSON lines, done again, compared.

The first line describes the node and what was to go wrong, every other one call. `replay` builds that node,
does the same and gives the trace of it: where nothing changed the two are equal byte for byte.
``gpusim replay FILE`` is the same as a command. Answers over 200 bytes are kept as length and SHA-256.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from os import strerror
from typing import Any

from gpusim.allocation import Allocation
from gpusim.errors import GpusimError
from gpusim.fixture import BadFixture, dump, loads
from gpusim.machine import Machine
from gpusim.nodes import Stat
from gpusim.process import DeviceRules, Handle, Process
from gpusim.spec import NodeSpec
from gpusim.testing.clock import Clock
from gpusim.testing.faults import OPERATIONS, Plan
from gpusim.testing.faulty import Faulty
from gpusim.view import Completed

VERSION = 1
LONG = 200
"""Bytes of an answer from which on only length and digest are kept."""
ACTIONS = (
    *("switch", "remove", "add", "unbind", "bind", "unload", "load", "reload"),
    *("reset", "hang", "recover", "fail_probe"),
    *("process", "move", "exit", "reap", "kill", "open", "use", "close"),
    *("allocate_vram", "free", "evict", "restore", "occupy"),
    *("delegate", "mknod", "describe"),
)
"""Calls besides the host's own that are written down; everything else passes unseen."""
_CALLS = frozenset((*OPERATIONS, *ACTIONS))


class BadTrace(GpusimError):  # noqa: N818 - the name callers read in `except`
    """A text that is no trace: which line, and why."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"trace line {line}: {why}")
        self.line = line
        self.why = why


class Recorder:
    """A machine, with a plan of faults if there is one, that remembers every call and its answer.

    Args:
        spec: the node.
        plan: what goes wrong.
        machine: a machine in the state `spec` describes; None: a new one. A subclass of `Machine` is
            recorded as it is, and replayed on `Machine` itself unless `replay` is told otherwise.

    Attributes:
        machine: behind the faults; what is done to it directly is not in the trace.
        clock: virtual time.
    """

    def __init__(self, spec: NodeSpec, plan: Plan = Plan(), *, machine: Any = None) -> None:  # noqa: B008 - a value
        self.spec, self.plan = spec, plan
        self.machine = Machine(spec) if machine is None else machine
        self.clock = Clock()
        self._host: Any = Faulty(self.machine, plan, clock=self.clock) if plan.faults else self.machine
        self._calls: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("_host", "_calls"):
            raise AttributeError(name)
        found = getattr(self._host, name)
        if name not in _CALLS:
            return found
        calls = self._calls

        def call(*args: Any, **named: Any) -> Any:
            try:
                answer = found(*args, **named)
            except Exception as error:
                calls.append((name, args, named, _Failed(_failure(error))))
                raise
            calls.append((name, args, named, answer))
            return answer

        self.__dict__[name] = call
        return call

    def __len__(self) -> int:
        return len(self._calls)

    def fork(self) -> Recorder:
        """An independent node in the same state; its trace begins with all of this one's."""
        twin = Recorder.__new__(Recorder)
        twin.spec, twin.plan = self.spec, self.plan
        twin._host = self._host.fork()
        twin.machine = twin._host.host if self.plan.faults else twin._host
        twin.clock = twin._host.clock if self.plan.faults else self.clock.fork()
        twin._calls = [*self._calls, ("fork", (), {}, None)]
        return twin

    def advance(self, seconds: float) -> None:
        """Let virtual time pass, and write that down."""
        self.clock.advance(seconds)
        self._calls.append(("advance", (seconds,), {}, None))

    def text(self) -> str:
        """The trace: JSON lines."""
        head = {
            "gpusim": "trace",
            "version": VERSION,
            "node": dump(self.spec),
            "faults": self.plan.to_json(),
        }
        lines = [head, *(_line(*call) for call in self._calls)]
        lines.append({"end": len(self._calls), "clock_ns": self.clock.nanoseconds, **self._sums()})
        return "".join(json.dumps(line) + "\n" for line in lines)

    def _sums(self) -> dict[str, str]:
        """Digests of what is left: a replay that answers alike must also end alike."""
        events = json.dumps(self.machine.events, sort_keys=True)
        state = json.dumps(self.machine.describe(), sort_keys=True)
        return {"events": _digest(events.encode()), "state": _digest(state.encode())}


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of a trace done again."""

    text: str
    """Its own trace."""
    calls: int
    line: int = 0
    """The first line that differs, counted from 1; 0: none."""
    was: str = ""
    now: str = ""

    @property
    def same(self) -> bool:
        """Whether it is byte for byte what was saved."""
        return not self.line


def replay(text: str, *, make: type[Machine] = Machine) -> Replay:
    """Do everything again that a trace tells, whatever is answered, and compare.

    Args:
        text: a trace.
        make: the machine to do it on.

    Raises:
        BadTrace: it is none, or asks for what this machine never gave (a pid, a handle).
    """
    lines = text.splitlines()
    recorder = _begin(lines, make)
    for number, line in enumerate(lines[1:], 2):
        entry = _entry(number, line)
        if "end" in entry:
            break
        recorder = _again(recorder, number, entry)
    else:
        raise BadTrace(len(lines) + 1, "the last line, with end, is missing: the trace was cut")
    again = recorder.text()
    news = again.splitlines()
    for number, (was, now) in enumerate(zip_longest(lines, news, fillvalue=""), 1):
        if was != now:
            return Replay(again, len(recorder), number, was, now)
    return Replay(again, len(recorder), 0 if again == text else len(lines))


def _begin(lines: Sequence[str], make: type[Machine]) -> Recorder:
    head = _entry(1, lines[0] if lines else "")
    if head.get("gpusim") != "trace" or not isinstance(head.get("node"), str):
        raise BadTrace(1, 'not a trace: it begins with {"gpusim": "trace", …}')
    if head.get("version") != VERSION:
        raise BadTrace(1, f"version {head.get('version')!r}; this program reads {VERSION}")
    try:
        spec, plan = loads(head["node"], path="trace"), Plan.from_json(head.get("faults", []))
        return Recorder(spec, plan, machine=make(spec))
    except BadFixture as error:
        raise BadTrace(1, f"its node: {error.key}: {error.why}") from error
    except GpusimError as error:
        raise BadTrace(1, str(error)) from error


def _entry(number: int, line: str) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise BadTrace(number, "not JSON") from None
    if not isinstance(value, dict):
        raise BadTrace(number, "not a JSON object")
    return value


def _again(recorder: Recorder, number: int, entry: Mapping[str, Any]) -> Recorder:
    """One call, done again; the recorder to go on with."""
    name, args, named = entry.get("do"), entry.get("args", []), entry.get("named", {})
    if not isinstance(args, list) or not isinstance(named, dict):
        raise BadTrace(number, "args is a list, named an object")
    if name == "fork":
        return recorder.fork()
    if not isinstance(name, str) or (name != "advance" and name not in _CALLS):
        raise BadTrace(number, f"nothing is called {name!r}")
    try:
        taken = [_thaw(value, recorder) for value in args]
        given = {key: _thaw(value, recorder) for key, value in named.items()}
        getattr(recorder, name)(*taken, **given)
    except _Unknown as error:
        raise BadTrace(number, f"{name}: {error}") from error
    except (OSError, GpusimError):
        pass  # an answer like any other: it is compared with the rest
    except Exception as error:
        raise BadTrace(number, f"{name}: its arguments make no sense: {error!r}") from error
    return recorder


@dataclass(frozen=True, slots=True)
class _Failed:
    """What a trace tells of an exception: the exception itself holds on to all frames it came through."""

    told: Any


def _line(name: str, args: tuple[Any, ...], named: dict[str, Any], answer: Any) -> dict[str, Any]:
    line: dict[str, Any] = {"do": name}
    if args:
        line["args"] = [_freeze(value) for value in args]
    if named:
        line["named"] = {key: _freeze(value) for key, value in named.items()}
    if isinstance(answer, _Failed):
        line["error"] = answer.told
    elif answer is not None:
        line["answer"] = _short(_freeze(answer))
    return line


def _failure(error: Exception) -> Any:
    if isinstance(error, OSError) and error.errno is not None:
        code = errno.errorcode.get(error.errno, str(error.errno))
        usual = error.strerror == strerror(error.errno)
        return {"errno": code, "path": error.filename} | ({} if usual else {"why": error.strerror})
    return {"type": type(error).__name__, "why": str(error)}


def _freeze(value: Any) -> Any:
    """A value as JSON; what lives on the machine by its number."""
    for kind, form in _FORMS:
        if isinstance(value, kind):
            return form(value)
    return value


_FORMS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (bytes, lambda value: {"bytes": value.decode("latin-1")}),
    (Process, lambda value: {"process": value.pid}),
    (Handle, lambda value: {"handle": value.number}),
    (Allocation, lambda value: {"allocation": value.number}),
    (DeviceRules, lambda value: {"rules": value.lines()}),
    (Stat, lambda value: [value.kind.name, f"{value.mode:o}", value.size, value.rdev]),
    (Completed, lambda value: [value.status, _freeze(value.stdout), _freeze(value.stderr)]),
    (Mapping, lambda value: {"object": {str(key): _freeze(inner) for key, inner in value.items()}}),
    (list | tuple, lambda value: [_freeze(inner) for inner in value]),
)


class _Unknown(Exception):  # noqa: N818 - inside this file
    """A trace names a process, handle or allocation that its machine never gave."""


def _thaw(value: Any, recorder: Recorder) -> Any:
    """The value of `_freeze`, on the recorder's machine."""
    if isinstance(value, list):
        return [_thaw(inner, recorder) for inner in value]
    if not isinstance(value, dict):
        return value
    ((key, inner),) = value.items()
    makers: dict[str, Callable[[], Any]] = {
        "bytes": lambda: inner.encode("latin-1"),
        "process": lambda: _living(recorder.machine.processes.get, Process, "pid", inner, recorder),
        "handle": lambda: _living(recorder.machine.processes.handle, Handle, "number", inner, recorder),
        "allocation": lambda: _living(recorder.machine.vram.get, Allocation, "number", inner, recorder),
        "rules": lambda: DeviceRules.parse(*inner),
        "object": lambda: {name: _thaw(part, recorder) for name, part in inner.items()},
    }
    return makers[key]()


def _living(find: Callable[[int], Any], kind: Any, key: str, number: int, recorder: Recorder) -> Any:
    """What has this number on the machine; of what has ended, as a caller that kept it, a copy."""
    try:
        return find(number)
    except GpusimError:
        for _, _, _, answer in reversed(recorder._calls):
            if isinstance(answer, kind) and getattr(answer, key) == number:
                return replace(answer, **_ENDED[key, kind])
        raise _Unknown(f"there was no {kind.__name__.lower()} {number!r}") from None


_ENDED: Mapping[tuple[str, Any], dict[str, Any]] = {
    ("pid", Process): {"alive": False, "files": {}},
    ("number", Handle): {"closed": True},
    ("number", Allocation): {"place": "freed", "pool": None},
}


def _short(value: Any) -> Any:
    text = json.dumps(value, sort_keys=True)
    return value if len(text) <= LONG else {"length": len(text), "sha256": _digest(text.encode())}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tree_text(machine: Machine) -> str:
    """The whole tree as root reads it, a JSON line each: path, kind, mode, and content, target or errno."""
    lines = []
    for path, node in machine.tree.every_file():
        entry: dict[str, Any] = {"path": path, "kind": node.kind.name, "mode": f"{node.mode:o}"}
        if node.kind.name == "LINK":
            entry["target"] = machine.readlink(path)
        elif node.kind.name == "CHARACTER":
            entry["rdev"] = machine.stat(path).rdev
        elif node.kind.name == "FILE":
            try:
                entry["content"] = machine.read(path).decode("latin-1")
            except OSError as error:
                entry["errno"] = errno.errorcode.get(error.errno or 0, "?")
        lines.append(json.dumps(entry))
    return "\n".join(lines) + "\n"
