"""Mounts a machine as a file system (FUSE), live: writing a mode switches the partition, errnos are real.

For whatever is not written in Python. The kernel asks us for every name and every byte: nothing is cached
(timeouts 0, direct_io), so a KFD node that vanished is gone at the next look.

What a mount cannot carry, libfuse and mfusepy being what they are (libraries.md, "What they really do"):

* A device node is shown as a **regular file** of its mode and owner: an open of a character device never
  reaches the file system, the kernel takes it to the *host's* driver. Opening that file opens the device of
  the node, by a process of the node that holds it until the file is closed; read and write answer EINVAL.
* The device cgroup of a caller cannot be known; user and groups are.
* A file that is held open while its node vanishes answers ENODEV, as kernfs does; held open over a vanishing
  *and* reappearing under the same name, it reads the new one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusim.errors import GpusimError
from gpusim.export.fuseops import Operations, Stub

if TYPE_CHECKING:
    from gpusim.machine import Machine
    from gpusim.remote import RemoteMachine

_SIGNALLED = 8
"""fuse_main of libfuse 3 after its loop was ended by a signal."""


class MountError(GpusimError):
    """The node cannot be mounted there."""


def mount(
    machine: Machine | RemoteMachine,
    directory: str | os.PathLike[str],
    *,
    stubs: Mapping[str, Stub] | None = None,
    ready: Callable[[], None] | None = None,
) -> None:
    """Mount `machine` on `directory` and serve it until it is unmounted or SIGINT, SIGTERM or SIGHUP comes.

    Call it in the main thread of a process that has nothing else to do: whoever in this process touches the
    mount while holding the interpreter lock (a vfork into it is enough) would wait for itself.

    Args:
        machine: a `Machine`, or a `RemoteMachine` of this thread.
        directory: an empty directory.
        stubs: further names, as mount points for something else.
        ready: called once, when the mount can be used.

    Raises:
        MountError: no mfusepy, no libfuse, no /dev/fuse, no permission; no such directory, or not empty.
    """
    where = os.fspath(directory)
    fuse = load()
    _check(where)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    main = threading.current_thread() is threading.main_thread()
    if main:
        # libfuse leaves alone what is not the default; its own handlers unmount.
        for number in before:
            signal.signal(number, signal.SIG_DFL)
    operations = Operations(machine, fuse.fuse_get_context, stubs=stubs, ready=ready)
    everybody = {"allow_other": True} if os.geteuid() == 0 else {}
    try:
        fuse.FUSE(
            operations,
            where,
            foreground=True,
            nothreads=True,
            fsname="gpusim",
            subtype="gpusim",
            direct_io=True,
            use_ino=True,
            hard_remove=True,
            entry_timeout=0,
            attr_timeout=0,
            ac_attr_timeout=0,
            negative_timeout=0,
            **everybody,
        )
    except RuntimeError as error:
        if error.args != (_SIGNALLED,):
            raise MountError(f"{where}: libfuse could not mount there; its reason stands above") from None
    finally:
        if main:
            for number, handler in before.items():
                signal.signal(number, handler)


def load() -> Any:
    """The FUSE bindings, if this machine can mount.

    Raises:
        MountError: what is missing, and what to install.
    """
    try:
        import mfusepy
    except ImportError:
        raise MountError("mounting needs the Python package mfusepy: pip install 'gpusim[mount]'") from None
    except OSError:
        raise MountError(
            "mounting needs libfuse, which is not installed: apt install fuse3 (or libfuse2)"
        ) from None
    if not Path("/dev/fuse").exists():
        raise MountError("mounting needs /dev/fuse, which is not here: load the kernel module fuse")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise MountError("mounting needs /dev/fuse, which this user may not open: run as root")
    return mfusepy


def _check(directory: str) -> None:
    try:
        present = sorted(entry.name for entry in Path(directory).iterdir())
    except OSError as error:
        raise MountError(f"{directory}: {error.strerror}; name an empty directory") from None
    if present:
        raise MountError(f"{directory}: is not empty (it holds {present[0]}); name an empty directory")
