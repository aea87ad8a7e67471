"""The play of a PPU node: a slice that the runtime library limits, then a whole card if there is another."""

from __future__ import annotations

from typing import Any

from gpusim.demo.scheduled import Scene
from gpusim.demo.stage import Stage, lay, node_and_cluster

HOST = "/usr/local/ppu-hami-core"


def configuration() -> dict[str, Any]:
    """The device configuration with the chart's defaults (guide-ppu.md)."""
    return {
        "alibaba": {
            "resourceCountName": "alibaba.com/ppu",
            "resourceMemoryName": "alibaba.com/ppu-memory",
            "resourceMemoryPercentageName": "alibaba.com/ppu-memory-percentage",
            "resourceCoreName": "alibaba.com/gpu-core",
            "defaultMemory": 0,
            "defaultCores": 0,
            "defaultGPUNum": 1,
            "deviceSplitCount": 2,
            "deviceMemoryScaling": 1.0,
            "deviceCoreScaling": 1.0,
            "memoryFactor": 1,
            "gpuCorePolicy": "default",
            "overwriteEnv": False,
            "runtimeClassName": "",
        }
    }


def act(stage: Stage, fixture: str) -> None:
    """The whole play."""
    config = configuration()
    names = config["alibaba"]
    api = node_and_cluster(stage, fixture)
    scene = Scene(stage, api, config, "ppu", names["resourceCountName"])
    scene.open()
    stage.console.rule("slices: each card for two pods, limited by the runtime library")
    stage.console.print(f"(PPU-HAMi-core is laid at {HOST} on the simulated node)", highlight=False)
    lay(stage, f"{HOST}/libhggc.so", b"\x7fELF (stand-in)")
    lay(stage, f"{HOST}/ld.so.preload", b"/ppu-hami-core/libhggc.so\n", 0o644)
    devices = scene.plugin("ppu-device-plugin", "--config-file", str(scene.file), mode="slices")
    count, mib, core = (names[f"resource{part}Name"] for part in ("Count", "Memory", "Core"))
    scene.run("slice", {count: 1, mib: 24576, core: 25})
    if sum(bool(one.get("health")) for one in devices) > 1:  # the slice has a part of one
        stage.console.rule("a whole card")
        scene.run("whole", {count: 1, mib: 98304, core: 100})
