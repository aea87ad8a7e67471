"""What real daemons with the charts' own command lines ask of the API server is what the charts grant.

Each life has everything that asks for something: a registration, an Allocate, a refusal that is told as an
event, a lock whose owner is gone, and what the chart can turn on. Decision 56: whatever a role grants beside
is marked with its reason.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from devplugin import rights
from devplugin.hami import LOCK
from devplugin.ppu.words import HOST
from gpusim.cluster.apifaults import Fault
from gpusim.cluster.pods import Placed
from gpusim.fixture import load
from gpusim.machine import Machine
from gpusim.serve import serve

from ..devplugin.daemon.rig import NODE, Plugin, Rig, until
from .engine import AMD, ASCEND, PPU, container, needs_helm, objects, plugin, texts
from .roles import Grant, Role, roles

pytestmark = [needs_helm, pytest.mark.daemon]

GONE = "2026-01-01T00:00:00Z,default,gone"
"""A lock that the plugin asks about: is its owner still there?"""
ABSENT = Placed("no-such-device", "none", 1, 1)
PROGRAM = "import sys; from devplugin.launch import {0}; sys.exit({0}())"


class Life(Rig):
    """One plugin of a chart on a simulated node."""

    def __init__(self, name: str, fixture: str, resource: str, word: str, register: str) -> None:
        program = {AMD: "amd_device_plugin", ASCEND: "ascend_device_plugin", PPU: "ppu_device_plugin"}[name]
        super().__init__()
        self.name, self.resource, self.word, self.register = name, resource, word, register
        machine = Machine(load(fixture))
        if name == PPU:  # what nobody but the vendor has: without it a container is refused
            machine.mkdir(HOST)
            machine.put(f"{HOST}/libhggc.so", b"\x7fELF")
            machine.put(f"{HOST}/ld.so.preload", b"/ppu-hami-core/libhggc.so\n")
        self.server_of_machine = serve(machine, str(self.path / "machine.sock"))
        self.command = (
            *(sys.executable, "-c", PROGRAM.format(program)),
            *("-simulate", f"unix:{self.path}/machine.sock"),
        )

    def __enter__(self) -> Life:
        self.server_of_machine.start()
        super().__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self.server_of_machine.stop()

    def launch(self, given: Mapping[str, Any]) -> None:
        """Start it as the chart does, with the ConfigMaps laid where this process can read them."""
        document = plugin(self.name, given)
        pod = container(document)
        found = objects(self.name, given)
        maps = {
            one["name"]: found[("ConfigMap", one["configMap"]["name"])]["data"]
            for one in document["spec"]["template"]["spec"]["volumes"]
            if "configMap" in one
        }
        words = list(pod["args"])
        for mount in pod["volumeMounts"]:
            for key, text in maps.get(mount["name"], {}).items():
                (self.path / key).write_text(text)
                inside = mount["mountPath"] if "subPath" in mount else f"{mount['mountPath']}/{key}"
                words = [word.replace(inside, str(self.path / key)) for word in words]
        self.kubelet.start()
        env = {one["name"]: one["value"] for one in pod.get("env", ()) if "value" in one}
        self.start(*(word.replace("$(NODE_NAME)", NODE) for word in words), env=env)

    def ready(self) -> None:
        """Wait until it has registered."""
        until(lambda: self.kubelet.allocatable(self.resource), 20, lambda: str(self.plugins[-1].lines()[-5:]))
        until(lambda: self.node_annotation(self.register))

    def device(self) -> Placed:
        """The first one registered, whole."""
        one = json.loads(self.node_annotation(self.register) or "")[0]
        return Placed(one["id"], one["type"], one["devmem"], one["devcore"])

    def admit(self, name: str, slot: list[Placed]) -> bool:
        placed = self.schedule(name, slot, resource=self.resource, word=self.word)
        if self.name == ASCEND:  # the scheduler's second annotation of an NPU (ascend_ppu_hami.md D.1)
            runtime = json.dumps([{"UUID": one.id} for one in slot])
            placed = self.store.patch(
                "pods", name, {"metadata": {"annotations": {f"huawei.com/{self.word}": runtime}}}
            )
        return bool(self.kubelet.admit(placed).admitted)

    def beside(self, program: str, *words: str) -> None:
        """Start another daemon of the node."""
        env = {
            **dict.fromkeys(("NODE_NAME", "DS_NODE_NAME"), NODE),
            "KUBECONFIG": str(self.path / "kubeconfig"),
            "HOME": str(self.path),
        }
        line = (sys.executable, "-c", PROGRAM.format(program), *self.command[3:], *words)
        self.plugins.append(Plugin(line, env, self.path / "log"))

    def refuse(self, right: rights.Right) -> None:
        """Have the API server answer 403 to a verb, from now on."""
        resource, _, subresource = right.resource.partition("/")
        self.server.faults.add(
            Fault(verb=right.verb, resource=resource, subresource=subresource, code=403, times=None)
        )

    def asked(self) -> set[Grant]:
        """By this plugin alone: its name is in every request."""
        vendor = {AMD: "amd", ASCEND: "ascend", PPU: "ppu"}[self.name]
        return self.server.requests.verbs(f"{vendor}-device-plugin")


LIVES = {
    AMD: ("mi355x/spx-6.8", "amd.com/gpu", "amd", "hami.io/node-amd-register"),
    ASCEND: (
        "ascend/910b4-template",
        "huawei.com/Ascend910B4",
        "Ascend910B4",
        "hami.io/node-register-Ascend910B4",
    ),
    PPU: ("ppu/zw810e-8", "alibaba.com/ppu", "ppu", "hami.io/node-register-ppu"),
}
GIVEN: dict[str, dict[str, Any]] = {
    AMD: {"dp": {"reportNodeCapacity": True, "hostHookPath": "/nowhere"}},
    ASCEND: {"config": {"create": True}},
    PPU: {},
}


def role(name: str) -> Role:
    text = "\n---\n".join(text for path, text in texts(name, GIVEN[name]).items() if path == "rbac.yaml")
    (found,) = roles(text).values()
    return found


@pytest.mark.parametrize("name", [AMD, ASCEND, PPU])
def test_a_role_grants_what_its_plugin_is_recorded_to_ask_for_and_marks_the_rest(name: str) -> None:
    with Life(name, *LIVES[name]) as life:
        life.store.patch("nodes", NODE, {"metadata": {"annotations": {LOCK: GONE}}})
        life.launch(GIVEN[name])
        life.ready()
        until(lambda: life.node_annotation(LOCK) is None)
        assert life.admit("whole", [life.device()])
        assert not life.admit("refused", [ABSENT])
        until(lambda: ("events", "create") in life.asked())
        assert life.asked() == role(name).needed


@pytest.mark.parametrize(
    ("name", "daemon_set", "granted_by"),
    [
        (AMD, "amd-gpu-vgpu-monitor-daemonset", "rbac.yaml"),
        (PPU, "ppu-vgpu-device-plugin-monitor", "monitor-rbac.yaml"),
    ],
)
def test_a_monitor_asks_for_nothing_that_its_account_may_not(
    name: str, daemon_set: str, granted_by: str
) -> None:
    given = {"monitor": {"enabled": True}}
    (found,) = roles(texts(name, given)[granted_by]).values()
    words = container(objects(name, given)[("DaemonSet", daemon_set)])["args"]
    with Life(name, *LIVES[name]) as life:
        # On a port of its own: the chart's may be taken on this machine.
        life.beside("vgpu_monitor", *(word.replace("=:9394", "=127.0.0.1:0") for word in words))
        asked = until(lambda: len(verbs := life.server.requests.verbs("vgpu-monitor")) > 1 and verbs)
        assert asked == {(right.resource, right.verb) for right in rights.MONITOR}
        assert asked <= found.needed


REFUSALS = [
    (name, right) for name in LIVES for right in rights.PLUGIN if name == AMD or "/" not in right.resource
]
"""Every verb of every plugin; capacity is AMD's alone."""


@pytest.mark.parametrize(("name", "right"), REFUSALS, ids=str)
def test_a_verb_that_is_not_granted_is_named_with_its_resource_and_what_to_grant(
    name: str, right: rights.Right
) -> None:
    said = f"grant verb {right.verb!r} on {right.resource!r} in the plugin's ClusterRole"
    with Life(name, *LIVES[name]) as life:
        life.store.patch("nodes", NODE, {"metadata": {"annotations": {LOCK: GONE}}})
        life.refuse(right)
        life.launch(GIVEN[name])
        if str(right) in {"patch pods", "create events"}:  # not before a pod comes
            life.ready()
            until(lambda: life.node_annotation(LOCK) is None, 15)  # swept: its owner is gone
            life.admit("one", [life.device() if right.verb == "patch" else ABSENT])
        until(lambda: life.plugins[-1].said(said), 15, lambda: str(life.plugins[-1].lines()[-5:]))
        assert life.plugins[-1].process.poll() is None, "it goes on, and works when the role is mended"


@pytest.mark.parametrize(
    ("program", "words", "whose", "right"),
    [
        *(
            ("vgpu_monitor", "-vendor=ppu -metrics_bind_address=127.0.0.1:0", "monitor", right)
            for right in rights.MONITOR
        ),
        *(("node_labeller", "-vram", "labeller", right) for right in rights.LABELLER),
    ],
    ids=str,
)
def test_a_monitor_and_a_labeller_name_their_own_role(
    program: str, words: str, whose: str, right: rights.Right
) -> None:
    name = PPU if program == "vgpu_monitor" else AMD
    said = f"grant verb {right.verb!r} on {right.resource!r} in the {whose}'s ClusterRole"
    with Life(name, *LIVES[name]) as life:
        life.refuse(right)
        life.beside(program, *words.split())
        until(lambda: life.plugins[-1].said(said), 15, lambda: str(life.plugins[-1].lines()[-5:]))
        assert life.plugins[-1].process.poll() is None
