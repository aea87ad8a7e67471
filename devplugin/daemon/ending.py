"""The one way a part of the daemon says that the process has to end."""

from __future__ import annotations


class Fatal(Exception):  # noqa: N818 - says what it is
    """The daemon cannot do its work and waiting does not help; the text is one line for the operator."""
