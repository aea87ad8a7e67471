"""The sensors of a GPU: ``hwmon/hwmon<M>`` in its PCI directory, and the links of /sys/class/hwmon.

Which files there are depends on the generation and is a row of `gpusim.amd.hwmonrows` (kernel.md 3: GC 9.4.3,
9.4.4 and 9.5.0 have neither an edge sensor nor an average power). ``M`` is arbitrary in Linux too.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from gpusim.amd.drmfs import depth
from gpusim.amd.gpu import Gpu, answers
from gpusim.amd.hwmonrows import readings
from gpusim.kernel import Behaviour
from gpusim.nodes import Attr, Dir, Link, Node

_FIRST = 2
"""Other chips of the host, its disks and processors, come before."""


def chip_name(gpu: Gpu) -> str:
    """``hwmon4``."""
    return f"hwmon{_FIRST + gpu.index}"


def entries(gpu: Gpu, rules: Behaviour) -> dict[str, Node]:
    """What is in the GPU's ``hwmon`` directory."""
    name = chip_name(gpu)
    up = depth(f"{gpu.home}/hwmon/{name}")
    found: dict[str, Node] = {
        "name": Attr("amdgpu\n"),
        "device": Link(f"../../../{gpu.bdf}"),
        "power": Dir(_power),
        "subsystem": Link(f"{up}class/hwmon"),
        "uevent": Attr("", mode=0o644),
    }
    for sensor, value in readings(gpu.product, rules).items():
        # Labels are texts of the driver; a reading has to be fetched.
        guard = None if sensor.endswith("_label") else partial(answers, gpu)
        found[sensor] = Attr(f"{value}\n", guard=guard)
    return {name: Dir(found)}


def class_entries(gpus: Iterable[Gpu]) -> dict[str, Node]:
    """Content of /sys/class/hwmon, as far as the chips are GPUs'."""
    return {
        chip_name(gpu): Link(f"../../{gpu.home.removeprefix('/sys/')}/hwmon/{chip_name(gpu)}")
        for gpu in gpus
        if gpu.bound
    }


def _power() -> dict[str, Node]:
    """``power/`` of a device without power management: the delay has no value, EIO (the Radeon captures)."""
    return {
        "autosuspend_delay_ms": Attr(None, mode=0o644),
        "control": Attr("auto\n", mode=0o644),
        "runtime_active_time": Attr("0\n"),
        "runtime_status": Attr("unsupported\n"),
        "runtime_suspended_time": Attr("0\n"),
    }
