"""The node configuration: what one node does otherwise than the device configuration says.

The first entry with the node's exact name counts, and what it does not set it inherits (decision 43): an
entry that only names a number of shares does not turn soft mode off. Source: ascend_ppu_hami.md A.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from devplugin.configfile import MOST_SHARES, read


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What the file says of one node."""

    soft: bool | None = None
    """None: as the device configuration says."""
    count: int = 0
    """vDeviceCount; 0: as the device configuration says."""
    cards: frozenset[int] = frozenset()
    """filterDevices.index: card ids, neither logic nor physical ones."""
    uuids: frozenset[str] = frozenset()


class _Filter(Struct):
    index: list[int] | None = None
    uuid: list[str] | None = None


class _Node(Struct, rename="camel"):
    name: str
    hami_vnpu_core: bool | None = msgspec.field(default=None, name="hami-vnpu-core")
    v_device_count: Annotated[int, Meta(le=MOST_SHARES)] | None = None
    filter_devices: _Filter | None = None


class _File(Struct):
    nodes: list[_Node] | None = None


def parse(data: bytes, name: str) -> NodeConfig:
    """What the file says of the node `name`; nothing, when it does not name it.

    Raises:
        ConfigError: it cannot be read as one, wherever in it the mistake is.
    """
    entry = next((node for node in read(data, _File).nodes or () if node.name == name), None)
    if entry is None:
        return NodeConfig()
    filtered = entry.filter_devices or _Filter()
    return NodeConfig(
        soft=entry.hami_vnpu_core,
        count=max(entry.v_device_count or 0, 0),  # counts only above 0 (A.2)
        cards=frozenset(filtered.index or ()),
        uuids=frozenset(filtered.uuid or ()),
    )
