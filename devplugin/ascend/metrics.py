"""What the plugin's process shows of NPUs and of soft containers' memory (ascend_ppu_hami.md B.8).

A container's numbers come from its ledger: totals are sums over the active processes, device by device, and
a file that cannot be believed has none (decision 48): `hami_vgpu_ledger_read_success` says so. The ledger's
index of a device is its rank by physical id among the devices of that container's own slot (decision 39).
Containers write their ledgers, so nothing in one is used as an index or a size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from devplugin import containerdirs
from devplugin.ascend import ledgerfile, smi
from devplugin.ascend.allocation import ordered
from devplugin.ascend.inventory import Inventory, Npu
from devplugin.ascend.ledgerfile import ContainerUse, NoLedgerError
from devplugin.ascend.runtimeinfo import vocabulary
from devplugin.ascend.settings import LEDGER, Settings
from devplugin.ascend.smi import Load, SmiError
from devplugin.hami import CodecError, Pod
from devplugin.host import Host
from devplugin.metered import Measured, Sample, Series

MIB = 1 << 20
_CARD = ("device_index", "device_uuid", "device_type")
_OWNER = ("namespace", "pod", "container")
_SHARE = (*_OWNER, "vdevice_index", "device_uuid")

HOST_USED = Series("hami_host_gpu_memory_used_bytes", "Memory in use on the card", _CARD)
HOST_BUSY = Series("hami_host_gpu_utilization_ratio", "AICore utilisation of the card, 0 to 100", _CARD)
USED = Series("hami_vgpu_memory_used_bytes", "Memory the container's processes have on the device", _SHARE)
LIMIT = Series("hami_vgpu_memory_limit_bytes", "Memory the container may have on the device", _SHARE)
BUSY = Series(
    "hami_container_device_utilization_ratio", "AICore utilisation of the whole card, 0 to 100", _SHARE
)
CONTEXT = Series("hami_vgpu_memory_context_bytes", "Not told apart by the ledger: 0", _SHARE)
MODULE = Series("hami_vgpu_memory_module_bytes", "Not told apart by the ledger: 0", _SHARE)
BUFFER = Series("hami_vgpu_memory_buffer_bytes", "Not told apart by the ledger: 0", _SHARE)
READ = Series(
    "hami_vgpu_ledger_read_success", "1: the container's ledger was read; 0: it has no numbers now", _OWNER
)
SERIES = (HOST_USED, HOST_BUSY, USED, LIMIT, BUSY, CONTEXT, MODULE, BUFFER, READ)
_CONSTANT = (CONTEXT, MODULE, BUFFER)


@dataclass(frozen=True, slots=True)
class _Container:
    """A soft container and what was read of it."""

    pod: Pod
    name: str
    npus: tuple[Npu, ...]
    """In the ledger's order."""
    use: ContainerUse | None

    @property
    def owner(self) -> tuple[str, str, str]:
        return self.pod.namespace, self.pod.name, self.name


def samples(host: Host, inventory: Inventory, settings: Settings, pods: Sequence[Pod] | None) -> Measured:
    """Everything now.

    Args:
        host: the node.
        inventory: its NPUs as last discovered.
        settings: where the containers' directories are.
        pods: of the node; None: not known, so that no container can be named.
    """
    problems: list[str] = []
    loads = _loads(host, inventory, problems)
    found = tuple(_containers(host, inventory, settings, pods or (), problems))
    used = _used(found)
    values = [*_cards(inventory, loads, used)]
    for one in found:
        values.append(Sample(READ, one.owner, float(one.use is not None)))
        values += _shares(one, loads)
    return Measured(tuple(values), tuple(problems))


def _loads(host: Host, inventory: Inventory, problems: list[str]) -> Mapping[tuple[int, int], Load]:
    if not inventory.npus:
        return {}
    try:
        return smi.loads(smi.ask(host, inventory.tool, "info"))
    except SmiError as error:
        problems.append(str(error))
        return {}


def _cards(
    inventory: Inventory, loads: Mapping[tuple[int, int], Load], used: Mapping[str, int]
) -> Iterator[Sample]:
    """The cards that npu-smi told of; what containers have counts for more than what it says (B.8)."""
    for npu in inventory.npus:
        load = loads.get((npu.card, npu.device))
        if load is None:
            continue
        labels = (str(npu.logic), npu.uuid, _type(npu.name))
        yield Sample(HOST_USED, labels, float(used.get(npu.uuid) or load.used_mib * MIB))
        yield Sample(HOST_BUSY, labels, float(load.busy))


def _type(name: str) -> str:
    return name if name.startswith(("Ascend-", "NVIDIA-")) else f"Ascend-{name}"


def _used(found: Sequence[_Container]) -> Mapping[str, int]:
    """UUID → bytes of all containers together."""
    total: dict[str, int] = {}
    for one in found:
        if one.use is not None:
            for npu, used in zip(one.npus, one.use.used, strict=False):
                total[npu.uuid] = total.get(npu.uuid, 0) + used
    return total


def _shares(one: _Container, loads: Mapping[tuple[int, int], Load]) -> Iterator[Sample]:
    if one.use is None:
        return
    for index, npu in enumerate(one.npus[: len(one.use.limits)]):
        labels = (*one.owner, str(index), npu.uuid)
        load = loads.get((npu.card, npu.device))
        yield Sample(USED, labels, float(one.use.used[index]))
        yield Sample(LIMIT, labels, float(one.use.limits[index]))
        yield Sample(BUSY, labels, float(load.busy if load else 0))
        for series in _CONSTANT:
            yield Sample(series, labels, 0.0)


def _containers(
    host: Host, inventory: Inventory, settings: Settings, pods: Sequence[Pod], problems: list[str]
) -> Iterator[_Container]:
    """Containers with a directory in use."""
    for path, pod, name in containerdirs.living(host, settings.containers, pods):
        npus = _npus(inventory, pod, name, problems)
        if npus is None:
            continue
        try:
            use = ledgerfile.read(host, f"{path}/{LEDGER}")
        except NoLedgerError as error:
            problems.append(f"pod {pod}, container {name}: {error}")
            use = None
        yield _Container(pod, name, npus, use)


def _npus(inventory: Inventory, pod: Pod, name: str, problems: list[str]) -> tuple[Npu, ...] | None:
    """The devices of a container's own slot, in the ledger's order; None when the records do not tell."""
    if inventory.chip is None:
        return None
    key = vocabulary(inventory.chip.word).allocated
    try:
        slot = containerdirs.devices(pod, key, name)
    except CodecError as error:
        problems.append(f"pod {pod}: {key}: {error}")
        return None
    npus = [npu for npu in map(inventory.npu, (device.id for device in slot)) if npu is not None]
    if len(npus) != len(slot):
        problems.append(f"pod {pod}: {key}: names devices that this node does not have any more")
        return None
    return ordered(npus)
