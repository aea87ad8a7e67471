"""A block of the device configuration that the scheduler shares with the plugins, read key by key.

The text is ``device-config.yaml`` (ascend_ppu_hami.md A.2, C.2); here it is plain values already. Keys that
nobody asks for are passed over, because the file holds the blocks of all vendors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpusim.errors import GpusimError


class BadDeviceConfigError(GpusimError):
    """The device configuration cannot be used; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Block:
    """A mapping and where it stands (``vnpus.configs[0]``; empty for the whole file)."""

    path: str
    data: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.data, Mapping):
            raise BadDeviceConfigError(f"{self.path or 'the file'}: expected a mapping, got {self.data!r}")

    def text(self, key: str, default: str | None = None) -> str:
        """A word; one that must stand there when there is no default."""
        value = self._value(key, default)
        if not isinstance(value, str) or (default is None and not value):
            raise self._error(key, "a word", value)
        return value

    def number(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number of at least `least`."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._error(key, f"a whole number of at least {least}", value)
        return value

    def flag(self, key: str) -> bool:
        """True or false; false when it is not there."""
        value = self._value(key, False)
        if not isinstance(value, bool):
            raise self._error(key, "true or false", value)
        return value

    def block(self, key: str) -> Block:
        """A mapping below."""
        return Block(self._path(key), self.data.get(key, {}))

    def blocks(self, key: str) -> list[Block]:
        """A list of mappings below; none when it is not there."""
        value = self._value(key, [])
        if not isinstance(value, list):
            raise self._error(key, "a list", value)
        return [Block(f"{self._path(key)}[{i}]", one) for i, one in enumerate(value)]

    def _value(self, key: str, default: Any) -> Any:
        value = self.data.get(key)
        return default if value is None else value

    def _path(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _error(self, key: str, expected: str, got: Any) -> BadDeviceConfigError:
        shown = "nothing" if got is None else repr(got)
        return BadDeviceConfigError(f"{self._path(key)}: expected {expected}, got {shown}")
