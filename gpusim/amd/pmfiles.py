"""amdgpu's own small files in the PCI directory: power states, counters, resets, isolation, firmware.

Sources: kernel.md 3; the captures apu-strixpoint-890m, rdna2-rx6900xt and rdna4-rx9070; drivers/gpu/drm/amd/
amdgpu/amdgpu_gfx.c, pm/amdgpu_pm.c. Left out, because nothing here can compute them: ``gpu_metrics`` and
``pm_metrics`` (binary tables of the firmware), ``pp_dpm_*``, ``pp_features``, ``pp_od_clk_voltage``,
``pp_power_profile_mode``, ``pp_table`` and ``gpu_od/`` (the firmware's own tables), ``vbios_version``,
``board_info``, ``ip_discovery/`` (the chip's table of blocks).
"""

from __future__ import annotations

import errno
import os
from types import MethodType

from gpusim.amd.gpu import Gpu, answers, not_resetting
from gpusim.amd.product import Product
from gpusim.kernel import Behaviour
from gpusim.nodes import Attr, Caller, Dir, Node

_QUEUES = "queue full \n"
_FULL = "full \n"
_MASKS = {
    # apu-strixpoint-890m: what can be reset by queue, and what only whole.
    "compute_reset_mask": _QUEUES,
    "gfx_reset_mask": _QUEUES,
    "jpeg_reset_mask": _QUEUES,
    "sdma_reset_mask": _FULL,
    "vcn_reset_mask": _QUEUES,
    "vpe_reset_mask": _FULL,
}
_LEVELS = ("auto", "low", "high", "manual")


def entries(gpu: Gpu, rules: Behaviour) -> dict[str, Node]:
    """The files of one GPU that amdgpu drives."""
    product = gpu.product
    idle = MethodType(answers, gpu)
    found: dict[str, Node] = {
        "fw_version": Dir(MethodType(_firmware, gpu)),
        "gpu_busy_percent": Attr("0\n", guard=idle),
        "mem_info_preempt_used": Attr("0\n"),
        "power_dpm_force_performance_level": _level(gpu),
    }
    if not small_apu(product):
        # apu-strixpoint-890m has none of the three.
        found["mem_busy_percent"] = Attr("0\n", guard=idle)
        found["pcie_replay_count"] = Attr("0\n", guard=idle)
    elif rules.reset_masks:
        found["vcn_busy_percent"] = Attr("0\n", guard=idle)
        found |= {name: Attr(text) for name, text in _MASKS.items()}
    if gpu.facts.hive_id:
        # kernel.md 3 has the name; xgmi_device_id beside it is a number of the firmware and left out.
        found["xgmi_physical_id"] = Attr(f"{gpu.facts.xgmi_physical}\n")
    if product.vram_vendor:
        found["mem_info_vram_vendor"] = Attr(f"{product.vram_vendor}\n")
    if product.gfx >= 100000:
        found |= _states(gpu)
    if rules.enforce_isolation:
        found |= _isolation(gpu)
    return found


def small_apu(product: Product) -> bool:
    """An APU of a desktop or laptop, not an MI300A."""
    return product.apu and not product.cpu_xgmi


def _firmware(gpu: Gpu) -> dict[str, Node]:
    """The two versions that KFD prints too; which others there are is a matter of the chip's blocks."""
    versions = {"mec": gpu.facts.fw_version, "sdma": gpu.facts.sdma_fw_version}
    return {f"{block}_fw_version": Attr(f"0x{version:08x}\n") for block, version in versions.items()}


def _states(gpu: Gpu) -> dict[str, Node]:
    """Power states of Radeons and small APUs: one, which is always the current one (all three captures)."""
    thermal = f"{gpu.bdf}: thermal throttling logging enabled, with interval 60 seconds\n"
    found: dict[str, Node] = {
        "power_dpm_state": Attr("performance\n"),
        "pp_cur_state": Attr("0\n"),
        "pp_force_state": Attr("\n"),
        "pp_num_states": Attr("states: 1\n0 default\n"),
        "thermal_throttling_logging": Attr(thermal),
    }
    if gpu.product.gfx < 110000:
        found |= {"pp_mclk_od": Attr("0\n"), "pp_sclk_od": Attr("0\n")}  # rdna2-rx6900xt, not the newer two
    return found


def _level(gpu: Gpu) -> Attr:
    show, store = MethodType(_level_is, gpu), MethodType(_set_level, gpu)
    return Attr(show, store, MethodType(not_resetting, gpu), mode=0o644)


def _level_is(gpu: Gpu) -> str:
    return f"{gpu.level}\n"


def _set_level(gpu: Gpu, data: bytes, _: Caller) -> None:
    wanted = data.decode("ascii", "replace").strip()
    if wanted not in _LEVELS:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    gpu.level = wanted


def _isolation(gpu: Gpu) -> dict[str, Node]:
    """One value per partition; `run_cleaner_shader` can only be written (kernel.md 3)."""
    shown = Attr(MethodType(_isolation_is, gpu), MethodType(_isolate, gpu), mode=0o644)
    found: dict[str, Node] = {"enforce_isolation": shown}
    if gpu.product.partitionable:
        found["run_cleaner_shader"] = Attr(None, MethodType(_clean, gpu), mode=0o200)
    return found


def _isolation_is(gpu: Gpu) -> str:
    return " ".join(str(value) for value in isolated(gpu)) + "\n"


def _isolate(gpu: Gpu, data: bytes, _: Caller) -> None:
    values = [_number(word) for word in data.split()]
    if len(values) != gpu.partitions or any(value not in (0, 1) for value in values):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    gpu.isolation = tuple(values)


def _clean(gpu: Gpu, data: bytes, _: Caller) -> None:
    if not 0 <= _number(data.strip()) < gpu.partitions:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def isolated(gpu: Gpu) -> tuple[int, ...]:
    """Whether each partition of the current mode isolates its processes."""
    return (*gpu.isolation, *(0,) * gpu.partitions)[: gpu.partitions]


def _number(word: bytes) -> int:
    try:
        return int(word, 10)
    except ValueError as error:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from error
