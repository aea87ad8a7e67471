"""What the node's events say: a device got sick, went missing, came back, or changed under its pods.

Two questions, both answered from values. `transitions` compares one registration with the one before; the
first of a life is only a baseline (amd.md 10). `changed_in_use` compares the annotation about to be
overwritten with what is there now, so that it is told also when the plugin was away meanwhile (decision 33).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from devplugin.amd.devices import Device, devices
from devplugin.amd.inventory import Gpu, Inventory
from devplugin.amd.partitioning import MODES
from devplugin.amd.settings import Settings
from devplugin.amd.taken import RECORD, VOCABULARY, read_record
from devplugin.amd.uuid import strip_mode, whole_id
from devplugin.answers import NodeEvent
from devplugin.hami import CodecError, Pod, decode

UNHEALTHY = "AMDGPUUnhealthy"
MISSING = "AMDGPUMissing"
RECOVERED = "AMDGPURecovered"
MODE_CHANGED = "AMDGPUModeChangedInUse"
SWITCH_REFUSED = "AMDGPUSwitchRefused"
"""Ours: a switch at the start that did not happen, and who was in the way (B22)."""

_NAMED = 10
"""Pods named in one message; the API server takes 1024 bytes."""


@dataclass(frozen=True, slots=True)
class Known:
    """One device as it was last seen."""

    what: str
    """``GPU 3 0000:75:00.0 (<id>)``."""
    gpu: str
    """Registered id of the whole GPU."""
    mode: str
    state: str
    """``healthy``, ``sick`` or ``missing``."""


Seen = Mapping[str, Known]
"""Device id → what was last said of it."""


def transitions(
    inventory: Inventory, settings: Settings, seen: Seen | None
) -> tuple[tuple[NodeEvent, ...], Seen]:
    """Events since the last registration, in the order of device ids, and what is known now.

    A device whose GPU is still there in another mode is no missing one: it became others.
    """
    now = {device.id: _known(device) for device in devices(inventory, settings)}
    if seen is None:
        return (), now
    modes = {known.gpu: known.mode for known in now.values()}
    events: list[NodeEvent] = []
    after = dict(now)
    for identifier in sorted(now.keys() | seen.keys()):
        before, known = seen.get(identifier), now.get(identifier)
        if known is None:
            assert before is not None
            if modes.get(before.gpu, before.mode) != before.mode:
                continue
            if before.state != "missing":
                events.append(NodeEvent("Warning", MISSING, f"{before.what} is missing"))
            after[identifier] = replace(before, state="missing")
        elif known.state == "sick":
            if before is None or before.state != "sick":
                events.append(
                    NodeEvent("Warning", UNHEALTHY, f"{known.what} is unhealthy{_why(inventory, known)}")
                )
        elif before is not None and before.state != "healthy":
            events.append(NodeEvent("Normal", RECOVERED, f"{known.what} is healthy again"))
    return tuple(events), after


def changed_in_use(
    inventory: Inventory, settings: Settings, registered: str, pods: Sequence[Pod]
) -> tuple[NodeEvent, ...]:
    """A warning for each GPU whose registered mode is another one now, while pods hold it.

    Args:
        inventory: what is there.
        settings: the operating mode counts: a GPU that was shared and is a hard device now has changed.
        registered: the register annotation about to be overwritten; what cannot be read says nothing.
        pods: pods of the node; ended ones hold nothing.
    """
    before: dict[str, set[str]] = {}
    for identifier, mode in _registered(registered):
        before.setdefault(whole_id(identifier), set()).add(mode)
    now: dict[str, set[str]] = {}
    gpus: dict[str, Gpu] = {}
    for device in devices(inventory, settings):
        gpus[device.gpu.id] = device.gpu
        now.setdefault(device.gpu.id, set()).add(_mode(device))
    holdings = [held(pod) for pod in pods]
    events: list[NodeEvent] = []
    for identifier, gpu in sorted(gpus.items()):
        old, new = before.get(identifier), now[identifier]
        holders = [str(one.pod) for one in holdings if one.holds(gpu)]
        if old is None or old == new or not holders:
            continue
        more = f" and {len(holders) - _NAMED} more" if len(holders) > _NAMED else ""
        text = (
            f"{about(gpu)}: mode changed from {_named(old)} to {_named(new)} while in use by "
            f"{', '.join(holders[:_NAMED])}{more}; they keep what they have: drain the node before switching"
        )
        events.append(
            NodeEvent("Warning", MODE_CHANGED, text, event_name(settings, MODE_CHANGED, identifier))
        )
    return tuple(events)


@dataclass(frozen=True, slots=True)
class Held:
    """What one pod's records name."""

    pod: Pod
    ids: frozenset[str]
    """Device ids, and those of the GPUs they are partitions of."""
    unread: str = ""
    """Records that cannot be parsed: they hold whatever they mention (decision 18)."""

    def holds(self, gpu: Gpu) -> bool:
        """Whether the pod was given this GPU or a part of it."""
        names = {gpu.id, *gpu.ids, *(p.rocr_name for p in gpu.partitions if p.rocr_name)}
        return not names.isdisjoint(self.ids) or any(name in self.unread for name in names)


def held(pod: Pod) -> Held:
    """What a living pod holds by its records; an ended one holds nothing."""
    if pod.terminal:
        return Held(pod, frozenset())
    ids: set[str] = set()
    unread = ""
    given, record = pod.annotations.get(VOCABULARY.allocated, ""), pod.annotations.get(RECORD, "").strip()
    try:
        ids.update(entry.id for slot in decode(given) for entry in slot)
    except CodecError:
        unread += given
    try:
        ids.update(read_record(record) if record else ())
    except ValueError:
        unread += record
    plain = {strip_mode(identifier) for identifier in ids}
    return Held(pod, frozenset(plain | {whole_id(identifier) for identifier in plain}), unread)


def about(gpu: Gpu) -> str:
    """A GPU in the words every message uses: its registered index, address and id."""
    return f"GPU {gpu.partitions[0].card or 0} {gpu.bdf} ({gpu.id})"


def event_name(settings: Settings, reason: str, uid: str) -> str:
    """The object name of an event that is said once: ``<node>.<reason>.<uid>`` (decision 33)."""
    return f"{settings.node_name}.{reason}.{uid}".lower()


def _known(device: Device) -> Known:
    what = f"GPU {device.agents[0].card or 0} {device.gpu.bdf} ({device.id})"
    return Known(what, device.gpu.id, _mode(device), "healthy" if device.gpu.healthy else "sick")


def _why(inventory: Inventory, known: Known) -> str:
    bdf = next((gpu.bdf for gpu in inventory.gpus if gpu.id == known.gpu), "")
    standing = inventory.health.get(bdf)
    return f": {standing.reason}" if standing is not None and standing.reason else ""


def _mode(device: Device) -> str:
    """The registered mode; empty for a shared device."""
    return device.gpu.compute if device.hard else ""


def _named(modes: set[str]) -> str:
    return ", ".join(sorted(mode or "cu" for mode in modes))


def _registered(text: str) -> Iterator[tuple[str, str]]:
    """(id, mode) of every entry of a register annotation that makes sense (decision 25)."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        return
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            identifier, mode = entry.get("id"), entry.get("mode", "")
            if isinstance(identifier, str) and mode in ("", *MODES):
                yield strip_mode(identifier), mode
