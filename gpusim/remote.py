"""The other end of `gpusim.serve`: a served machine with the same methods as one in this process.

Every thread has its own connection, so several may ask at the same time. A lost connection means that the
server ended, and its machine with it; the request then goes once to whoever serves the path now.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gpusim.allocation import Allocation
from gpusim.errors import GpusimError, NoServerError
from gpusim.nodes import Stat
from gpusim.process import DeviceRules, Handle, Process
from gpusim.remotecards import RemoteNpus, RemotePpus
from gpusim.wire import (
    PROTOCOL,
    Channel,
    GarbledError,
    Header,
    allocation_in,
    check_path,
    error_in,
    handle_in,
    process_in,
    rules_out,
    stat_in,
)

if TYPE_CHECKING:
    from gpusim.machine import Completed


class _Connections(threading.local):
    """Each thread's channel, and the process that made it: a forked child must not use its parent's."""

    channel: Channel | None = None
    pid: int = 0


class _Client:
    """Sends requests to whoever serves a path."""

    def __init__(self, path: str) -> None:
        check_path(path)
        self.path = path
        self._mine = _Connections()

    def ask(
        self, do: str, args: Header, caller: Header | None = None, body: bytes = b""
    ) -> tuple[Any, bytes]:
        """One request, one answer.

        Raises:
            OSError: what the machine answered, same errno, text and file name.
            GpusimError: the machine refused; `NoServerError` when nobody listens.
        """
        request = {"do": do, "args": args, "as": caller}
        answer = self._exchange(request, body) or self._exchange(request, body)
        if answer is None:
            raise NoServerError(f"{self.path}: the server hung up without an answer; {self._remedy()}")
        header, out = answer
        if "error" in header:
            raise error_in(header["error"])
        return header.get("value"), out

    def _exchange(self, request: Header, body: bytes) -> tuple[Header, bytes] | None:
        """None when the connection was lost: it is dropped, the next call makes a new one."""
        channel = self._channel()
        try:
            channel.send(request, body)
            answer = channel.receive()
        except (OSError, GarbledError):
            answer = None
        except BaseException:
            # Interrupted half-way (Ctrl-C): the answer still to come must not meet the next request.
            self.close()
            raise
        if answer is None:
            self.close()
        return answer

    def _channel(self) -> Channel:
        mine = self._mine
        if mine.channel is None or mine.pid != os.getpid():
            mine.channel, mine.pid = self._connect(), os.getpid()
        return mine.channel

    def _connect(self) -> Channel:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self.path)
        except OSError as error:
            connection.close()
            raise NoServerError(
                f"{self.path}: no simulated machine is served there ({error.strerror}); {self._remedy()}"
            ) from None
        channel = Channel(connection)
        try:
            channel.send({"do": "hello", "args": {"protocol": PROTOCOL}, "as": None})
            answer = channel.receive()
            if answer is None:
                raise GarbledError("it hung up")
            if "error" in answer[0]:
                raise error_in(answer[0]["error"])
        except (OSError, GpusimError) as error:
            channel.close()
            raise NoServerError(f"{self.path}: what listens there is no machine of ours: {error}") from None
        return channel

    def _remedy(self) -> str:
        return f"start one with: gpusim serve FIXTURE --socket {shlex.quote(self.path)}"

    def close(self) -> None:
        """Drop this thread's connection."""
        mine = self._mine
        if mine.channel is not None:
            with contextlib.suppress(OSError):
                mine.channel.close()
            mine.channel = None


class RemoteView:
    """A served node as one caller sees it: the plugin's three seams (host, files, runner)."""

    def __init__(self, client: _Client, caller: Header | None) -> None:
        self._client = client
        self._caller = caller

    def _ask(self, do: str, body: bytes = b"", /, **args: Any) -> tuple[Any, bytes]:
        return self._client.ask(do, args, self._caller, body)

    def read(self, path: str) -> bytes:
        """The whole content of a file."""
        return self._ask("read", path=path)[1]

    def write(self, path: str, data: bytes) -> int:
        """One write(2) to an existing file; the byte count."""
        return int(self._ask("write", data, path=path)[0])

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        names: list[str] = self._ask("list", path=path)[0]
        return names

    def readlink(self, path: str) -> str:
        """The text of a link; EINVAL when it is none."""
        return str(self._ask("readlink", path=path)[0])

    def stat(self, path: str, *, follow: bool = True) -> Stat:
        """What the path leads to; with ``follow=False`` the link itself."""
        return stat_in(self._ask("stat", path=path, follow=follow)[0])

    def probe(self, path: str, access: str = "rw") -> None:
        """Open a file or device node for ``r``, ``w`` or ``rw``, and close it again."""
        self._ask("probe", path=path, access=access)

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a whole new file over `path`."""
        self._ask("put", data, path=path, mode=mode)

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        """Make a directory and its parents; no error when it is there."""
        self._ask("mkdir", path=path, mode=mode)

    def rmdir(self, path: str) -> None:
        """Remove one empty directory; a cgroup without processes and children."""
        self._ask("rmdir", path=path)

    def unlink(self, path: str) -> None:
        """Remove one file."""
        self._ask("unlink", path=path)

    def rename(self, old: str, new: str) -> None:
        """Give a name to what had another; what had it is replaced at once."""
        self._ask("rename", old=old, new=new)

    def chmod(self, path: str, mode: int) -> None:
        """Set the permission bits of a file or directory."""
        self._ask("chmod", path=path, mode=mode)

    def symlink(self, target: str, path: str) -> None:
        """Make a symbolic link."""
        self._ask("symlink", target=target, path=path)

    def copy(self, source: str, target: str, mode: int) -> None:
        """Copy a file's bytes to `target`, as `put` does."""
        self._ask("copy", source=source, target=target, mode=mode)

    def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Completed:
        """Run a program of the node to completion."""
        from gpusim.machine import Completed

        (status, split), out = self._ask("run", stdin, argv=list(argv), timeout=timeout)
        return Completed(status, out[:split], out[split:])


class RemoteMachine(RemoteNpus, RemotePpus, RemoteView):
    """A served machine, seen by root, with the machine's actions.

    Processes and handles are copies; give them back to name what is meant. They live in the machine until
    `exit`, whatever becomes of this client.

    Args:
        path: the socket, as given to ``gpusim serve --socket``.

    Raises:
        NoServerError: nobody listens there.
        GpusimError: the path is over 107 bytes.
    """

    def __init__(self, path: str) -> None:
        client = _Client(path.removeprefix("unix:"))
        super().__init__(client, None)
        client.ask("hello", {"protocol": PROTOCOL})

    def view(
        self,
        uid: int = 0,
        gids: Iterable[int] = (),
        devices: DeviceRules | None = None,
        readonly: bool | Sequence[str] = False,
        cgroup: str | None = None,
    ) -> RemoteView:
        """The same node for another caller, as `gpusim.machine.Machine.view` describes it."""
        mounts = readonly if isinstance(readonly, bool) else list(readonly)
        caller: Header = {"uid": uid, "gids": list(gids), "devices": rules_out(devices)}
        return RemoteView(self._client, caller | {"readonly": mounts, "cgroup": cgroup})

    def switch(self, bdf: str, mode: str) -> None:
        """Write a GPU's compute partition mode. EBUSY, EINVAL, … as the file answers."""
        self._ask("switch", bdf=bdf, mode=mode)

    def process(
        self,
        devices: DeviceRules | None = None,
        uid: int = 0,
        gids: Iterable[int] = (),
        cgroup: str = "/",
    ) -> Process:
        """Start a process on the node, in a cgroup. ENOENT, EBUSY, EOPNOTSUPP."""
        args = {"devices": rules_out(devices), "uid": uid, "gids": list(gids), "cgroup": cgroup}
        return process_in(self._ask("process", **args)[0])

    def move(self, process: Process, cgroup: str) -> None:
        """Move a process to another cgroup; what it was charged stays. ENOENT, EBUSY, EOPNOTSUPP."""
        process.cgroup = self._ask("move", pid=process.pid, cgroup=cgroup)[0]

    def open(self, path: str, process: Process) -> Handle:
        """Let a process open a file and hold it."""
        handle = handle_in(self._ask("open", path=path, pid=process.pid)[0])
        process.files[handle.number] = handle
        return handle

    def close(self, handle: Handle) -> None:
        """Close what a process holds."""
        self._ask("close", number=handle.number)
        handle.closed = True

    def use(self, handle: Handle) -> None:
        """Do anything with an open device; ENODEV when it was unplugged since."""
        self._ask("use", number=handle.number)

    def exit(self, process: Process, *, reap: bool = True) -> None:
        """End a process and close what it holds; ``reap=False`` leaves a zombie."""
        self._ask("exit", pid=process.pid, reap=reap)
        process.alive = False
        process.files.clear()

    def reap(self, process: Process) -> None:
        """Wait for a zombie."""
        self._ask("reap", pid=process.pid)

    def kill(self, cgroup: str) -> None:
        """End every process in a cgroup and below it."""
        self._ask("kill", cgroup=cgroup)

    def delegate(self, cgroup: str, uid: int, gid: int = 0) -> None:
        """Give a cgroup to a user."""
        self._ask("delegate", cgroup=cgroup, uid=uid, gid=gid)

    def allocate_vram(
        self, process: Process, device: str | int, size: int, gtt_ok: bool = False
    ) -> Allocation:
        """Allocate VRAM as a process. ENOMEM, EBADF, EINVAL, ENODEV as of `Machine.allocate_vram`."""
        args = {"pid": process.pid, "device": device, "size": size, "gtt_ok": gtt_ok}
        return allocation_in(self._ask("allocate_vram", **args)[0])

    def free(self, allocation: Allocation) -> None:
        """Give an allocation back."""
        self._ask("free", number=allocation.number)
        allocation.place = "freed"

    def evict(self, allocation: Allocation) -> None:
        """Move an allocation to system memory; it is uncharged."""
        moved = allocation_in(self._ask("evict", number=allocation.number)[0])
        allocation.place, allocation.cgroup = moved.place, moved.cgroup

    def restore(self, allocation: Allocation, process: Process | None = None) -> None:
        """Move it back; `process` (default: its owner) is charged."""
        pid = None if process is None else process.pid
        moved = allocation_in(self._ask("restore", number=allocation.number, pid=pid)[0])
        allocation.place, allocation.cgroup = moved.place, moved.cgroup

    def occupy(self, process: Process, device: str | int, cus: int) -> None:
        """Say how many CUs of a partition run a process's waves."""
        self._ask("occupy", pid=process.pid, device=device, cus=cus)

    def remove(self, bdf: str) -> None:
        """Pull a GPU out."""
        self._ask("remove", bdf=bdf)

    def add(self, bdf: str) -> None:
        """Put a pulled GPU back."""
        self._ask("add", bdf=bdf)

    def unbind(self, bdf: str) -> None:
        """Take a GPU from its driver. ENODEV."""
        self._ask("unbind", bdf=bdf)

    def bind(self, bdf: str, driver: str = "amdgpu") -> None:
        """Give a GPU to a driver. ENODEV, EBUSY, ENOENT, and what the probe fails with."""
        self._ask("bind", bdf=bdf, driver=driver)

    def unload(self) -> None:
        """Unload amdgpu. EBUSY, ENOENT."""
        self._ask("unload")

    def load(self) -> None:
        """Load amdgpu. EEXIST."""
        self._ask("load")

    def reload(self) -> None:
        """Unload amdgpu and load it again: a memory mode asked for before holds then. EBUSY, ENOENT."""
        self._ask("reload")

    def reset(self, bdf: str) -> None:
        """Begin to reset a GPU, until `recover`."""
        self._ask("reset", bdf=bdf)

    def hang(self, bdf: str) -> None:
        """Let a GPU stop answering, until `recover`."""
        self._ask("hang", bdf=bdf)

    def recover(self, bdf: str) -> None:
        """End a reset or a hang."""
        self._ask("recover", bdf=bdf)

    def fail_probe(self, bdf: str, fails: bool = True) -> None:
        """Let amdgpu's next probes of a GPU fail, or not any more."""
        self._ask("fail_probe", bdf=bdf, fails=fails)

    def mknod(self, path: str, major: int, minor: int, mode: int = 0o666) -> None:
        """Make a device node, as a container runtime does."""
        self._ask("mknod", path=path, major=major, minor=minor, mode=mode)

    def describe(self) -> dict[str, Any]:
        """The node in one JSON-able object."""
        described: dict[str, Any] = self._ask("describe")[0]
        return described

    @property
    def events(self) -> Sequence[dict[str, Any]]:
        """What happened on the node, in order."""
        happened: Sequence[dict[str, Any]] = self._ask("events")[0]
        return happened

    def disconnect(self) -> None:
        """Drop this thread's connection; the next request makes a new one."""
        self._client.close()
