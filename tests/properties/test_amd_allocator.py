"""Our AMD allocator under the machine that a stranger's gets: `PluginMachine` recounts what it gives.

A pod goes the whole way: placed by a scheduler that only counts, decided by `devplugin.plan`, recorded in its
annotations, and read back from what its container sees: environment, render nodes and dmem limit (amd.md 1.5,
5 and 7; decisions 21 and 29). GPUs are discovered on simulated nodes, partitioned ones too (decision 9).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from devplugin.amd import cumask
from devplugin.amd.inventory import Gpu, Inventory
from devplugin.amd.settings import Settings
from devplugin.amd.vendor import Amd
from devplugin.answers import ContainerEdits
from devplugin.hami import Pod
from devplugin.plan import Denied, Granted, Needs, plan
from gpusim.machine import Machine
from gpusim.spec import NodeSpec
from gpusim.testing import strategies
from gpusim.testing.machines import Broken, Device, PluginMachine, Request, Share

from ..devplugin.amd.builders import CU, locked_by, pod

MIB = 1 << 20
RELEASES = [("7.0", "in-tree"), ("7.2", "in-tree")]
"""Those whose amdgpu has a dmem region for every GPU."""
QUICK = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
HUNT = settings(QUICK, max_examples=200, phases=[Phase.generate], report_multiple_bugs=False)


@dataclass(frozen=True, slots=True)
class OfNode(Device):
    """A GPU as the machine sees it, and the inventory that it is in."""

    inventory: Inventory | None = None


def gpus_of(spec: NodeSpec) -> list[Device]:
    """What the plugin discovers and registers in CU mode, shared as whole GPUs."""
    inventory = Amd().discover(Machine(spec), CU, None)
    assert inventory.dmem.ok
    return [OfNode(gpu.id, gpu.vram_bytes // MIB, gpu.cus, inventory) for gpu in inventory.gpus]


class AmdAllocator:
    """The plugin, and the few lines of a scheduler that it cannot do without: where a pod's memory fits."""

    SETTINGS: ClassVar[Settings] = CU

    def __init__(self, devices: Sequence[OfNode]) -> None:
        self.devices = devices
        assert devices[0].inventory is not None
        self.inventory = devices[0].inventory
        self.gpus = {gpu.id: gpu for gpu in self.inventory.gpus}
        self.pods: dict[str, Pod] = {}
        self.placed: dict[str, tuple[tuple[str, ...], Request]] = {}

    def allocate(self, name: str, request: Request) -> list[Share] | None:
        """As `gpusim.testing.machines.Allocator`."""
        fitting = [device.id for device in self.devices if self.fits(device, request)]
        if len(fitting) < request.devices:
            return None
        chosen = tuple(fitting[: request.devices])
        text = ":".join(f"{one},AMD,{request.memory_mib},{request.cus}" for one in chosen)
        waiting = pod(f"{text};", name=name, bind_time=name.removeprefix("pod-"))
        decision = self.decide(waiting, request)
        if isinstance(decision, Denied):
            assert decision.why == "cores", decision.reason
            return None
        merged = {**waiting.annotations, **{k: v for k, v in decision.patch.items() if v is not None}}
        self.pods[name] = replace(waiting, annotations=merged, phase="Running")
        self.placed[name] = chosen, request
        return self.seen(self.pods[name], chosen, decision.allocation.edits)

    def free(self, name: str) -> None:
        """As `gpusim.testing.machines.Allocator`."""
        del self.pods[name], self.placed[name]

    def fits(self, device: Device, request: Request) -> bool:
        here = [wanted for chosen, wanted in self.placed.values() if device.id in chosen]
        return (
            sum(wanted.memory_mib for wanted in here) + request.memory_mib <= device.memory_mib
            and sum(wanted.cus for wanted in here) + request.cus <= device.cus
        )

    def decide(self, waiting: Pod, request: Request) -> Granted | Denied:
        facts: dict[Any, Any] = {}
        while True:
            decision = plan(
                Amd(),
                self.inventory,
                self.SETTINGS,
                node=locked_by(waiting),
                pods=[*self.pods.values(), waiting],
                ids=[f"any#{number}" for number in range(request.devices)],
                facts=facts,
            )
            if not isinstance(decision, Needs):
                return decision
            facts |= dict.fromkeys(decision.requests, True)

    def seen(self, served: Pod, chosen: Iterable[str], edits: ContainerEdits) -> list[Share]:
        """What the runtimes let the container use, and the kernel."""
        names = edits.envs["ROCR_VISIBLE_DEVICES"].split(",")
        masks = dict(part.split(":") for part in edits.envs["HSA_CU_MASK"].split(";"))
        paths = {node.path for node in edits.devices}
        given = [
            part
            for gpu in self.inventory.gpus
            for part in gpu.partitions
            if f"/dev/dri/renderD{part.render_minor}" in paths
        ]
        by_name = {str(rank): part for rank, part in enumerate(sorted(given, key=lambda part: part.node))}
        by_name |= {part.rocr_name: part for part in given if part.rocr_name}
        visible = {by_name[name]: masks[str(index)] for index, name in enumerate(names)}
        hooked = {
            by_name[name]: int(edits.envs[key].removesuffix("m"))
            for index, name in enumerate(names)
            if (key := f"HIP_DEVICE_MEMORY_LIMIT_{index}") in edits.envs
        }
        (limits,) = [
            cap.limits
            for cap in Amd().caps(self.inventory, self.SETTINGS, [*self.pods.values()]).pods
            if cap.pod is served
        ] or [{}]
        shares = []
        for gpu in map(self.gpus.__getitem__, chosen):
            share = self.memory(gpu, limits)
            counted = [hooked[part] for part in gpu.partitions if part in hooked]
            if counted:  # the same to each partition that it sees, together what it may have; never 0: none
                assert set(counted) == {max(1, share // len(counted))}
            cus = {
                number + sum(before.cus for before in gpu.partitions[: part.number])
                for part in gpu.partitions
                if part in visible
                for number in numbers(visible.pop(part), part.cus)
            }
            shares.append(Share(gpu.id, share, cus))
        assert not visible, "partitions of a GPU that the pod was not given"
        return shares

    @staticmethod
    def memory(gpu: Gpu, limits: Any) -> int:
        return int(limits.get(f"drm/{gpu.bdf}/vram", gpu.vram_bytes)) // MIB


def numbers(text: str, total: int) -> list[int]:
    mask = cumask.parse(text, total)
    return [number for number in range(total) if mask >> number & 1]


class OnCompute(PluginMachine):
    """Accelerators, in any partition mode."""

    make = AmdAllocator
    with_cus = True
    devices = strategies.nodes(
        products=["MI355X", "MI300X", "MI210"], max_gpus=3, releases=RELEASES, odd=False
    ).map(gpus_of)


class OnPairs(PluginMachine):
    """Cards that hand out work-group processors, of two units each."""

    make = AmdAllocator
    with_cus = True
    devices = strategies.nodes(
        products=["RX9070XT", "RX7900XTX"], max_gpus=2, releases=RELEASES, odd=False
    ).map(gpus_of)

    @property
    def requests(self) -> st.SearchStrategy[Request]:
        """Whole processors only: an odd unit more may not fit although it would, counted alone."""
        return super().requests.map(lambda request: replace(request, cus=request.cus + request.cus % 2))


class OnOddRequests(PluginMachine):
    make = AmdAllocator
    with_cus = True
    complete = False
    devices = OnPairs.devices


@pytest.mark.parametrize("machine", [OnCompute, OnPairs, OnOddRequests])
def test_our_allocator_gives_every_pod_what_it_asked_for_and_nothing_twice(
    machine: type[PluginMachine],
) -> None:
    run_state_machine_as_test(machine, settings=QUICK)


class Forgetful(AmdAllocator):
    """A plugin to whom nobody tells of the pods that run."""

    def decide(self, waiting: Pod, request: Request) -> Granted | Denied:
        running, self.pods = self.pods, {}
        try:
            return super().decide(waiting, request)
        finally:
            self.pods = running


class OnForgetful(OnCompute):
    make = Forgetful


def test_a_plugin_that_does_not_see_the_pods_there_are_is_caught() -> None:
    with pytest.raises(Broken) as caught:
        run_state_machine_as_test(OnForgetful, settings=HUNT)
    assert caught.value.invariant == "cus-apart"
