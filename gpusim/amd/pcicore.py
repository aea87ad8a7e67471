"""What Linux's PCI core shows of a device beyond its ids: masks, interrupts, CPUs, power, error counters.

Sources: the captures apu-strixpoint-890m and rdna2-rx6900xt; drivers/pci/pci-sysfs.c. Left out: what only
the firmware of a host knows (``config``, ``resource*``, ``rom``, ``link/``) and what only acts when it is
written (``remove``, ``rescan``, ``reset``).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpusim.nodes import Attr, Dir, Node
from gpusim.spec import Cpus

_FIRST_IRQ = 64
"""Interrupts of the host's own devices come before."""
_CORRECTABLE = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF")
_UNCORRECTABLE = (
    "Undefined",
    "DLP",
    "SDES",
    "TLP",
    "FCP",
    "CmpltTO",
    "CmpltAbrt",
    "UnxCmplt",
    "RxOF",
    "MalfTLP",
    "ECRC",
    "UnsupReq",
    "ACSViol",
    "UncorrIntErr",
    "BlockedTLP",
    "AtomicOpBlocked",
    "TLPBlockedErr",
    "PoisonTLPBlocked",
)
"""Names of PCIe advanced error reporting in the order they are counted (rdna2-rx6900xt)."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What the core knows of one device."""

    index: int
    """Place among the GPUs of the node."""
    driver: bool
    """A driver holds and has enabled it."""
    mask_bits: int
    """Width of the addresses it can reach."""
    inside: bool
    """In the processor's package: no slot, so no error reporting and no reset of its bus."""
    runtime_pm: bool = False
    """Its driver lets it sleep when idle."""
    boot_vga: bool | None = None
    """Whether firmware used this display; None: it is no VGA device."""


def entries(slot: Slot, cpus: Cpus, numa: int) -> dict[str, Node]:
    """The files.

    Args:
        slot: the device.
        cpus: the host's.
        numa: the device's NUMA node, below 0 when nobody knows.
    """
    irq = _FIRST_IRQ + slot.index
    low, high = local_cpus(cpus, numa)
    found: dict[str, Node] = {
        "ari_enabled": Attr("0\n"),
        "broken_parity_status": Attr("0\n"),
        "consistent_dma_mask_bits": Attr(f"{slot.mask_bits}\n"),
        "d3cold_allowed": Attr("1\n"),
        "dma_mask_bits": Attr(f"{slot.mask_bits}\n"),
        "driver_override": Attr("(null)\n"),
        "enable": Attr(f"{int(slot.driver)}\n"),
        "irq": Attr(f"{irq}\n"),
        "local_cpulist": Attr(f"{low}-{high}\n" if high > low else f"{low}\n"),
        "local_cpus": Attr(f"{mask(low, high, cpus.nodes * cpus.threads_per_node)}\n"),
        "msi_bus": Attr("1\n"),
        "power": Dir(lambda: power(sleeps=slot.runtime_pm)),
        "power_state": Attr("D0\n"),
    }
    if slot.driver:
        found["msi_irqs"] = Dir({f"{irq}": Attr("msi\n")})
    if not slot.inside:
        found |= {
            "aer_dev_correctable": Attr(_errors(_CORRECTABLE, "COR")),
            "aer_dev_fatal": Attr(_errors(_UNCORRECTABLE, "FATAL")),
            "aer_dev_nonfatal": Attr(_errors(_UNCORRECTABLE, "NONFATAL")),
            "reset_method": Attr("bus\n"),
        }
    if slot.boot_vga is not None:
        found["boot_vga"] = Attr(f"{int(slot.boot_vga)}\n")
    return found


def local_cpus(cpus: Cpus, numa: int) -> tuple[int, int]:
    """First and last CPU near the device: all of the host's when its NUMA node is not known.

    That CPUs are numbered node after node is inferred: captures with several nodes do not show it.
    """
    each = cpus.threads_per_node
    return (0, cpus.nodes * each - 1) if numa < 0 else (numa * each, numa * each + each - 1)


def mask(low: int, high: int, count: int) -> str:
    """CPUs `low` to `high` of `count` as the kernel prints a mask: hexadecimal, commas between 32 bits."""
    value = (1 << high + 1) - (1 << low)
    digits = f"{value:0{(count + 3) // 4}x}"
    head = len(digits) % 8
    parts = [digits[:head]] if head else []
    return ",".join(parts + [digits[at : at + 8] for at in range(head, len(digits), 8)])


def power(*, sleeps: bool = False) -> dict[str, Node]:
    """``power/`` of a PCI device: awake since boot, no wakeup source."""
    found: dict[str, Node] = {
        "autosuspend_delay_ms": Attr("5000\n" if sleeps else None, mode=0o644),
        "control": Attr("auto\n" if sleeps else "on\n", mode=0o644),
        "runtime_active_time": Attr("0\n"),
        "runtime_status": Attr("active\n"),
        "runtime_suspended_time": Attr("0\n"),
        "wakeup": Attr("disabled\n", mode=0o644),
    }
    # Statistics of a wakeup source that is not enabled: an empty line each (both captures).
    for name in ("abort_count", "active", "active_count", "count", "expire_count", "last_time_ms"):
        found[f"wakeup_{name}"] = Attr("\n")
    return found | {"wakeup_max_time_ms": Attr("\n"), "wakeup_total_time_ms": Attr("\n")}


def _errors(names: tuple[str, ...], what: str) -> str:
    return "".join(f"{name} 0\n" for name in names) + f"TOTAL_ERR_{what} 0\n"
