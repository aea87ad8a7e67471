"""The processes of a simulated node: identity, device cgroup, and what each holds open.

Whether a partition switch is refused, and who is blocked, follows from what is open here
(kernel.md 2.1, 6). Nothing here walks files; `machine` opens through the tree and records the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from gpusim.errors import GpusimError

FIRST_PID = 1000


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """One line of a device allow list: character devices major:minor, with access letters of ``rwm``."""

    major: int | None
    """None: every major (``*``)."""
    minor: int | None
    access: str = "rwm"

    def __str__(self) -> str:
        major = "*" if self.major is None else self.major
        minor = "*" if self.minor is None else self.minor
        return f"c {major}:{minor} {self.access}"


@dataclass(frozen=True, slots=True)
class DeviceRules:
    """An allow list as container runtimes compile it into a BPF program for a v2 device cgroup.

    No rule: nothing is allowed. The absence of a program is ``None`` where a `DeviceRules` is expected.
    """

    rules: tuple[DeviceRule, ...] = ()

    @classmethod
    def parse(cls, *lines: str) -> DeviceRules:
        """From lines like ``c 226:128 rw``, ``c 226:* rw``, ``a`` (everything).

        Raises:
            GpusimError: a line that is no rule.
        """
        return cls(tuple(_rule(line) for line in lines))

    @classmethod
    def only(cls, *numbers: tuple[int, int]) -> DeviceRules:
        """Read and write on exactly these (major, minor), as a container with these devices has."""
        return cls(tuple(DeviceRule(major, minor, "rw") for major, minor in numbers))

    def lines(self) -> list[str]:
        """The list as `parse` takes it."""
        return [str(rule) for rule in self.rules]

    def allows(self, major: int, minor: int, access: str) -> bool:
        """Whether one rule alone covers the device and every letter of `access`.

        Runtimes emit one test per rule, so two rules that each give half do not add up.
        """
        return any(
            rule.major in (None, major)
            and rule.minor in (None, minor)
            and all(letter in rule.access for letter in access)
            for rule in self.rules
        )


def _rule(line: str) -> DeviceRule:
    fields = line.split()
    if fields == ["a"]:
        return DeviceRule(None, None)
    try:
        kind, number, access = fields
        major, minor = number.split(":")
        rule = DeviceRule(_number(major), _number(minor), access)
    except ValueError:
        raise GpusimError(f"device rule {line!r}: expected 'c MAJOR:MINOR rwm', * for any number") from None
    if kind != "c" or not access or set(access) - set("rwm"):
        raise GpusimError(f"device rule {line!r}: expected type c and access letters of rwm")
    return rule


def _number(text: str) -> int | None:
    if text == "*":
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


@dataclass(slots=True, eq=False)
class Handle:
    """One open file of a process; `number` is unique on the node and never reused."""

    number: int
    pid: int
    path: str
    """Canonical path at the time of opening."""
    rdev: tuple[int, int] | None
    """Device number; None for a file that is no device node."""
    release: Callable[[], None] | None = None
    """Called once, when it is closed."""
    closed: bool = False


@dataclass(slots=True, eq=False)
class Process:
    """One process of the node."""

    pid: int
    uid: int = 0
    gids: tuple[int, ...] = ()
    devices: DeviceRules | None = None
    """Its device cgroup; None: unrestricted, as on the host."""
    files: dict[int, Handle] = field(default_factory=dict)
    """Handle number → open handle, in order of opening."""
    alive: bool = True
    cgroup: str = "/"
    """Path of its cgroup: follows when it is moved, stays when it exits."""


class Processes:
    """All processes of one node. Pids and handle numbers count up from a start and are never reused.

    A process lives until `exit`, whoever made it: nothing here ends with a test, a client or a socket.
    """

    def __init__(self, first_pid: int = FIRST_PID) -> None:
        self._next_pid = first_pid
        self._next_handle = 1
        self._processes: dict[int, Process] = {}
        self._handles: dict[int, Handle] = {}
        self._zombies: dict[int, Process] = {}

    def __iter__(self) -> Iterator[Process]:
        return iter(list(self._processes.values()))

    def __len__(self) -> int:
        return len(self._processes)

    def get(self, pid: int) -> Process:
        """The live process of that pid.

        Raises:
            GpusimError: there is none.
        """
        try:
            return self._processes[pid]
        except KeyError:
            raise GpusimError(f"no process {pid} on this node (exited, or never started)") from None

    def handle(self, number: int) -> Handle:
        """The open handle of that number.

        Raises:
            GpusimError: there is none.
        """
        try:
            return self._handles[number]
        except KeyError:
            raise GpusimError(f"no open handle {number} on this node (closed, or never opened)") from None

    def zombie(self, pid: int) -> Process:
        """The exited process of that pid that nobody has waited for.

        Raises:
            GpusimError: there is none.
        """
        try:
            return self._zombies[pid]
        except KeyError:
            raise GpusimError(f"no zombie {pid} on this node") from None

    def spawn(
        self,
        *,
        uid: int = 0,
        gids: Iterable[int] = (),
        devices: DeviceRules | None = None,
        cgroup: str = "/",
    ) -> Process:
        """Start a process that holds nothing."""
        process = Process(self._next_pid, uid, tuple(gids), devices, cgroup=cgroup)
        self._next_pid += 1
        self._processes[process.pid] = process
        return process

    def exit(self, process: Process, *, reap: bool = True) -> None:
        """End a process: its files are closed in the order they were opened, as exit_files() does.

        Args:
            process: which.
            reap: False leaves a zombie, until `reap`.

        Raises:
            GpusimError: it has exited already, or belongs to another node.
        """
        process = self._mine(process)
        for handle in list(process.files.values()):
            self.close(handle)
        process.alive = False
        del self._processes[process.pid]
        if not reap:
            self._zombies[process.pid] = process

    def reap(self, process: Process) -> None:
        """Wait for a zombie.

        Raises:
            GpusimError: it is none.
        """
        if self._zombies.get(process.pid) is not process:
            raise GpusimError(f"process {process.pid} is no zombie of this node")
        del self._zombies[process.pid]

    def open(
        self,
        process: Process,
        path: str,
        rdev: tuple[int, int] | None = None,
        release: Callable[[], None] | None = None,
    ) -> Handle:
        """Record that `process` holds `path` open; the permission was asked before, of the tree.

        Raises:
            GpusimError: the process has exited, or belongs to another node.
        """
        process = self._mine(process)
        handle = Handle(self._next_handle, process.pid, path, rdev, release)
        self._next_handle += 1
        process.files[handle.number] = handle
        self._handles[handle.number] = handle
        return handle

    def close(self, handle: Handle) -> None:
        """Close a handle and run its release; closing twice is EBADF for a program, an error here.

        Raises:
            GpusimError: it is closed already, or belongs to another node.
        """
        if self._handles.get(handle.number) is not handle:
            raise GpusimError(f"handle {handle.number} on {handle.path} is not open on this node")
        del self._handles[handle.number]
        del self._processes[handle.pid].files[handle.number]
        handle.closed = True
        if handle.release is not None:
            handle.release()

    def holding(self, what: str | tuple[int, int]) -> list[Process]:
        """The processes that have a path (str) or a device (major, minor) open, by pid."""
        index = "path" if isinstance(what, str) else "rdev"
        pids = {handle.pid for handle in self._handles.values() if getattr(handle, index) == what}
        return [self._processes[pid] for pid in sorted(pids)]

    def fork(self) -> Processes:
        """An independent copy with the same pids and handle numbers.

        Release functions stay behind: they act on the node the files were opened on. State that depends
        on what is open must therefore ask `holding`, not count in release functions.
        """
        copy = Processes(self._next_pid)
        copy._next_handle = self._next_handle
        for process in self._processes.values():
            files = {
                number: Handle(number, handle.pid, handle.path, handle.rdev)
                for number, handle in process.files.items()
            }
            copy._processes[process.pid] = replace(process, files=files)
            copy._handles.update(files)
        copy._handles = dict(sorted(copy._handles.items()))
        copy._zombies = {pid: replace(zombie, files={}) for pid, zombie in self._zombies.items()}
        return copy

    def _mine(self, process: Process) -> Process:
        if self._processes.get(process.pid) is not process:
            raise GpusimError(f"process {process.pid} has exited or is not of this node")
        return process
