"""What the monitor exports of a PPU node: each card, and each container's share of its memory.

Names and labels are ascend_ppu_hami.md B.8's, as decision 53 says. Cards are what ppu-smi shows; containers
are their directories on the host, named by pod UID and container, and their numbers stand in the state file
there. The file's index of a card is the container's own: its rank by the node's index among the cards of that
container's slot. All is read at the scrape; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from devplugin import containerdirs
from devplugin.hami import CodecError, Pod
from devplugin.host import Host
from devplugin.metered import Measured, Sample, Series, Watched
from devplugin.ppu import smi, statefile
from devplugin.ppu.registered import RegistrationError, indices
from devplugin.ppu.registration import type_of
from devplugin.ppu.smi import QUERY, TOOL
from devplugin.ppu.statefile import CardUse, NoStateError, NotYetError
from devplugin.ppu.words import CONTAINERS, STATE, VOCABULARY
from devplugin.vendortool import ToolError

MIB = 1 << 20
_CARD = ("device_index", "device_uuid", "device_type")
_OWNER = ("namespace", "pod", "container")
_SHARE = (*_OWNER, "vdevice_index", "device_uuid")

HOST_USED = Series("hami_host_gpu_memory_used_bytes", "Memory in use on the card", _CARD)
HOST_BUSY = Series("hami_host_gpu_utilization_ratio", "Utilisation of the card, 0 to 100", _CARD)
USED = Series("hami_vgpu_memory_used_bytes", "Memory the container's processes have on the card", _SHARE)
LIMIT = Series("hami_vgpu_memory_limit_bytes", "Memory the container may have on the card", _SHARE)
BUSY = Series(
    "hami_container_device_utilization_ratio",
    "Utilisation as the container's library saw it, 0 to 100",
    _SHARE,
)
CONTEXT = Series("hami_vgpu_memory_context_bytes", "Not told apart by the state file: 0", _SHARE)
MODULE = Series("hami_vgpu_memory_module_bytes", "Not told apart by the state file: 0", _SHARE)
BUFFER = Series("hami_vgpu_memory_buffer_bytes", "Not told apart by the state file: 0", _SHARE)
READ = Series(
    "hami_vgpu_ledger_read_success",
    "1: the container's state file was read; 0: it has no numbers now",
    _OWNER,
)
SUCCESS = Series(
    "hami_vgpumonitor_collect_success",
    "1 when this scrape is complete, 0 when something is missing",
    ("node",),
)
SERIES = (HOST_USED, HOST_BUSY, USED, LIMIT, BUSY, CONTEXT, MODULE, BUFFER, READ, SUCCESS)
_CONSTANT = (CONTEXT, MODULE, BUFFER)


@dataclass(frozen=True, slots=True)
class _Container:
    """A container and what was read of it."""

    pod: Pod
    name: str
    uuids: tuple[str, ...]
    """Of its cards, in the state file's order."""
    cards: tuple[CardUse, ...] | None
    """Of the same cards; None: the file has no numbers."""

    @property
    def owner(self) -> tuple[str, str, str]:
        return self.pod.namespace, self.pod.name, self.name


class PpuMonitor:
    """PPU's answers to `devplugin.metered.Metered`. Holds nothing."""

    name = "ppu"

    @property
    def registered_under(self) -> str:
        """The node annotation with the registration."""
        return VOCABULARY.register

    def series(self) -> tuple[Series, ...]:
        """B.8's, and whether files and scrape were read."""
        return SERIES

    def samples(self, host: Host, watched: Watched) -> Measured:
        """Everything now."""
        return samples(host, watched)


def samples(host: Host, watched: Watched) -> Measured:
    """Everything of one scrape; cards and containers do without each other where one cannot be read."""
    problems = list(watched.problems)
    found = tuple(_containers(host, watched, problems))
    values = [*_cards(host, _used(found), problems)]
    for one in found:
        values.append(Sample(READ, one.owner, float(one.cards is not None)))
        values += _shares(one)
    values.append(Sample(SUCCESS, (watched.node,), 0.0 if problems else 1.0))
    return Measured(tuple(values), tuple(dict.fromkeys(problems)))


def _cards(host: Host, used: Mapping[str, int], problems: list[str]) -> Iterator[Sample]:
    """The cards; what containers have counts for more than what the tool says (B.8)."""
    tool = TOOL.find(host)
    try:
        rows = smi.rows(TOOL.ask(host, tool, *QUERY))
        uses = {use.index: use for use in smi.uses(TOOL.ask(host, tool))} if rows else {}
    except ToolError as error:
        problems.append(str(error))
        return
    for row in rows:
        use = uses.get(row.index)
        if row.uuid is None or use is None:
            continue
        labels = (str(row.index), row.uuid, type_of(row.name or ""))
        if held := used.get(row.uuid):
            yield Sample(HOST_USED, labels, float(held))
        elif use.used_mib is not None:
            yield Sample(HOST_USED, labels, float(use.used_mib * MIB))
        if use.busy is not None:
            yield Sample(HOST_BUSY, labels, float(use.busy))


def _used(found: Sequence[_Container]) -> Mapping[str, int]:
    """UUID → bytes of all containers together."""
    total: dict[str, int] = {}
    for one in found:
        for uuid, card in zip(one.uuids, one.cards or (), strict=False):
            total[uuid] = total.get(uuid, 0) + card.used
    return total


def _shares(one: _Container) -> Iterator[Sample]:
    for index, (uuid, card) in enumerate(zip(one.uuids, one.cards or (), strict=False)):
        labels = (*one.owner, str(index), uuid)
        yield Sample(USED, labels, float(card.used))
        if card.quota:
            yield Sample(LIMIT, labels, float(card.quota))
        yield Sample(BUSY, labels, float(card.busy))
        for series in _CONSTANT:
            yield Sample(series, labels, 0.0)


def _containers(host: Host, watched: Watched, problems: list[str]) -> Iterator[_Container]:
    """Containers with a directory in use."""
    order = _order(watched, problems)
    for path, pod, name in containerdirs.living(host, CONTAINERS, watched.pods):
        uuids = _uuids(pod, name, order, problems)
        if uuids is None:
            continue
        try:
            cards = statefile.read(host, f"{path}/{STATE}")[: len(uuids)]
        except NotYetError:  # no program of it has reached for a card: nothing is missing
            yield _Container(pod, name, uuids, None)
        except NoStateError as error:
            problems.append(f"pod {pod}, container {name}: {error}")
            yield _Container(pod, name, uuids, None)
        else:
            yield _Container(pod, name, uuids, cards)


def _order(watched: Watched, problems: list[str]) -> Mapping[str, int]:
    """UUID → index, of the registration."""
    if watched.registration is None:
        if not watched.problems:
            problems.append(f"{VOCABULARY.register}: node {watched.node} has no such annotation")
        return {}
    try:
        return indices(watched.registration)
    except RegistrationError as error:
        problems.append(f"{VOCABULARY.register}: {error}")
        return {}


def _uuids(pod: Pod, name: str, order: Mapping[str, int], problems: list[str]) -> tuple[str, ...] | None:
    """The cards of a container's own slot, in the state file's order; None when the records do not tell."""
    try:
        slot = containerdirs.devices(pod, VOCABULARY.allocated, name)
    except CodecError as error:
        problems.append(f"pod {pod}: {VOCABULARY.allocated}: {error}")
        return None
    if unknown := [device.id for device in slot if device.id not in order]:
        if order:
            problems.append(f"pod {pod}: {VOCABULARY.allocated}: {unknown[0]} is not registered on this node")
        return None
    return tuple(sorted((device.id for device in slot), key=lambda uuid: order[uuid]))
