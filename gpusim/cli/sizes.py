"""Bytes as people read them."""

from __future__ import annotations

_MIB = 1 << 20


def mib(size: int) -> str:
    """Whole MiB as such; of others one decimal, and bytes below 0.1 MiB."""
    if size % _MIB == 0:
        return f"{size // _MIB} MiB"
    return f"{size / _MIB:.1f} MiB" if size * 10 >= _MIB else f"{size} bytes"
