"""One machine on a unix socket, for many processes at the same time (design.md, rule 5).

A thread per connection, one lock around the machine: requests of all clients are answered one after the
other, each whole. Simulated processes and what they hold open live in the machine until they exit: a client
that goes away leaves them running, as a shell leaves a daemon.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gpusim.errors import GpusimError, SocketInUseError
from gpusim.wire import (
    PROTOCOL,
    Channel,
    Header,
    allocation_out,
    check_path,
    error_out,
    handle_out,
    process_out,
    rules_in,
    stat_out,
)

if TYPE_CHECKING:
    from gpusim.machine import Machine

_Args = dict[str, Any]
_Answer = tuple[Any, bytes]
_PROBE_SECONDS = 1.0
"""How long a socket's owner may take to accept before it counts as alive all the same."""


def serve(machine: Machine, path: str) -> Server:
    """A server for `machine`, not yet listening: `Server.start`, ``with``, or `Server.serve_forever`.

    Raises:
        GpusimError: the path is over 107 bytes.
    """
    return Server(machine, path)


class Server:
    """Serves one machine on one socket path."""

    def __init__(self, machine: Machine, path: str) -> None:
        check_path(path)
        self.machine = machine
        self.path = path
        self.lock = threading.RLock()
        """Held while a request is answered; whoever uses the machine beside the server takes it too."""
        self._listener: socket.socket | None = None
        # Absolute, so that it is found again after a chdir.
        self._file = Path(path).absolute()
        self._inode: int | None = None
        self._accepting: threading.Thread | None = None
        self._channels: dict[Channel, threading.Thread] = {}
        self._stopping = False
        self._wake: socket.socket | None = None

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    def start(self) -> Server:
        """Listen and answer in background threads.

        Raises:
            SocketInUseError: another live server owns the path.
            GpusimError: the path is something else than a socket, its directory is not there, or this
                server was started before.
        """
        if self._listener is not None or self._stopping:
            raise GpusimError(f"the server on {self.path} was started before: make a new one")
        try:
            with _directory_locked(self.path):
                _clear(self.path)
                self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._listener.bind(self.path)
                self._inode = self._file.lstat().st_ino
                self._listener.listen(128)
            self._accepting = threading.Thread(
                target=self._accept, args=(self._listener,), name=f"gpusim {self.path}", daemon=True
            )
            self._accepting.start()
        except BaseException as error:  # a signal may arrive at any of these lines: leave no socket behind
            stopped = self.stopped  # by the signal's handler, which closed what we were about to use
            self.stop()
            if not (stopped and isinstance(error, OSError)):
                raise
        return self

    def stop(self) -> None:
        """Answer what is being asked, close every connection, remove the socket. May be called twice."""
        if self._stopping:
            return
        self._stopping = True
        if self._wake is not None:
            self._wake.send(b"x")
        listener = self._listener
        if listener is not None:
            bound = bool(listener.getsockname())
            # shutdown makes the accept return; close alone would leave it waiting.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            if self._accepting is not None and self._accepting.ident is not None:
                self._accepting.join()
            listener.close()
            if bound:
                self._remove()
        for channel, thread in list(self._channels.items()):
            channel.finish()
            thread.join()

    def _remove(self) -> None:
        """Remove the socket file, unless somebody has removed ours and bound another since."""
        with contextlib.suppress(FileNotFoundError):
            if self._inode in (None, self._file.lstat().st_ino):
                self._file.unlink()

    def serve_forever(self) -> None:
        """Start, and return after `stop`, which a signal handler may call; stops on any exception, too."""
        # A socket pair and not an Event: writing to it from a signal handler cannot deadlock.
        self._wake, woken = socket.socketpair()
        with self._wake, woken:
            try:
                self.start()
                woken.recv(1)
            finally:
                self.stop()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._stopping:
                    return
                time.sleep(0.05)  # out of descriptors (EMFILE): those who are served may free some
                continue
            if self._stopping:
                connection.close()
                return
            channel = Channel(connection)
            thread = threading.Thread(target=self._converse, args=(channel,), daemon=True)
            self._channels[channel] = thread
            thread.start()

    def _converse(self, channel: Channel) -> None:
        """Answer one client until it leaves or talks nonsense."""
        try:
            with contextlib.suppress(GpusimError, OSError):
                while (frame := channel.receive()) is not None:
                    header, body = self._respond(*frame)
                    channel.send(header, body)
        finally:
            self._channels.pop(channel, None)
            channel.close()

    def _respond(self, request: Header, body: bytes) -> tuple[Header, bytes]:
        try:
            do = _METHODS.get(str(request.get("do")))
            if do is None:
                raise GpusimError(f"a served machine cannot {request.get('do')!r}")
            with self.lock:
                view = _seen_by(self.machine, request.get("as"))
                value, out = do(self.machine, view, request["args"], body)
        # Whatever goes wrong in the machine is told to the client who caused it; the others go on.
        except Exception as error:
            return {"error": error_out(error)}, b""
        return {"value": value}, out


def _seen_by(machine: Machine, caller: _Args | None) -> Any:
    if caller is None:
        return machine
    return machine.view(
        uid=caller["uid"],
        gids=tuple(caller["gids"]),
        devices=rules_in(caller["devices"]),
        readonly=caller["readonly"],
        cgroup=caller["cgroup"],
    )


# One function for each method of a machine: (machine, view of the caller, arguments, body) → (value, body).


def _hello(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    if args["protocol"] != PROTOCOL:
        raise GpusimError(f"this machine speaks protocol {PROTOCOL}, the client {args['protocol']}")
    return {"protocol": PROTOCOL}, b""


def _read(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    return None, view.read(args["path"])


def _write(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    return view.write(args["path"], body), b""


def _list(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    return list(view.list(args["path"])), b""


def _stat(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    return stat_out(view.stat(args["path"], follow=args["follow"])), b""


def _put(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    return view.put(args["path"], body, args["mode"]), b""


def _run(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    done = view.run(args["argv"], timeout=args["timeout"], stdin=body)
    return [done.status, len(done.stdout)], done.stdout + done.stderr


def _npu_smi_inside(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    done = machine.npu_smi_inside(**args)
    return [done.status, len(done.stdout)], done.stdout + done.stderr


def _ppu_smi_inside(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    done = machine.ppu_smi_inside(**args)
    return [done.status, len(done.stdout)], done.stdout + done.stderr


def _process(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    devices = rules_in(args["devices"])
    return process_out(machine.process(devices, args["uid"], tuple(args["gids"]), args["cgroup"])), b""


def _open(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    return handle_out(machine.open(args["path"], machine.processes.get(args["pid"]))), b""


def _close(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    machine.close(machine.processes.handle(args["number"]))
    return None, b""


def _use(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    machine.use(machine.processes.handle(args["number"]))
    return None, b""


def _exit(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    machine.exit(machine.processes.get(args["pid"]), reap=args["reap"])
    return None, b""


def _reap(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    machine.reap(machine.processes.zombie(args["pid"]))
    return None, b""


def _move(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    process = machine.processes.get(args["pid"])
    machine.move(process, args["cgroup"])
    return process.cgroup, b""


def _allocate_vram(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    process = machine.processes.get(args["pid"])
    made = machine.allocate_vram(process, args["device"], args["size"], args["gtt_ok"])
    return allocation_out(made), b""


def _free(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    machine.free(machine.vram.get(args["number"]))
    return None, b""


def _evict(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    allocation = machine.vram.get(args["number"])
    machine.evict(allocation)
    return allocation_out(allocation), b""


def _restore(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    allocation = machine.vram.get(args["number"])
    pid = args["pid"]
    machine.restore(allocation, None if pid is None else machine.processes.get(pid))
    return allocation_out(allocation), b""


def _occupy(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    machine.occupy(machine.processes.get(args["pid"]), args["device"], args["cus"])
    return None, b""


def _events(machine: Machine, view: Any, args: _Args, body: bytes) -> _Answer:
    return list(machine.events), b""


def _of_view(name: str) -> Callable[[Machine, Any, _Args, bytes], _Answer]:
    return lambda machine, view, args, body: (getattr(view, name)(**args), b"")


def _of_machine(name: str) -> Callable[[Machine, Any, _Args, bytes], _Answer]:
    return lambda machine, view, args, body: (getattr(machine, name)(**args), b"")


_ACTIONS = (
    *("switch", "remove", "add", "bind", "unbind", "load", "unload", "reload"),
    *("reset", "hang", "recover", "fail_probe", "mknod", "describe", "kill", "delegate"),
    *("ppu_health", "ppu_use", "ppu_vanish", "ppu_return", "ppu_unload", "ppu_load"),
    *("ppu_smi_fails", "ppu_smi_unknown"),
    *("npu_health", "npu_smi_fails", "npu_cut", "npu_release"),
)
_SEEN = ("readlink", "probe", "mkdir", "rmdir", "unlink", "copy", "rename", "symlink", "chmod")
_METHODS: dict[str, Callable[[Machine, Any, _Args, bytes], _Answer]] = {
    "hello": _hello,
    "read": _read,
    "write": _write,
    "list": _list,
    "stat": _stat,
    "put": _put,
    "run": _run,
    "ppu_smi_inside": _ppu_smi_inside,
    "npu_smi_inside": _npu_smi_inside,
    "process": _process,
    "open": _open,
    "close": _close,
    "use": _use,
    "exit": _exit,
    "reap": _reap,
    "move": _move,
    "allocate_vram": _allocate_vram,
    "free": _free,
    "evict": _evict,
    "restore": _restore,
    "occupy": _occupy,
    "events": _events,
    **{name: _of_view(name) for name in _SEEN},
    **{name: _of_machine(name) for name in _ACTIONS},
}


# The socket file


@contextlib.contextmanager
def _directory_locked(path: str) -> Iterator[None]:
    """Keep two servers that find the same stale socket from both taking it."""
    directory = Path(path).parent
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise GpusimError(f"{path}: no socket can be made in {directory}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _clear(path: str) -> None:
    """Remove a stale socket; refuse anything else that is there."""
    try:
        mode = Path(path).lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise GpusimError(f"{path}: exists and is no socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
        except OSError:
            pass  # busy, or not ours to ask: somebody's in any case
    raise SocketInUseError(f"{path}: another server is listening there; stop it or choose another path")
