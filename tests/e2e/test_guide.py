"""Rows of the vendor's configuration guide on a real daemon process, a kubelet and an API server.

guide-amd.md: exclude_gpus, device_memory_scaling, report_node_capacity, CDI, musl fail-closed, hip log level,
verbosity, hook installer. What each decides is tested with the decision; here is what the node shows.
"""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusim.cluster.pods import Placed, container, place, pod
from gpusim.export.render import render
from gpusim.fixture import load
from gpusim.machine import Machine

from ..devplugin.daemon.rig import NODE, Plugin, Rig, until
from ..devplugin.small_elf import glibc
from .test_kubelet_scenarios import AMD, GPU, REGISTER, Node

pytestmark = pytest.mark.daemon

HOOK = "/usr/local/vgpu/libamvgpu.so"
MEMORY, CORES = "amd.com/gpumem", "amd.com/gpucores"


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(mode="cu") as made:
        made.kubelet.start()
        yield made


def slice_of(node: Node, gpu: int = 0, cores: int = 32) -> list[Placed]:
    known = node.registered()[gpu]
    return [Placed(known["id"], known["type"], 4096, cores)]


def admitted(node: Node, name: str, slot: list[Placed]) -> Any:
    admission = node.admit(name, slot)
    assert admission.admitted, admission.message
    return admission.containers["c0"]


def again(node: Node, plugin: Plugin, *flags: str) -> Plugin:
    """The next life, as after a changed chart value."""
    assert plugin.end() == 0
    return node.start(*flags)


# ------------------------------------------------------------------ node capacity


def amounts(node: Node, name: str) -> tuple[str | None, str | None]:
    status = node.store.get("nodes", NODE).get("status", {})
    return tuple((status.get(key) or {}).get(name) for key in ("capacity", "allocatable"))  # type: ignore[return-value]


def test_capacity_is_published_in_both_lists_and_removed_by_the_next_life_without_it(node: Node) -> None:
    node.store.patch(
        "nodes",
        NODE,
        {"status": {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "7"}}},
        subresource="status",
    )
    plugin = node.start("-report_node_capacity")
    until(lambda: amounts(node, MEMORY) == (str(8 * 294896),) * 2)
    assert amounts(node, CORES) == (str(8 * 256),) * 2
    again(node, plugin)
    until(lambda: amounts(node, MEMORY) == (None, None))
    assert amounts(node, CORES) == (None, None)
    assert amounts(node, "cpu") == ("8", "7")


# ------------------------------------------------------------------ excluded GPUs


def test_when_every_gpu_is_kept_back_registration_and_list_are_cleared(node: Node) -> None:
    plugin = node.start()
    node.listed(80)
    addresses = [entry["custominfo"]["pciBDF"] for entry in node.registered()]
    plugin = again(node, plugin, "-exclude_gpus", " ".join(addresses))
    until(lambda: node.node_annotation(REGISTER) == "[]")
    assert node.kubelet.wait_for(lambda k: k.capacity(GPU) == 0 and k.allocatable(GPU) == 0)
    until(lambda: plugin.said(f"not offered: {addresses[0]}: excluded by -exclude_gpus={addresses[0]}"))


def test_some_are_kept_back_and_a_mistake_is_told(node: Node) -> None:
    plugin = node.start("-exclude_gpus=0000:05:00.0,card2,card99")
    assert node.kubelet.wait_for(lambda k: k.allocatable(GPU) > 0)
    until(lambda: plugin.said("-exclude_gpus: no GPU of this node is 'card99'"))
    left = {entry["custominfo"]["pciBDF"] for entry in node.registered()}
    assert "0000:05:00.0" not in left
    assert node.kubelet.capacity(GPU) == 10 * len(left)
    assert {identifier.partition("#")[0] for identifier in node.kubelet.devices(GPU)} == left


# ------------------------------------------------------------------ memory and the hook


def test_scaled_memory_is_registered_and_pods_with_the_hook_may_oversubscribe(node: Node) -> None:
    node.start("-device_memory_scaling=1.5", "-hip_log_level", "4")
    node.listed(80)
    assert {entry["devmem"] for entry in node.registered()} == {442344}
    envs = admitted(node, "slice", slice_of(node)).envs
    assert envs["HIP_OVERSUBSCRIBE"] == "true"
    assert envs["LIBHIP_LOG_LEVEL"] == "4"
    whole = admitted(node, "whole", node.gpus(1))
    assert not {"HIP_OVERSUBSCRIBE", "LIBHIP_LOG_LEVEL", "LD_AUDIT"} & set(whole.envs)


# ------------------------------------------------------------------ CDI

CDI = "/var/run/cdi"


def spec(node: Node) -> dict[str, list[str]]:
    content = json.loads(node.machine.read(f"{CDI}/amd.com-gpu.json"))
    return {
        device["name"]: [entry["path"] for entry in device["containerEdits"]["deviceNodes"]]
        for device in content["devices"]
    }


def test_the_file_is_there_when_the_list_is_and_containers_get_its_names(node: Node) -> None:
    plugin = node.start("-cdi_spec_dir", CDI)
    node.listed(80)
    known = spec(node)
    assert len(known) == 8
    edits = admitted(node, "p", slice_of(node))
    (name,) = edits.cdi_devices
    assert name.removeprefix("amd.com/gpu=") in known
    assert not edits.devices
    again(node, plugin)
    node.listed(80)
    edits = admitted(node, "q", slice_of(node))
    assert not edits.cdi_devices
    assert len(edits.devices) == 3
    assert spec(node) == known  # switched off, the file stays


def test_the_file_follows_the_devices(node: Node) -> None:
    node.start("-cdi_spec_dir", CDI, "-pulse=1")
    node.listed(80)
    node.machine.switch(node.registered()[0]["custominfo"]["pciBDF"], "cpx")
    until(lambda: len(spec(node)) == 15)


def test_a_file_that_cannot_be_written_is_one_warning_and_containers_get_device_nodes(node: Node) -> None:
    node.machine.mkdir("/var/run")
    node.machine.put(CDI, b"in the way")
    plugin = node.start("-cdi_spec_dir", CDI, "-pulse=1")
    node.listed(80)
    edits = admitted(node, "p", slice_of(node))
    assert not edits.cdi_devices
    assert len(edits.devices) == 3

    def told() -> list[dict[str, Any]]:
        return [
            line
            for line in plugin.lines()
            if "containers get device nodes" in line["event"] and line["level"] == "warning"
        ]

    until(told)
    node.machine.unlink(CDI)
    until(lambda: "cdi" in node.machine.list("/var/run") and len(spec(node)) == 8)
    assert len(told()) == 1


# ------------------------------------------------------------------ verbosity


def lines(plugin: Plugin, level: str) -> list[str]:
    return [line["event"] for line in plugin.lines() if line["level"] == level]


@pytest.mark.parametrize(
    ("verbosity", "topology", "decoded"), [(2, False, False), (4, True, False), (5, True, True)]
)
def test_verbosity_4_adds_topology_and_5_adds_annotations(
    node: Node, verbosity: int, topology: bool, decoded: bool
) -> None:
    plugin = node.start(f"-v={verbosity}")
    node.listed(80)
    placed = slice_of(node)
    admitted(node, "p", placed)
    until(lambda: plugin.said("pod default/p, slot 0"))
    shown = [line for line in lines(plugin, "debug") if line.startswith("topology: 0000:")]
    assert bool(shown) is topology
    read = [line for line in lines(plugin, "trace") if f"'{placed[0].id}'" in line and "slot 0" in line]
    assert bool(read) is decoded


# ------------------------------------------------------------------ the hook installer


def plugin(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*AMD, *words], capture_output=True, text=True, check=False, timeout=60, env={})


def test_the_hook_is_installed_and_the_program_exits(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "libamvgpu.so").write_bytes(b"\x7fELF hook")
    words = ("-root", str(tmp_path), f"-install_hook=/image/libamvgpu.so:{HOOK}")
    done = plugin(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{HOOK}: installed, sha256 ")
    target = tmp_path / HOOK[1:]
    assert target.read_bytes() == b"\x7fELF hook"
    assert target.stat().st_mode & 0o777 == 0o555
    assert plugin(*words).stdout.startswith(f"{HOOK}: up to date, ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/image/missing.so:/usr/local/vgpu/", "no hook library to install"),
        ("/image/empty.so:/usr/local/vgpu/", "empty"),
        ("relative:/usr/local/vgpu/", "use SRC:DST, two absolute paths"),
        ("/image/empty.so", "use SRC:DST, two absolute paths"),
    ],
)
def test_a_hook_that_cannot_be_installed_is_one_line_with_flag_and_value(
    tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "empty.so").touch()
    done = plugin("-root", str(tmp_path), "-install_hook", text)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"-install_hook='{text}': " in line
    assert why in line


# ------------------------------------------------------------------ musl fail-closed


class Checked(Rig):
    """A node of plain files with containerd's client, whose images are directories."""

    def __init__(self) -> None:
        super().__init__(AMD, {"OPERATING_MODE": "cu", "HOST_HOOK_PATH": "/usr/local"}, numa_nodes=range(8))
        machine = Machine(load("mi355x/spx-6.8"))  # no dmem there
        machine.mkdir("/usr/local/vgpu")
        machine.put(HOOK, b"\x7fELF")
        self.root.rmdir()
        render(machine, self.root)
        self.images = self.path / "images"
        self.images.mkdir()
        self.command = (*AMD, "-root", str(self.root))
        program = self.root / "opt" / "ctr"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            textwrap.dedent(f"""\
            #!/bin/sh
            test "$1 $2 $3 $4 $5" = "--namespace k8s.io --address /run/k3s.sock images" || exit 2
            shift 5
            image="{self.images}/$(echo "$3" | tr / _)"
            case "$1" in
            mount) cp -a "$image/." "{self.root}$4" 2>/dev/null || {{ echo "ctr: not found" >&2; exit 1; }} ;;
            unmount) rm -rf "{self.root}$3"/* ;;
            list) ls "{self.images}" | tr _ / ;;
            pull) mkdir -p "$image/lib"; touch "$image/lib/ld-musl-x86_64.so.1" ;;
            esac
            """)
        )
        program.chmod(0o755)

    def image(self, reference: str, files: dict[str, bytes]) -> None:
        folder = self.images / reference.replace("/", "_") / "lib64"
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)

    def admit(self, name: str, image: str) -> Any:
        known = json.loads(until(lambda: self.node_annotation(REGISTER)))[0]
        made = pod(name, [{**container("c0", {GPU: 1}), "image": image}])
        self.store.create("pods", made)
        slot = [Placed(known["id"], known["type"], 4096, 32)]
        return self.kubelet.admit(place(self.store, name, NODE, [slot]))


@pytest.fixture
def checked() -> Iterator[Checked]:
    with Checked() as made:
        made.kubelet.start()
        made.start("-musl_fail_closed", "-ctr_path=/opt/ctr", "-containerd_socket=/run/k3s.sock")
        made.kubelet.wait_for(lambda k: k.allocatable(GPU) == 80)
        yield made


def test_an_image_that_is_not_there_is_pulled_and_the_next_pod_learns_what_it_is(checked: Checked) -> None:
    first = checked.admit("first", "alpine:3.20")
    assert not first.admitted
    assert "image docker.io/library/alpine:3.20: image is not on the node yet" in first.message
    until((checked.images / "docker.io_library_alpine:3.20" / "lib" / "ld-musl-x86_64.so.1").exists)
    second = checked.admit("second", "alpine:3.20")
    assert not second.admitted
    assert "image docker.io/library/alpine:3.20: musl" in second.message
    assert [event["reason"] for event in checked.store.list("events")].count("AllocateRefused") == 2


def test_an_image_with_a_new_glibc_gets_the_hook(checked: Checked) -> None:
    files = {"libc.so.6": glibc(39), "ld-linux-x86-64.so.2": b""}
    checked.image("docker.io/rocm/pytorch:latest", files)
    admission = checked.admit("p", "rocm/pytorch")
    assert admission.admitted, admission.message
    assert admission.containers["c0"].envs["LD_AUDIT"] == HOOK
