"""What ``-simulate`` of a device plugin names: a fixture to run here, or a machine served elsewhere.

Registered under the entry-point group ``devplugin.hosts``, so the plugin finds it without importing this
package.
"""

from __future__ import annotations

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
        GpusimError: no such fixture or an impossible one (`BadFixture`), or nobody listens (`NoServer`).
    """
    if argument.startswith(SOCKET):
        return connect(argument)
    from gpusim.machine import Machine

    return Machine(fixture.load(argument))


def connect(argument: str) -> RemoteMachine:
    """The served machine behind ``unix:SOCKET``.

    Raises:
        GpusimError: not of that form, or nobody listens there (`NoServer`).
    """
    path = argument.removeprefix(SOCKET)
    if path == argument or not path:
        raise GpusimError(
            f"{argument!r} is no served machine: expected {SOCKET}SOCKET, as in {SOCKET}/run/gpusim.sock; "
            "serve one with `gpusim serve FIXTURE --socket SOCKET`"
        )
    from gpusim.remote import RemoteMachine

    return RemoteMachine(path)
