"""The main job, from end to end, for somebody who has never seen it: `bin/demo [FIXTURE]`.

A fixture becomes a served machine; the AMD device plugin, a kubelet and an API server run beside it as
processes of their own, on real sockets. A pod gets a slice of a GPU in cu mode, then, with the plugin
restarted in partition mode, a pod gets a whole partition. Nothing here is a shortcut: every step is
what the tools of this project do when they are called by hand, and the commands are printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from gpusim.cluster import pods
from gpusim.cluster.apiclient import ApiClient
from gpusim.errors import GpusimError

BIN = Path(__file__).resolve().parent.parent / "bin"
NODE = "demo-node"
REGISTER = "hami.io/node-amd-register"
CU_ALLOCATED = "hami.io/amd-cu-allocated"
SLICE_CORES = 25
"""Percent of a GPU's CUs that the sliced pod asks for."""
HOOK_PATH = "/usr/local"
HOOK = f"{HOOK_PATH}/vgpu/libamvgpu.so"

DESCRIPTION = """\
Run the main job on a simulated node and show it: serve FIXTURE as a machine, start an API server, a kubelet
and the AMD device plugin as processes of their own, then allocate a sliced pod in cu mode and a
whole-partition pod in partition mode. Everything lives in a temporary directory and is gone afterwards.
"""


class DemoError(GpusimError):
    """A step did not come about; the text says which, and what the process concerned printed last."""


class Stage:
    """The processes of one run, their logs, and what to do when one of them dies."""

    def __init__(self, scratch: Path, console: Console) -> None:
        self.scratch = scratch
        self.console = console
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str, env: dict[str, str] | None = None) -> None:
        """Start a command of bin/ with its output in a log file, and show the line that does it."""
        shown = " ".join([*(f"{k}={v}" for k, v in (env or {}).items()), "bin/" + command[0], *command[1:]])
        self.console.print(
            f"[dim]$ {shown.replace(str(self.scratch), '$DIR')}[/dim]", soft_wrap=True, highlight=False
        )
        with (self.scratch / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(  # noqa: S603  # our own commands
                [str(BIN / command[0]), *command[1:]],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        """Ask a process to end, and make it after five seconds."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop_all(self) -> None:
        """End everything, the newest first."""
        for name in reversed(list(self._running)):
            self.stop(name)

    def until(self, what: str, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Wait for a condition's first true value; a process that died meanwhile ends the wait."""
        deadline = time.monotonic() + seconds
        with self.console.status(f"waiting for {what} …"):
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError, GpusimError):
                    if value := condition():
                        return value
                dead = next((n for n, p in self._running.items() if p.poll() is not None), None)
                if dead is not None:
                    raise DemoError(f"{dead} ended while waiting for {what}\n{self.tail(dead)}")
                time.sleep(0.05)
        raise DemoError(f"{what}: not within {seconds:g} s\n" + "\n".join(map(self.tail, self._running)))

    def tail(self, name: str) -> str:
        """The last lines of a process's log."""
        lines = (self.scratch / f"{name}.log").read_text(errors="replace").splitlines()[-8:]
        return "\n".join(f"  {name}: {line}" for line in lines)

    def logged(self, name: str, words: str) -> str | None:
        """The last log line of a process that holds these words."""
        lines = (self.scratch / f"{name}.log").read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if words in line), None)


def registered(api: ApiClient) -> list[dict[str, Any]]:
    """The devices in the node's register annotation; empty before the plugin wrote it."""
    annotations = api.get("nodes", NODE)["metadata"].get("annotations") or {}
    devices: list[dict[str, Any]] = json.loads(annotations.get(REGISTER, "[]"))
    return devices


def allocatable(api: ApiClient, resource: str = "amd.com/gpu") -> int:
    """What kubelet reports the node has of a resource."""
    return int((api.get("nodes", NODE).get("status", {}).get("allocatable") or {}).get(resource, 0))


def show_devices(console: Console, devices: list[dict[str, Any]]) -> None:
    """The registration as a scheduler reads it, long lists cut in the middle."""
    table = Table("id", "type", "mode", "shares", "VRAM MiB", "CU", "NUMA", "PCI address", title=REGISTER)
    shown = devices if len(devices) <= 10 else [*devices[:5], None, *devices[-3:]]
    for device in shown:
        if device is None:
            table.add_row(f"… {len(devices) - 8} more", *[""] * 7)
            continue
        table.add_row(
            device["id"],
            device["type"],
            device.get("mode", "-"),
            str(device.get("count", 0)),
            str(device.get("devmem", 0)),
            str(device.get("devcore", 0)),
            str(device.get("numa", 0)),
            device["custominfo"]["pciBDF"],
        )
    console.print(table)


def run_pod(
    stage: Stage, api: ApiClient, name: str, limits: dict[str, int | str], device: pods.Placed
) -> None:
    """Create a pod, place it as a HAMi scheduler would, and show what its container receives."""
    api.create("pods", pods.pod(name, [pods.container("main", limits)]))
    pods.place(api, name, NODE, [[device]])
    stage.console.print(
        f"pod [bold]{name}[/bold] asks for {limits}; the scheduler chose {device.id}", highlight=False
    )

    def settled() -> dict[str, Any] | None:
        found = api.get("pods", name)
        return found if found.get("status", {}).get("phase") in ("Running", "Failed") else None

    pod = stage.until(f"pod {name} to be admitted", settled)
    if pod["status"]["phase"] == "Failed":
        raise DemoError(
            f"pod {name} was rejected: {pod['status'].get('message', '')}\n{stage.tail('plugin')}"
        )
    edits = json.loads((stage.scratch / "pods" / f"default_{name}.json").read_text())
    table = Table("the container receives", "", show_header=True, title=f"pod {name}")
    for container in edits["containers"].values():
        for key, value in sorted(container["envs"].items()):
            table.add_row(key, value)
        for node in container["devices"]:
            table.add_row("device", f"{node['host_path']} ({node['permissions']})")
        for mount in container["mounts"]:
            table.add_row("mount", f"{mount['host_path']} → {mount['container_path']}")
    annotations = pod["metadata"]["annotations"]
    for key in (CU_ALLOCATED, pods.BIND_PHASE):
        if key in annotations:
            table.add_row(key, annotations[key])
    stage.console.print(table)


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
        devices = registered(api)
        slots = sum(d.get("count", 0) for d in devices)
        return devices if slots and allocatable(api) == slots else None

    devices: list[dict[str, Any]] = stage.until(f"the {mode} mode devices at kubelet and scheduler", ready)
    line = stage.logged("plugin", "operating mode:")
    stage.console.print(
        f"plugin: [green]operating mode: {mode}[/green], amd.com/gpu: {allocatable(api)}" if line else ""
    )
    show_devices(stage.console, devices)
    return devices


def act(stage: Stage, fixture: str) -> None:
    """The whole play."""
    console, scratch = stage.console, stage.scratch
    console.rule(f"a node: {fixture}")
    stage.start("machine", "gpusim", "serve", fixture, "--socket", f"{scratch}/node.sock")
    stage.start(
        "apiserver",
        "gpusim",
        "apiserver",
        "--port",
        "0",
        "--kubeconfig",
        f"{scratch}/kubeconfig",
        "--node",
        NODE,
    )
    stage.until("the machine's socket", (scratch / "node.sock").exists)
    stage.until("the API server's kubeconfig", (scratch / "kubeconfig").exists)
    cluster = yaml.safe_load((scratch / "kubeconfig").read_text())["clusters"][0]["cluster"]
    api = ApiClient(cluster["server"], agent="bin/demo")
    (scratch / "kubelet").mkdir()
    kubelet = ["--dir", f"{scratch}/kubelet", "--apiserver", api.url, "--node", NODE]
    stage.start("kubelet", "gpusim", "kubelet", *kubelet, "--pods-dir", f"{scratch}/pods")

    console.rule("cu mode: whole GPUs, sliced by compute units and memory")
    chosen = plugin(stage, api, "cu")[0]
    cores, memory = chosen["devcore"] * SLICE_CORES // 100, chosen["devmem"] // 4
    console.print(f"(slices mount the memory hook, so {HOOK} is laid on the simulated node)", highlight=False)
    lay_hook(scratch, HOOK)
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
    console.rule("done")


def lay_hook(scratch: Path, path: str) -> None:
    """Put a stand-in for the closed hook library on the simulated node, as the installer would."""
    from gpusim.remote import RemoteMachine

    machine = RemoteMachine(str(scratch / "node.sock"))
    machine.mkdir(path.rsplit("/", 1)[0])
    machine.put(path, b"\x7fELF (stand-in)", 0o555)


@contextlib.contextmanager
def stage_for(console: Console) -> Iterator[Stage]:
    """A stage in a temporary directory whose processes end with it, whatever happens."""
    with tempfile.TemporaryDirectory(prefix="gpusim-demo-") as scratch:
        stage = Stage(Path(scratch), console)
        try:
            yield stage
        finally:
            stage.stop_all()


def main(argv: list[str] | None = None) -> int:
    """`bin/demo`: 0 both pods were allocated, 1 a step failed, 2 usage, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="bin/demo", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "fixture",
        nargs="?",
        default="mi355x/qpx-6.14",
        metavar="FIXTURE",
        help="name or path (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 120)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with stage_for(console) as stage:
            act(stage, args.fixture)
    except GpusimError as error:
        print(f"bin/demo: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
