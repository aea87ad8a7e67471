"""What the simulator raises when the caller, not the simulated kernel, is at fault.

Anything a file operation answers is a plain `OSError` with the kernel's errno. Everything else that
goes wrong (an impossible node, no server on a socket) is a `GpusimError`, so one ``except`` is enough.
"""

from __future__ import annotations


class GpusimError(Exception):
    """Root of the simulator's own errors; the text names the object, the fault and the remedy."""


class NoServerError(GpusimError):
    """Nobody listens on the socket a `RemoteMachine` was pointed at."""


class SocketInUseError(GpusimError):
    """Another live server owns the socket path that `serve` was asked to use."""
