"""What ``-simulate`` of a device plugin names: a fixture to run here, or a machine served elsewhere.

Registered under the entry-point group ``devplugin.hosts``, so the plugin finds it without importing this
package.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpusim import fixture
from gpusim.errors import GpusimError

if TYPE_CHECKING:
    from gpusim.machine import Machine
    from gpusim.remote import RemoteMachine

SOCKET = "unix:"


def simulate(argument: str) -> Machine | RemoteMachine:
    """The host that `argument` names.

    Args:
        argument: ``unix:SOCKET`` of a served machine, or a fixture's path or name (``mi355x/qpx-6.14``).

    Raises:
        GpusimError: no such fixture or an impossible one (`BadFixture`), or nobody listens (`NoServerError`).
    """
    if argument.startswith(SOCKET):
        return connect(argument)
    from gpusim.machine import Machine

    return Machine(fixture.load(argument))


@contextlib.contextmanager
def simulated(argument: str) -> Iterator[Machine | RemoteMachine]:
    """`simulate` for the length of a ``with`` block; a connection is dropped at its end."""
    machine = simulate(argument)
    try:
        yield machine
    finally:
        _leave(machine)


@contextlib.contextmanager
def connected(argument: str) -> Iterator[RemoteMachine]:
    """`connect` for the length of a ``with`` block."""
    machine = connect(argument)
    try:
        yield machine
    finally:
        _leave(machine)


def _leave(machine: Machine | RemoteMachine) -> None:
    from gpusim.remote import RemoteMachine

    if isinstance(machine, RemoteMachine):
        machine.disconnect()


def connect(argument: str) -> RemoteMachine:
    """The served machine behind ``unix:SOCKET``.

    Raises:
        GpusimError: not of that form, or nobody listens there (`NoServerError`).
    """
    path = argument.removeprefix(SOCKET)
    if path == argument or not path:
        raise GpusimError(
            f"{argument!r} is no served machine: expected {SOCKET}SOCKET, as in {SOCKET}/run/gpusim.sock; "
            "serve one with `gpusim serve FIXTURE --socket SOCKET`"
        )
    from gpusim.remote import RemoteMachine

    return RemoteMachine(path)
