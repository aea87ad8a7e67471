"""The names by which PPU's plugin, scheduler, driver and runtime library know things: one table.

Annotation keys are decision 52's; variables, nodes and paths decision 53's, from public third-party material
and, where nothing is public, ours: whoever learns better changes them here.
"""

from __future__ import annotations

from devplugin.hami import Vocabulary

VOCABULARY = Vocabulary(
    register="hami.io/node-register-ppu",
    to_allocate="hami.io/ppu-devices-to-allocate",
    allocated="hami.io/ppu-devices-allocated",
    handshake="hami.io/node-handshake-ppu",
)
DOMAIN = "alibaba.com"
TYPE = "PPU-"
"""Before the name of a card in its registered type, unless the name begins with it."""

# What a container's processes read.
MEMORY_LIMIT = "HGGC_DEVICE_MEMORY_LIMIT_"
"""Before the container's own index of a card; bare MiB."""
SM_LIMIT = "HGGC_DEVICE_SM_LIMIT"
"""Percent of every card of the container; always set; 0 and 100 limit nothing."""
LEDGER_PATH = "HGGC_LEDGER_PATH"

# Device nodes.
COMMON_NODES = ("/dev/alixpu", "/dev/alixpu_ctl", "/dev/alixpu_sep")
"""What every container with a PPU needs."""
NODE = "/dev/alixpu_ppu"
"""Before the minor of a card."""
NODE_ACCESS = "rwm"

# PPU-HAMi-core, on the host and inside.
HOST = "/usr/local/ppu-hami-core"
INSIDE = "/ppu-hami-core"
PRELOAD = "ld.so.preload"
PRELOAD_INSIDE = f"/etc/{PRELOAD}"
CONTAINERS = f"{HOST}/containers"
"""Where each container has a directory of its own, ``<pod UID>_<container>``."""
STATE_INSIDE = "/ppu-hami-shmem"
STATE = "ledger"
"""Name of the state file in that directory."""
ASSETS = "/usr/local/ppu-hami-core-assets"
"""Where our image has PPU-HAMi-core, when it was built with it (deploy/image)."""

PCI_VENDOR = "0x1ded"
"""Of every PPU (decision 54)."""
