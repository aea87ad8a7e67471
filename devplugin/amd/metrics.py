"""What the monitor exports of an AMD node: each physical GPU, and each container's share of its VRAM.

GPUs are those of the node's register annotation, found among the DRM cards by PCI address. Memory of
containers is dmem's: one region a GPU, whatever partitions it has, so a container has one line for each
GPU it uses and that line names the device the pod holds there. All is read at the scrape; nothing is kept.
Names, labels and sources: amd.md 11; sensors and limits: decision 35; memory of partitions: kernel.md 4.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from devplugin.amd.devices import MIB
from devplugin.amd.registered import Registered, RegistrationError, read_registration
from devplugin.amd.sensors import Card, cards, power_watts, read_number, sensor_chips, temperature_celsius
from devplugin.amd.taken import VOCABULARY
from devplugin.amd.uuid import normal_bdf, strip_mode, whole_id
from devplugin.cgroups import amounts, scopes
from devplugin.hami import CodecError, ContainerDevice, Pod, decode
from devplugin.host import Host
from devplugin.metered import Measured, Sample, Series, Watched
from devplugin.quantity import quantity

_GPU = ("node", "device_index", "device_uuid", "device_type")
_CONTAINER = ("namespace", "pod", "container", "vdevice_index", "device_uuid")

HOST_USED = Series("hami_host_gpu_memory_used_bytes", "VRAM in use on a GPU, whoever uses it", _GPU)
HOST_TOTAL = Series("hami_host_gpu_memory_total_bytes", "VRAM of a GPU", _GPU)
HOST_BUSY = Series(
    "hami_host_gpu_utilization_ratio", "Share of time a GPU was busy, in percent (0 to 100)", _GPU
)
HOST_TEMPERATURE = Series("hami_host_gpu_temperature_celsius", "Edge or else junction temperature", _GPU)
HOST_POWER = Series("hami_host_gpu_power_usage_watts", "Average or else present power draw", _GPU)
USED = Series("hami_vgpu_memory_used_bytes", "VRAM a container has allocated on a GPU", _CONTAINER)
LIMIT = Series(
    "hami_vgpu_memory_limit_bytes",
    "Most VRAM a container may have on a GPU, where anything limits it",
    _CONTAINER,
)
SUCCESS = Series(
    "hami_vgpumonitor_collect_success",
    "1 when this scrape is complete, 0 when something is missing",
    ("node",),
)

SERIES = (HOST_USED, HOST_TOTAL, HOST_BUSY, HOST_TEMPERATURE, HOST_POWER, USED, LIMIT, SUCCESS)

_RESOURCES = "amd.com/"
_MEMORY = "amd.com/gpumem"
"""MiB on each GPU of the container (amd.md 17)."""
_REGION = re.compile(r"drm/([^/]+)/[^/]+")
_STATIC = "kubernetes.io/config.hash"
"""Annotation of a static pod: kubelet names its cgroup by this, not by the uid the API server knows."""


def samples(host: Host, watched: Watched) -> Measured:
    """Everything of one scrape.

    Complete unless the registration is missing or unreadable (then there is nothing else), the pods could
    not be listed, a file that every GPU has cannot be read, or a container has memory on a GPU that is not
    registered. Whatever else can be read is there.
    """
    problems = list(watched.problems)
    found: list[Sample] = []
    try:
        if watched.registration is None:
            raise RegistrationError(
                f"{VOCABULARY.register}: "
                + ("not known" if watched.problems else f"node {watched.node} has no such annotation")
            )
        gpus = read_registration(watched.registration)
    except RegistrationError as error:
        problems.append(str(error))
    else:
        look = _Look(host, watched, gpus, problems)
        found += _gpus(look)
        found += _containers(look)
    found.append(Sample(SUCCESS, (watched.node,), 0 if problems else 1))
    return Measured(tuple(found), tuple(dict.fromkeys(problems)))


@dataclass(frozen=True, slots=True)
class _Look:
    """One scrape while it runs."""

    host: Host
    watched: Watched
    gpus: Mapping[str, Registered]
    """By BDF."""
    problems: list[str]
    _places: dict[str, str | None] = field(default_factory=dict)

    def place(self, region: str) -> str | None:
        """The PCI address of a region; None for a name of another form."""
        try:
            return self._places[region]  # every cgroup lists the same few
        except KeyError:
            found = _REGION.fullmatch(region)
            return self._places.setdefault(region, None if found is None else normal_bdf(found[1]))

    def amounts(self, path: str) -> dict[str, int] | None:
        """A dmem file; None when it is not there."""
        return amounts(self.host, path, self.problems.append)


# GPUs


def _gpus(look: _Look) -> Iterator[Sample]:
    seen: set[str] = set()
    for card in cards(look.host, look.watched.drm_root, look.problems.append):
        gpu = look.gpus.get(card.bdf)
        if gpu is None or gpu.bdf in seen:
            continue
        seen.add(gpu.bdf)
        wrong: list[str] = []
        read = list(_gpu(look.host, card, (look.watched.node, str(gpu.index), gpu.id, gpu.type), wrong))
        if wrong and not card.still_there(look.host):
            continue  # unplugged while we looked: not there is no failure
        yield from read
        look.problems.extend(wrong)


def _gpu(host: Host, card: Card, labels: tuple[str, ...], wrong: list[str]) -> Iterator[Sample]:
    for series, name in (
        (HOST_USED, "mem_info_vram_used"),
        (HOST_TOTAL, "mem_info_vram_total"),
        (HOST_BUSY, "gpu_busy_percent"),
    ):
        value = read_number(host, f"{card.device}/{name}", wrong.append)
        if value is not None:
            yield Sample(series, labels, value)
    chips = sensor_chips(host, card)
    temperature, power = temperature_celsius(host, chips), power_watts(host, chips)
    if temperature is not None:
        yield Sample(HOST_TEMPERATURE, labels, temperature)
    if power is not None:
        yield Sample(HOST_POWER, labels, power)


# Containers


@dataclass(frozen=True, slots=True)
class _Container:
    """A container that asked for an AMD resource, by what its pod says of it."""

    pod: Pod
    name: str
    held: Mapping[str, tuple[ContainerDevice, ...]]
    """BDF → its devices on that GPU; those of the whole pod where its own slot is empty."""
    recorded: bool
    """Whether the pod says what it holds at all."""

    def request(self, bdf: str) -> int:
        """Bytes it asked for on one GPU, for every device it has there; 0: it asked for no amount."""
        mib = quantity(self.pod.limits.get(self.name, {}).get(_MEMORY, "")) or 0
        return max(0, int(mib * MIB)) * max(1, len(self.held.get(bdf, ())))


def _containers(look: _Look) -> Iterator[Sample]:
    owners: dict[str, _Container] = {}
    uids: set[str] = set()
    by_id = {gpu.id: gpu.bdf for gpu in look.gpus.values()}
    for pod in look.watched.pods:
        mine = dict(_asking(pod, by_id))
        if mine:
            owners |= mine
            uids |= {pod.uid, pod.annotations.get(_STATIC, pod.uid)}
    above: dict[str, Mapping[str, int]] = {}
    for scope in scopes(look.host, look.watched.cgroup_root, uids, look.problems.append):
        owner = owners.get(scope.container_id)
        current = look.amounts(f"{scope.path}/dmem.current") if owner is not None else None
        if owner is None or current is None:
            continue
        if scope.pod_path not in above:
            above[scope.pod_path] = look.amounts(f"{scope.pod_path}/dmem.max") or {}
        own = look.amounts(f"{scope.path}/dmem.max") or {}
        yield from _container(look, owner, current, (own, above[scope.pod_path]))


def _container(
    look: _Look,
    owner: _Container,
    current: Mapping[str, int],
    limits: tuple[Mapping[str, int], Mapping[str, int]],
) -> Iterator[Sample]:
    """One container's lines. dmem lists every region everywhere: only those that concern it are numbered.

    That is a GPU it uses, holds a device of, or has a limit for; `limits` are its own and its pod's.
    """
    own, above = limits
    shown: list[tuple[str, Registered]] = []
    for region, used in current.items():
        bdf = look.place(region)
        # The pod's limit may be another container's, unless nothing says who holds what.
        if bdf is None or not (
            used or region in own or bdf in owner.held or (region in above and not owner.recorded)
        ):
            continue
        gpu = look.gpus.get(bdf)
        if gpu is not None:
            shown.append((region, gpu))
        elif used:
            look.problems.append(
                f"pod {owner.pod}, container {owner.name}: has memory of {bdf}, which is not registered"
            )
    shown.sort(key=lambda one: one[0])
    for index, (region, gpu) in enumerate(shown):
        held = owner.held.get(gpu.bdf, ())
        identifier = strip_mode(held[0].id) if held else gpu.id
        labels = (owner.pod.namespace, owner.pod.name, owner.name, str(index), identifier)
        yield Sample(USED, labels, current[region])
        known = [value for value in (own.get(region), above.get(region), owner.request(gpu.bdf)) if value]
        if known:
            yield Sample(LIMIT, labels, min(known))


def _asking(pod: Pod, by_id: Mapping[str, str]) -> Iterator[tuple[str, _Container]]:
    """The runtime's id of every started container that has an AMD limit."""
    asking = {
        name for name, limits in pod.limits.items() if any(key.startswith(_RESOURCES) for key in limits)
    }
    started = [(identifier, name) for identifier, name in pod.container_ids.items() if name in asking]
    if not started:
        return
    try:
        slots = decode(pod.annotations.get(VOCABULARY.allocated, ""))
    except CodecError:
        slots = ()  # its own Allocate failed for it (decision 16): it runs without a record
    names = (*pod.init_containers, *pod.containers)
    everything = tuple(entry for slot in slots for entry in slot)
    for identifier, name in started:
        place = names.index(name) if name in names else len(slots)
        slot = slots[place] if place < len(slots) else ()
        yield identifier, _Container(pod, name, _by_gpu(slot or everything, by_id), bool(everything))


def _by_gpu(
    entries: Iterable[ContainerDevice], by_id: Mapping[str, str]
) -> dict[str, tuple[ContainerDevice, ...]]:
    """BDF → devices on that GPU, in whatever mode they were given out; unknown ones are left out."""
    found: dict[str, tuple[ContainerDevice, ...]] = {}
    for entry in entries:
        bdf = by_id.get(whole_id(strip_mode(entry.id)))
        if bdf is not None:
            found[bdf] = (*found.get(bdf, ()), entry)
    return found
