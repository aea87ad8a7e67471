"""Lines on standard output, and one sentence when they cannot be written: disk full, descriptor closed."""

from __future__ import annotations

import os
import sys

from gpusim.errors import GpusimError


def say(line: str) -> None:
    """One line on stdout, at once.

    Raises:
        BrokenPipeError: the reader (`| head`) has seen enough.
        GpusimError: it cannot be written for another reason.
    """
    if sys.stdout is None:  # how Python tells that descriptor 1 was closed when it started
        raise GpusimError("standard output: is closed")
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        forget()
        raise GpusimError(f"standard output: {error.strerror}") from error


def is_terminal() -> bool:
    """Whether somebody looks at it; a closed one is none."""
    return sys.stdout is not None and sys.stdout.isatty()


def forget() -> None:
    """Let what is still buffered go nowhere, or the interpreter would complain of it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
