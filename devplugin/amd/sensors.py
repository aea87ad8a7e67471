"""The files of a GPU that change by themselves: use, load, temperature, power.

Found from the DRM cards, the one directory tree the monitor has beside cgroups (amd.md 11). Which sensors
there are depends on the generation (kernel.md 3): MI300 and later have neither an edge temperature nor an
average power, so the junction's and the present power stand in (decision 35).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from devplugin.amd.uuid import is_bdf
from devplugin.host import Host, words

_CARD = re.compile(r"card([0-9]{1,7})")
_HWMON = re.compile(r"hwmon([0-9]{1,7})")
_NUMBER = re.compile(rb"-?[0-9]{1,20}")
"""What the kernel prints for a 64-bit number; longer ones do not fit a float either."""
_TEMPERATURE_LABEL = re.compile(r"temp([0-9]{1,3})_label")


@dataclass(frozen=True, slots=True)
class Card:
    """A DRM card of amdgpu on PCI."""

    bdf: str
    device: str
    """Path of its PCI directory, through the card's ``device`` link."""

    def still_there(self, host: Host) -> bool:
        """Whether the card leads to the same GPU now."""
        try:
            return _bdf(host, self.device) == self.bdf
        except OSError:
            return False


def cards(host: Host, drm_root: str, problem: Callable[[str], None]) -> Iterator[Card]:
    """The cards that amdgpu drives, in the order of their numbers.

    Partitions have cards of their own whose device is no PCI device: they have none of these files.
    """
    try:
        names = host.list(drm_root)
    except OSError as error:
        problem(f"{drm_root}: {words(error)}")
        return
    numbers = sorted(int(found[1]) for name in names if (found := _CARD.fullmatch(name)))
    for number in numbers:
        device = f"{drm_root}/card{number}/device"
        try:
            bdf = _bdf(host, device)
        except OSError:
            continue  # a card without device, or gone since
        if bdf is not None:
            yield Card(bdf, device)


def _bdf(host: Host, device: str) -> str | None:
    """The PCI address that a device's uevent tells; None when amdgpu does not drive it."""
    lines = host.read(f"{device}/uevent").decode("utf-8", "replace").splitlines()
    if "DRIVER=amdgpu" not in lines:
        return None
    slot = next((line for line in lines if line.startswith("PCI_SLOT_NAME=")), "")
    bdf = slot.removeprefix("PCI_SLOT_NAME=").lower()
    return bdf if is_bdf(bdf) else None


def read_number(host: Host, path: str, problem: Callable[[str], None] | None = None) -> int | None:
    """A file of one whole number; None, and told as a problem, when it cannot be read."""
    try:
        text = host.read(path).strip()
    except OSError as error:
        if problem is not None:
            problem(f"{path}: {words(error)}")
        return None
    if _NUMBER.fullmatch(text) is None:
        if problem is not None:
            problem(f"{path}: no number: {text[:40]!a}")
        return None
    return int(text)


def sensor_chips(host: Host, card: Card) -> list[str]:
    """Directories of its hwmon chips by number; the number itself means nothing (kernel.md 3)."""
    root = f"{card.device}/hwmon"
    numbers = sorted(int(found[1]) for name in _list(host, root) if (found := _HWMON.fullmatch(name)))
    return [f"{root}/hwmon{number}" for number in numbers]


def temperature_celsius(host: Host, chips: Sequence[str]) -> float | None:
    """The edge sensor (``temp1_input``) or, where a chip has none, its ``junction``; None without both."""
    for chip in chips:
        value = read_number(host, f"{chip}/temp1_input")
        if value is not None:
            return value / 1e3
    for chip in chips:
        for name in _list(host, chip):
            label = _TEMPERATURE_LABEL.fullmatch(name)
            if label is not None and _read(host, f"{chip}/{name}").strip() == b"junction":
                value = read_number(host, f"{chip}/temp{label[1]}_input")
                return None if value is None else value / 1e3
    return None


def power_watts(host: Host, chips: Sequence[str]) -> float | None:
    """``power1_average``, else ``power1_input``; None without either."""
    for chip in chips:
        for name in ("power1_average", "power1_input"):
            value = read_number(host, f"{chip}/{name}")
            if value is not None:
                return value / 1e6
    return None


def _list(host: Host, path: str) -> list[str]:
    try:
        return list(host.list(path))
    except OSError:
        return []


def _read(host: Host, path: str) -> bytes:
    try:
        return host.read(path)
    except OSError:
        return b""
