"""What `gpusim top` knows of a node: read from the kernel's own files, of a simulated node or a real one.

No plugin and no API server is asked: GPUs are those that amdgpu drives, partitions are KFD's nodes, processes
those KFD has contexts of, and pods are what kubelet's cgroups are named after. What cannot be read is
None. Sources: kernel.md 1 (KFD), 3 (PCI, hwmon), 4 (dmem), 5 (cgroup names); amdkfd/kfd_process.c for
``proc/<pid>/vram_<gpu_id>`` and ``stats_<gpu_id>/cu_occupancy``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

DRIVER = "/sys/bus/pci/drivers/amdgpu"
NODES = "/sys/class/kfd/kfd/topology/nodes"
PROCESSES = "/sys/class/kfd/kfd/proc"
CGROUPS = "/sys/fs/cgroup"

_BDF = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f])\.[0-7]")
_POD = re.compile(r"(?:.*-)?pod([0-9a-fA-F]{8}(?:[-_]?[0-9a-fA-F]{4}){3}[-_]?[0-9a-fA-F]{12})(?:\.slice)?")
_ABOVE = re.compile(r".*\.slice|docker-[0-9a-f]+\.scope|kubelet|kubepods|burstable|besteffort")
"""Groups below which pods' may be: kubelet's own, and those of a container that is a node."""
_CONTAINER = re.compile(r"(?:cri-containerd-|crio-|docker-|cri-dockerd-)?([0-9a-f]{64})(?:\.scope)?")
_DEEPEST = 8
_QOS = {"burstable": "Burstable", "besteffort": "BestEffort"}

Look = dict[str, Any]


class Files(Protocol):
    """The files of a node."""

    def read(self, path: str) -> bytes:
        """Content of a file."""
        ...

    def list(self, path: str) -> Sequence[str]:
        """Names in a directory."""
        ...


def look(files: Files) -> Look:
    """The node now, as plain values: ``gpus``, ``pods``, ``processes``, ``dmem``."""
    processes = list(_processes(files))
    nodes = list(_nodes(files))
    gpus = [_gpu(files, bdf, nodes, processes) for bdf in _list(files, DRIVER) if _BDF.fullmatch(bdf)]
    return {
        # Cards are numbered as they are probed, which is the order `gpusim show` counts in.
        "gpus": sorted(gpus, key=lambda gpu: (gpu["card"] is None, gpu["card"], gpu["bdf"])),
        "pods": _pods(files, processes, {node["gpu_id"]: node["slot"] for node in nodes}),
        "processes": processes,
        "dmem": "dmem" in (_text(files, f"{CGROUPS}/cgroup.controllers") or "").split(),
    }


# GPUs and partitions


def _gpu(files: Files, bdf: str, nodes: Sequence[Look], processes: Sequence[Look]) -> Look:
    home = f"{DRIVER}/{bdf}"
    slot = _slot(bdf)
    cards = [name for name in _list(files, f"{home}/drm") if re.fullmatch(r"card[0-9]+", name)]
    return {
        "bdf": bdf,
        "card": int(cards[0].removeprefix("card")) if cards else None,
        "product": _text(files, f"{home}/product_name") or _text(files, f"{home}/device"),
        "mode": _text(files, f"{home}/current_compute_partition"),
        "memory_mode": _text(files, f"{home}/current_memory_partition"),
        "vram_used": _number(files, f"{home}/mem_info_vram_used"),
        "vram_total": _number(files, f"{home}/mem_info_vram_total"),
        "busy_percent": _number(files, f"{home}/gpu_busy_percent"),
        **_sensors(files, f"{home}/hwmon"),
        "partitions": [_partition(node, processes) for node in nodes if node["slot"] == slot],
    }


def _partition(node: Look, processes: Sequence[Look]) -> Look:
    mine = [use for process in processes for use in process["uses"] if use["gpu_id"] == node["gpu_id"]]
    return {
        **{key: node[key] for key in ("node", "gpu_id", "render", "cus")},
        "vram_used": sum(use["vram"] for use in mine),
        "cus_occupied": sum(use["cus_occupied"] for use in mine),
    }


def _slot(bdf: str) -> tuple[int, int, int]:
    """Domain, bus, device: the function bits of a KFD node may be its partition's (kernel.md 1.5)."""
    found = _BDF.fullmatch(bdf)
    assert found is not None
    return int(found[1], 16), int(found[2], 16), int(found[3], 16)


def _nodes(files: Files) -> Iterator[Look]:
    """KFD's GPU nodes in order."""
    for name in sorted((name for name in _list(files, NODES) if name.isdecimal()), key=int):
        text = _text(files, f"{NODES}/{name}/properties") or ""
        lines = (line.split() for line in text.splitlines())
        values = {fields[0]: int(fields[1]) for fields in lines if len(fields) == 2 and fields[1].isdecimal()}
        gpu_id = _number(files, f"{NODES}/{name}/gpu_id")
        if not gpu_id or "location_id" not in values:
            continue
        location = values["location_id"]
        yield {
            "node": int(name),
            "gpu_id": gpu_id,
            "slot": (values.get("domain", 0), location >> 8 & 0xFF, location >> 3 & 0x1F),
            "render": values.get("drm_render_minor") or None,
            "cus": values.get("simd_count", 0) // (values.get("simd_per_cu") or 1),
        }


def _sensors(files: Files, hwmon: str) -> Look:
    """Edge or else junction temperature; average or else present power."""
    names = _list(files, hwmon)
    chip = f"{hwmon}/{names[0]}" if names else ""
    temperature = _number(files, f"{chip}/temp1_input")
    if temperature is None:
        labelled = (name for name in _list(files, chip) if re.fullmatch(r"temp[0-9]+_label", name))
        junction = next((name for name in labelled if _text(files, f"{chip}/{name}") == "junction"), None)
        if junction is not None:
            temperature = _number(files, f"{chip}/{junction.removesuffix('_label')}_input")
    power = _number(files, f"{chip}/power1_average")
    if power is None:
        power = _number(files, f"{chip}/power1_input")
    return {
        "celsius": None if temperature is None else temperature / 1e3,
        "watts": None if power is None else power / 1e6,
    }


# Processes and pods


def _processes(files: Files) -> Iterator[Look]:
    """Processes with a KFD context."""
    for pid in sorted((name for name in _list(files, PROCESSES) if name.isdecimal()), key=int):
        home = f"{PROCESSES}/{pid}"
        uses = [
            {
                "gpu_id": int(name[5:]),
                "vram": _number(files, f"{home}/{name}") or 0,
                "cus_occupied": _number(files, f"{home}/stats_{name[5:]}/cu_occupancy") or 0,
            }
            for name in _list(files, home)
            if name.startswith("vram_") and name[5:].isdecimal()
        ]
        cgroup = (_text(files, f"/proc/{pid}/cgroup") or "").partition("::")[2] or None
        yield {"pid": int(pid), "cgroup": cgroup, "pod": _pod_of(cgroup or ""), "uses": uses}


def _pod_of(cgroup: str) -> str | None:
    """The pod's uid in a cgroup path, the innermost where nodes are nested."""
    found = [match[1] for part in cgroup.split("/") if (match := _POD.fullmatch(part))]
    return found[-1].replace("_", "-") if found else None


def _pods(files: Files, processes: Sequence[Look], slots: dict[int, Any]) -> list[Look]:
    """Pods that have a cgroup, by uid."""
    found = []
    for path, uid in _pod_groups(files, "", _DEEPEST):
        used = _amounts(files, f"{CGROUPS}{path}/dmem.current")
        limit = _amounts(files, f"{CGROUPS}{path}/dmem.max")
        mine = [process for process in processes if process["pod"] == uid]
        asked: dict[tuple[int, int, int], int] = {}
        occupied: dict[tuple[int, int, int], int] = {}
        for use in (use for process in mine for use in process["uses"] if use["gpu_id"] in slots):
            slot = slots[use["gpu_id"]]
            asked[slot] = asked.get(slot, 0) + use["vram"]
            occupied[slot] = occupied.get(slot, 0) + use["cus_occupied"]
        gpus = {}
        for region in sorted({*used, *limit}):
            bdf = region.split("/")[1] if region.count("/") == 2 else ""
            if _BDF.fullmatch(bdf) and (
                used.get(region) or limit.get(region) is not None or asked.get(_slot(bdf))
            ):
                gpus[bdf] = {"used": used.get(region), "limit": limit.get(region)}
        for bdf in (name for name in _list(files, DRIVER) if _BDF.fullmatch(name)):
            slot = _slot(bdf)
            if bdf in gpus or asked.get(slot):
                known = gpus.setdefault(bdf, {"used": None, "limit": None})
                known |= {"processes_vram": asked.get(slot, 0), "cus_occupied": occupied.get(slot, 0)}
        found.append(
            {
                "uid": uid,
                "qos": next((name for word, name in _QOS.items() if word in path), "Guaranteed"),
                "cgroup": path,
                "containers": sorted(
                    match[1]
                    for name in _list(files, f"{CGROUPS}{path}")
                    if (match := _CONTAINER.fullmatch(name))
                ),
                "pids": [process["pid"] for process in mine],
                "gpus": gpus,
            }
        )
    return sorted(found, key=lambda pod: pod["uid"])


def _pod_groups(files: Files, path: str, depth: int) -> Iterator[tuple[str, str]]:
    for name in _list(files, f"{CGROUPS}{path}"):
        pod = _POD.fullmatch(name)
        if pod is not None:
            yield f"{path}/{name}", pod[1].replace("_", "-")
        elif depth and _ABOVE.fullmatch(name):
            yield from _pod_groups(files, f"{path}/{name}", depth - 1)


def _amounts(files: Files, path: str) -> dict[str, int | None]:
    """Region → bytes; None is ``max``. Empty without the file."""
    lines = (line.split() for line in (_text(files, path) or "").splitlines())
    return {
        fields[0]: int(fields[1]) if fields[1].isdecimal() else None for fields in lines if len(fields) == 2
    }


# Files


def _text(files: Files, path: str) -> str | None:
    try:
        return files.read(path).decode("utf-8", "replace").strip()
    except OSError:
        return None


def _number(files: Files, path: str) -> int | None:
    text = _text(files, path) or ""
    return int(text) if text.isascii() and text.isdecimal() else None


def _list(files: Files, path: str) -> Sequence[str]:
    try:
        return files.list(path)
    except OSError:
        return ()
