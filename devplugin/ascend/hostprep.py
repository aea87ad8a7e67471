"""What a node needs before soft slices are offered on it: directories, the runtime library, device-share.

Done in soft mode only (decision 45). The library is put in place by rename, so that nobody ever loads half
of one, and only while no living container has a ledger of another version: a process that starts in such a
container would load the new library over the old file (ascend_ppu_hami.md A.5, A.6, A.8; guide-ascend.md).
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from devplugin import containerdirs
from devplugin.answers import Effect, NodeEvent, Prepared
from devplugin.ascend import ledgerfile
from devplugin.ascend.allocation import HOOK_INSIDE, LIBRARY, PRELOAD
from devplugin.ascend.inventory import Inventory
from devplugin.ascend.ledgerfile import NoLedgerError
from devplugin.ascend.settings import LEDGER, SHARED_REGION, Settings
from devplugin.deeds import DeedError, Ground, InstallFile, MakeDir, RunTool, carry_out
from devplugin.hami import Pod
from devplugin.host import Host, words
from devplugin.settings import shown

LEDGER_VERSION = "1.4.1"
"""Of the ledger that the image's library keeps (guide-ascend.md)."""
KEPT = "NPULibraryKept"
UPDATED = "NPULibraryUpdated"
_ASKED = 5
"""Turns of the sweep in which device-share of a late chip is asked for."""
_NAMED = 10
"""Pods named in one message; the API server takes 1024 bytes."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A file of the image and its copy on the host."""

    source: str
    target: str
    mode: int
    asset: str
    """SHA-256 of the image's file, in hexadecimal digits."""
    host: str | None
    """Of the host's; None: there is none."""

    @property
    def current(self) -> bool:
        """Whether the host has what the image has."""
        return self.host == self.asset

    def __str__(self) -> str:
        return f"{self.target}: sha256 {self.host or 'none'}, in the image {self.asset}"


def sha256(data: bytes) -> str:
    """The digest as it is printed: 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def prepares(inventory: Inventory, settings: Settings) -> bool:
    """Whether there is something to prepare: soft mode, and NPUs to share."""
    return settings.soft and bool(inventory.npus)


def prepare(host: Ground, inventory: Inventory, settings: Settings, pods: Sequence[Pod]) -> Prepared:
    """Directories, library and preload list, then device-share of every chip; the first failure ends it.

    Args:
        host: the node, all three halves of the seam.
        inventory: its NPUs, and where npu-smi is.
        settings: where everything lies.
        pods: of the node: whose ledgers keep the library as it is.
    """
    done: list[str] = []
    troubles: list[str] = []
    effects: list[Effect] = []
    try:
        done += _directories(host, settings)
        _check_preload(host, settings)
        for name in (LIBRARY, PRELOAD):
            found = _compare(host, settings, name)
            if (
                found.host is not None
                and not found.current
                and (held := _holders(host, settings, pods, name))
            ):
                troubles.append(_kept_text(found, held))
                effects.append(_kept_event(settings, found, held))
            elif trouble := _install(host, found):
                troubles.append(trouble)
            done.append(str(_compare(host, settings, name)))
        done += _share_all(host, inventory)
    except DeedError as error:
        return Prepared(tuple(done), tuple(troubles), tuple(effects), fatal=str(error))
    return Prepared(tuple(done), tuple(troubles), tuple(effects))


def retry(host: Host, settings: Settings, pods: Sequence[Pod], kept: bool) -> tuple[tuple[Effect, ...], bool]:
    """What is to be done for a library that was left as it was, and whether it is still another.

    Args:
        host: the node.
        settings: where everything lies.
        pods: of the node.
        kept: it was another the last time.
    """
    try:
        found = _compare(host, settings, LIBRARY)
    except DeedError:
        return (), kept  # the host's own copy goes on serving
    if found.current:
        event = NodeEvent("Normal", UPDATED, str(found), _event_name(settings, UPDATED, found))
        return (event,) if kept else (), False
    if held := _holders(host, settings, pods, LIBRARY):
        return (_kept_event(settings, found, held),), True
    return (InstallFile(found.source, found.target, found.mode),), True


def _directories(host: Ground, settings: Settings) -> Iterator[str]:
    """The shared region is forced open, the hook's directory only made (A.6)."""
    wanted = [MakeDir(SHARED_REGION, 0o777)]
    try:
        host.stat(settings.hook_path)
    except OSError:
        wanted.append(MakeDir(settings.hook_path, 0o775))
    for deed in wanted:
        if line := carry_out(host, deed):
            yield line


def _check_preload(host: Host, settings: Settings) -> None:
    """A list that names another library would let every container allocate without a limit (decision 50)."""
    path, wanted = f"{settings.assets_path}/{PRELOAD}", f"{HOOK_INSIDE}/{LIBRARY}"
    text = _read(host, path, f"{settings.hook_path}/{PRELOAD}").strip()
    if text != wanted.encode():
        raise DeedError(
            f"{path}: {shown(text.decode('utf-8', 'replace'))} instead of {wanted}: not our image"
        )


def _compare(host: Host, settings: Settings, name: str) -> Copy:
    source, target = f"{settings.assets_path}/{name}", f"{settings.hook_path}/{name}"
    data = _read(host, source, target)
    try:
        mode = host.stat(source).mode
    except OSError as error:
        raise DeedError(f"failed to copy {target}: {source}: {words(error)}") from error
    try:
        there: str | None = sha256(host.read(target))
    except FileNotFoundError:
        there = None
    except OSError as error:
        raise DeedError(f"failed to copy {target}: {words(error)}") from error
    return Copy(source, target, mode, sha256(data), there)


def _read(host: Host, source: str, target: str) -> bytes:
    try:
        return host.read(source)
    except OSError as error:
        raise DeedError(f"failed to copy {target}: {source}: {words(error)}") from error


def _install(host: Ground, copy: Copy) -> str:
    """Put it in place; why it stayed as it was, when that is no reason to stop (A.6, text file busy)."""
    try:
        carry_out(host, InstallFile(copy.source, copy.target, copy.mode))
    except DeedError as error:
        busy = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ETXTBSY
        if busy and copy.host is not None:
            return f"{copy.target} is in use and stays as it is: {error}"
        raise DeedError(f"failed to copy {error}") from error
    return ""


def _holders(host: Host, settings: Settings, pods: Sequence[Pod], name: str) -> list[tuple[Pod, str]]:
    """Living pods with a ledger that another library keeps, and the version; of the library only."""
    if name != LIBRARY:
        return []
    found = {}
    for path, pod, _ in containerdirs.living(host, settings.containers, pods):
        version = _version(host, f"{path}/{LEDGER}")
        if version not in {"", LEDGER_VERSION}:
            found[pod.uid] = (pod, version)
    return list(found.values())


def _version(host: Host, path: str) -> str:
    """The ledger's version; empty: nobody has made one; ``unknown``: not a file we know (decision 48)."""
    try:
        host.stat(path)
    except FileNotFoundError:
        return ""
    except OSError:
        return "unknown"
    try:
        return ledgerfile.read(host, path).version
    except NoLedgerError:
        return "unknown"


def _kept_text(copy: Copy, held: Sequence[tuple[Pod, str]]) -> str:
    pods = ", ".join(f"{pod} ({version})" for pod, version in held[:_NAMED])
    more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
    return (
        f"{copy.target} stays as it is (sha256 {copy.host}, in the image {copy.asset}): the ledgers of pods "
        f"{pods}{more} are not of version {LEDGER_VERSION}; delete these pods, then it is replaced"
    )


def _kept_event(settings: Settings, copy: Copy, held: Sequence[tuple[Pod, str]]) -> NodeEvent:
    return NodeEvent("Warning", KEPT, _kept_text(copy, held), _event_name(settings, KEPT, copy))


def _event_name(settings: Settings, reason: str, copy: Copy) -> str:
    """Said once for each library of an image (decision 33)."""
    return f"{settings.node_name}.{reason}.{copy.asset[:16]}".lower()


def _share_all(host: Ground, inventory: Inventory) -> Iterator[str]:
    """device-share of each distinct chip; an NPU of which it is off belongs to its first container (A.5)."""
    for card, chip in dict.fromkeys((npu.card, npu.device) for npu in inventory.npus):
        deed = _share(inventory.tool, card, chip)
        try:
            if not inventory.tool:
                raise DeedError(f"{deed.called}: npu-smi not found")
            yield carry_out(host, deed)
        except DeedError as error:
            raise DeedError(f"enable node device-share: {error}") from error


def late(
    inventory: Inventory, known: Mapping[tuple[int, int], int] | None
) -> tuple[tuple[Effect, ...], Mapping[tuple[int, int], int]]:
    """device-share of chips that appeared after `prepare`, and (card, chip) → how often it was asked for.

    Asking twice does no harm and nobody tells a sweep what became of its deeds: so a chip is asked for
    several times, lest one failure leaves it without for good.

    Args:
        inventory: the NPUs there are now.
        known: what the call before returned; None: `prepare` has just seen to all there are.
    """
    there = {(npu.card, npu.device) for npu in inventory.npus}
    if known is None:
        return (), dict.fromkeys(there, _ASKED)
    due = sorted(place for place in there if known.get(place, 0) < _ASKED)
    deeds = tuple(_share(inventory.tool, *place) for place in due)
    return deeds, {**known, **{place: known.get(place, 0) + 1 for place in due}}


def _share(tool: str, card: int, chip: int) -> RunTool:
    """It asks, has no flag to say yes, and ends with 200 when nobody answers (A.5)."""
    where = ("-i", str(card), "-c", str(chip), "-d", "1")
    return RunTool(
        (tool, "set", "-t", "device-share", *where),
        b"Y\n",
        "Status : OK",
        name=" ".join(("npu-smi set device-share", *where)),
    )
