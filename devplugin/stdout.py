"""What a program prints and then ends: the exit status says whether it could be written."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO


def told(line: str) -> None:
    """One line on standard error. A reader who has seen enough (`2>&1 >file | head -n 1`) stops nothing."""
    with contextlib.suppress(OSError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def printed(text: str, prog: str, out: TextIO | None = None) -> int:
    """Print a line or more; the exit status.

    Args:
        text: what to print, without the last newline.
        prog: the program's name, for the one line on stderr.
        out: where to; None is standard output.

    Returns:
        0; also when the reader (`| head`) has seen enough. 1 when nothing can be written: stderr says why.
    """
    out = out or sys.stdout
    if out is None:  # how Python tells that descriptor 1 was closed when it started
        told(f"{prog}: standard output: is closed")
        return 1
    try:
        out.write(text + "\n")
        out.flush()
    except OSError as error:
        if out is sys.stdout:
            # What is still buffered goes nowhere, or the interpreter would complain of it at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        if isinstance(error, BrokenPipeError):
            return 0
        told(f"{prog}: standard output: {error.strerror}")
        return 1
    return 0
