"""What a program prints and then ends: the exit status says whether it could be written."""

from __future__ import annotations

import os
import sys
from typing import TextIO


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
        sys.stderr.write(f"{prog}: standard output: is closed\n")
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
        sys.stderr.write(f"{prog}: standard output: {error.strerror}\n")
        return 1
    return 0
