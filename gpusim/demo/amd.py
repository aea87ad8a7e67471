"""The play of an AMD node: a slice in cu mode, then a whole partition in partition mode."""

from __future__ import annotations

from typing import Any

from gpusim.cluster import pods
from gpusim.cluster.apiclient import ApiClient
from gpusim.demo.showing import admitted, registered, show_devices
from gpusim.demo.stage import NODE, Stage, allocatable, lay, node_and_cluster

REGISTER = "hami.io/node-amd-register"
CU_ALLOCATED = "hami.io/amd-cu-allocated"
SLICE_CORES = 25
"""Percent of a GPU's CUs that the sliced pod asks for."""
HOOK_PATH = "/usr/local"
HOOK = f"{HOOK_PATH}/vgpu/libamvgpu.so"


def run_pod(
    stage: Stage, api: ApiClient, name: str, limits: dict[str, int | str], device: pods.Placed
) -> None:
    """Create a pod, place it as a HAMi scheduler would, and show what its container receives."""
    api.create("pods", pods.pod(name, [pods.container("main", limits)]))
    pods.place(api, name, NODE, [[device]])
    stage.console.print(
        f"pod [bold]{name}[/bold] asks for {limits}; the scheduler chose {device.id}", highlight=False
    )
    admitted(stage, api, name, (CU_ALLOCATED,))


def plugin(stage: Stage, api: ApiClient, mode: str) -> list[dict[str, Any]]:
    """(Re)start the plugin in a mode and wait until scheduler and kubelet can see its devices."""
    env = {
        "NODE_NAME": NODE,
        "KUBECONFIG": str(stage.scratch / "kubeconfig"),
        "OPERATING_MODE": mode,
        "HOST_HOOK_PATH": HOOK_PATH,
    }
    sockets = ["-simulate", f"unix:{stage.scratch}/node.sock", "-kubelet_dir", f"{stage.scratch}/kubelet"]
    stage.start("plugin", "amd-device-plugin", *sockets, "-v", "2", env=env)

    def ready() -> list[dict[str, Any]] | None:
        devices = registered(api, REGISTER)
        slots = sum(d.get("count", 0) for d in devices)
        return devices if slots and allocatable(api, "amd.com/gpu") == slots else None

    devices: list[dict[str, Any]] = stage.until(f"the {mode} mode devices at kubelet and scheduler", ready)
    said = f"operating mode: {mode}"
    stage.until("the plugin's log", lambda: stage.logged("plugin", said))  # it is written in batches
    stage.console.print(f"plugin: [green]{said}[/green], amd.com/gpu: {allocatable(api, 'amd.com/gpu')}")
    show_devices(stage.console, REGISTER, devices)
    return devices


def act(stage: Stage, fixture: str) -> None:
    """The whole play."""
    console = stage.console
    api = node_and_cluster(stage, fixture)
    console.rule("cu mode: whole GPUs, sliced by compute units and memory")
    chosen = plugin(stage, api, "cu")[0]
    cores, memory = chosen["devcore"] * SLICE_CORES // 100, chosen["devmem"] // 4
    console.print(f"(slices mount the memory hook, so {HOOK} is laid on the simulated node)", highlight=False)
    lay(stage, HOOK, b"\x7fELF (stand-in)")
    limits: dict[str, int | str] = {
        "amd.com/gpu": 1,
        "amd.com/gpucores": SLICE_CORES,
        "amd.com/gpumem": memory,
    }
    run_pod(stage, api, "slice", limits, pods.Placed(chosen["id"], chosen["type"], memory, cores))

    console.rule("partition mode: each partition a device of its own")
    api.delete("pods", "slice", grace_seconds=0)
    stage.stop("plugin")
    devices = plugin(stage, api, "partition")
    if not devices[-1].get("mode"):
        console.print(
            f"{fixture} has no partitions (VF or consumer card): its GPUs stay soft in partition mode too"
        )
    last = devices[-1]
    whole = pods.Placed(last["id"], last["type"], last["devmem"], last["devcore"])
    run_pod(stage, api, "whole", {"amd.com/gpu": 1}, whole)
