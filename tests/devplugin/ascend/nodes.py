"""Ascend nodes, settings and configuration files as the tests of discovery and of the daemon want them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gpusim
from devplugin.ascend import deviceconfig, flags
from devplugin.ascend.discovery import discover
from devplugin.ascend.inventory import Inventory
from devplugin.ascend.settings import Settings
from devplugin.settings import GoParser, add_common_flags
from devplugin.vendor import SettingsInput
from gpusim.machine import Machine
from gpusim.spec import NodeSpec, NpuSpec

from ...conftest import ROOT
from ..asked import reader

CONFIG = ROOT / "deploy" / "examples" / "ascend-device-config.yaml"
DEVICES = deviceconfig.parse(CONFIG.read_bytes())
WORDS = (
    "Ascend910A",
    "Ascend910B2",
    "Ascend910B3",
    "Ascend910B4-1",
    "Ascend910B4",
    "Ascend310P",
    "Ascend910C",
)

PLACE = "/usr/local/Ascend/driver/tools/npu-smi"


def node(fixture: str = "910b4") -> Machine:
    """A simulated node of fixtures/ascend."""
    return Machine(gpusim.load(f"ascend/{fixture}"))


def some(count: int, chip: str = "910B4") -> Machine:
    """A node of so many cards, the first ones the same on every such node."""
    npus = tuple(NpuSpec(chip, f"0000:{0x10 + i:02x}:00.0") for i in range(count))
    return Machine(NodeSpec("n", "5.15.0-101-generic", npus=npus))


def chosen(**more: Any) -> Settings:
    """Settings with the example's chips."""
    return Settings(**{"node_name": "node-1", "chips": DEVICES.chips, **more})


def look(machine: Any, settings: Settings | None = None, previous: Inventory | None = None) -> Inventory:
    """One discovery."""
    return discover(machine, settings or chosen(), previous)


def given(
    words: str = "", env: Mapping[str, str] | None = None, files: Mapping[str, str | bytes] | None = None
) -> SettingsInput:
    """A command line with an environment and the files that can be read."""
    parser = GoParser("ascend-device-plugin", "")
    add_common_flags(parser)
    flags.add_flags(parser)
    args, surroundings = parser.parse_args(words.split()), env or {}
    name = args.node_name or surroundings.get("NODE_NAME", "")
    return SettingsInput(args, surroundings, None, name, reader(files or {}))
