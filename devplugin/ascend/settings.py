"""What an operator may choose for the Ascend plugin, as one immutable value.

Resolved from the two configuration files, flags and environment (ascend_ppu_hami.md A.1, A.2; decisions 43
and 46). Which chip of the device configuration applies only the node's devices tell: that is the inventory's.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARED_REGION = "/usr/local/hami-shared-region"
"""Global registries of the runtime, one file per card; never emptied (decision 44)."""
ASSETS = "/usr/local/hami-vnpu-core-assets"
HOOK = "/usr/local/hami-vnpu-core"

LEDGER = "vnpu_local_shmem"
"""Name of the ledger in a soft container's directory: written by the runtime, read by us."""

MODE_SOFT = "hami-core"
MODE_TEMPLATE = "template"


@dataclass(frozen=True, slots=True)
class Template:
    """A fixed slice of a chip that the driver can cut: a row of A.3."""

    name: str
    """``vir05_1c_8g``."""
    memory_mib: int
    ai_cores: int
    ai_cpus: int


@dataclass(frozen=True, slots=True)
class ChipConfig:
    """One entry of the device configuration; numbers are advertised as configured, never measured (A.3)."""

    chip: str
    """chipName, as the tool's Name column has it behind ``Ascend``: ``910B4``, ``Ascend910`` for 910C."""
    word: str
    """commonWord: ``Ascend910B4``, in every annotation key, and the registered type."""
    resource: str
    """``huawei.com/Ascend910B4``."""
    allocatable_mib: int
    capacity_mib: int
    ai_cores: int
    ai_cpus: int
    templates: tuple[Template, ...] = ()
    """Ascending by memory."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Resolved choices; immutable for the life of the process."""

    node_name: str = ""
    chips: tuple[ChipConfig, ...] = ()
    """In the order of the file: the first whose `chip` is the node's applies."""
    soft: bool = False
    """hami-core mode: the node's containers are limited by the runtime library, not by templates."""
    soft_cores: int = 100
    """Percent of AICore a card registers in soft mode (A.4, deviceCoreScaling of A.2)."""
    count: int = 0
    """Shares of each card: vDeviceCount of this node, else in soft mode vnpuDeviceSplitCount; 0: as the
    templates say (A.2)."""
    filtered_cards: frozenset[int] = frozenset()
    """Card ids the node keeps for itself."""
    filtered_uuids: frozenset[str] = frozenset()
    hook_path: str = HOOK
    """HOOK_PATH, without a slash at the end: library, container directories and the monitor's root together
    (decision 44)."""
    assets_path: str = ASSETS
    """HAMI_VNPU_ASSETS_PATH: where the image has the library."""
    time_offset: int = 1
    """Seconds added to the time in the handshake."""
    idle_interval: float = 60.0
    """Seconds between idle-vNPU sweeps, above 0."""
    periodic: bool = False
    """Sweep idle vNPUs again and again; the sweep of the start is always done (decision 46)."""
    monitor_address: str = ":9395"
    """Where soft mode shows its containers' memory; empty: nowhere."""
    verbosity: int = 0

    @property
    def mode(self) -> str:
        """``hami-core`` or ``template``: the configuration's own words (A.2)."""
        return MODE_SOFT if self.soft else MODE_TEMPLATE

    @property
    def containers(self) -> str:
        """Host directory of the per-container directories, mounted at /hami-vnpu-shmem (A.7, decision 44)."""
        return f"{self.hook_path}/containers"
