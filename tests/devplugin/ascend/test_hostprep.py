"""What is done to a node before soft slices are offered: rows P30, P32, P33 of F.1, decisions 44 and 45."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from devplugin.answers import NodeEvent, Prepared
from devplugin.ascend import hostprep
from devplugin.ascend.inventory import Inventory
from devplugin.ascend.settings import Settings
from devplugin.ascend.vendor import Ascend
from devplugin.deeds import Ground, InstallFile, RunTool, carry_out
from devplugin.hami import Pod
from devplugin.host import Completed
from gpusim.ascend import reading
from gpusim.ascend.reading import Reading
from gpusim.ascend.shm import V140, V140_SMALL
from gpusim.fixture import load
from gpusim.machine import Machine

from .npupods import HARD, NODE, SOFT

HOST = "/usr/local/hami-vnpu-core"
ASSETS = "/usr/local/hami-vnpu-core-assets"
LIBRARY = f"{HOST}/libvnpu.so"
PRELOAD = b"/hami-vnpu-core/libvnpu.so\n"
NEW, OLD = b"\x7fELF v1.4.1", b"\x7fELF v1.4.0"

LIVE = Pod("ns", "live", "uid-live", NODE, "Running")
ENDED = Pod("ns", "ended", "uid-ended", NODE, "Succeeded")


class Watched(Machine):
    """A machine that remembers what was run on it."""

    ran: list[tuple[tuple[str, ...], bytes]]

    def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Any:
        self.ran.append((tuple(argv), stdin))
        return super().run(argv, timeout=timeout, stdin=stdin)


def machine(fixture: str = "ascend/910b4", *, library: bytes | None = None) -> Watched:
    """A node and the image's files; `library`: what an older plugin left on it."""
    made = Watched(load(fixture))
    made.ran = []
    made.mkdir(ASSETS)
    made.put(f"{ASSETS}/libvnpu.so", NEW, 0o755)
    made.put(f"{ASSETS}/ld.so.preload", PRELOAD, 0o644)
    if library is not None:
        made.mkdir(HOST)
        made.put(LIBRARY, library, 0o755)
    return made


def ledger(host: Machine, data: bytes, directory: str = "uid-live_main") -> None:
    host.mkdir(f"{HOST}/containers/{directory}")
    host.put(f"{HOST}/containers/{directory}/vnpu_local_shmem", data)


def inventory(host: Machine, settings: Settings = SOFT) -> Inventory:
    found = Ascend().discover(cast("Any", host), settings, None)
    assert found.npus
    return found


def prepare(host: Machine, *pods: Pod, settings: Settings = SOFT, **changed: Any) -> Prepared:
    here = replace(inventory(host, settings), **changed)
    if isinstance(host, Watched):
        host.ran.clear()
    return hostprep.prepare(cast("Ground", host), here, settings, pods)


def shares(host: Watched) -> list[tuple[str, str]]:
    """(card, chip) of every device-share that was set."""
    return [(argv[5], argv[7]) for argv, _ in host.ran if argv[1:4] == ("set", "-t", "device-share")]


def digest(host: Machine, path: str) -> str:
    return hostprep.sha256(host.read(path))


# ------------------------------------------------------------------ files


@pytest.mark.parametrize(
    ("data", "known"),
    [(b"", "e3b0c442…b855"), (b"hello world", "b94d27b9…cde9")],
    ids=["empty", "hello world"],
)
def test_a_digest_is_sha_256(data: bytes, known: str) -> None:
    """P32."""
    start, _, end = known.partition("…")
    found = hostprep.sha256(data)
    assert (len(found), found[:8], found[-4:]) == (64, start, end)


def test_a_bare_node_gets_directories_library_and_preload_list() -> None:
    """A.6."""
    host = machine()
    done = prepare(host)
    assert done.fatal == ""
    assert done.troubles == ()
    assert done.done[:2] == (
        "/usr/local/hami-shared-region: directory, mode 0777",
        f"{HOST}: directory, mode 0775",
    )
    assert done.done[-1] == "npu-smi set device-share -i 7 -c 0 -d 1: done"
    assert host.stat("/usr/local/hami-shared-region").mode == 0o777
    assert host.stat(HOST).mode == 0o775
    assert (host.read(LIBRARY), host.stat(LIBRARY).mode) == (NEW, 0o755)
    assert (host.read(f"{HOST}/ld.so.preload"), host.stat(f"{HOST}/ld.so.preload").mode) == (PRELOAD, 0o644)


def test_the_shared_region_is_forced_open_and_never_emptied() -> None:
    """Decision 44."""
    host = machine()
    host.mkdir("/usr/local/hami-shared-region", 0o700)
    host.put("/usr/local/hami-shared-region/0_global_registry", b"in use")
    assert prepare(host).fatal == ""
    assert host.stat("/usr/local/hami-shared-region").mode == 0o777
    assert host.read("/usr/local/hami-shared-region/0_global_registry") == b"in use"


def test_an_operators_mode_of_the_hooks_directory_is_left_alone() -> None:
    host = machine()
    host.mkdir(HOST, 0o700)
    host.chmod(HOST, 0o700)
    prepare(host)
    assert host.stat(HOST).mode == 0o700


def test_an_older_library_is_replaced_and_both_digests_are_logged() -> None:
    """Decision 45 and the guide: confirm that the host's copy really changed."""
    host = machine(library=OLD)
    done = prepare(host)
    assert host.read(LIBRARY) == NEW
    line = next(line for line in done.done if line.startswith(LIBRARY))
    assert line == f"{LIBRARY}: sha256 {digest(host, LIBRARY)}, in the image {hostprep.sha256(NEW)}"


def test_a_second_start_changes_no_file() -> None:
    host = machine()
    prepare(host)
    before = [host.stat(path) for path in (LIBRARY, f"{HOST}/ld.so.preload", HOST)]
    assert prepare(host).fatal == ""
    assert [host.stat(path) for path in (LIBRARY, f"{HOST}/ld.so.preload", HOST)] == before


def test_a_custom_hook_path_takes_the_files() -> None:
    host = machine()
    assert prepare(host, settings=replace(SOFT, hook_path="/opt/vnpu")).fatal == ""
    assert host.read("/opt/vnpu/libvnpu.so") == NEW


@pytest.mark.parametrize("name", ["libvnpu.so", "ld.so.preload"])
def test_a_missing_asset_ends_the_start(name: str) -> None:
    """P33: missing source."""
    host = machine()
    host.unlink(f"{ASSETS}/{name}")
    done = prepare(host)
    assert done.fatal == f"failed to copy {HOST}/{name}: {ASSETS}/{name}: ENOENT"
    assert shares(host) == []


def test_a_preload_list_that_names_another_library_ends_the_start() -> None:
    """Decision 50: every container would run without a limit."""
    host = machine()
    host.put(f"{ASSETS}/ld.so.preload", b"/lib/other.so\n")
    assert "instead of /hami-vnpu-core/libvnpu.so" in prepare(host).fatal
    with pytest.raises(FileNotFoundError):
        host.stat(f"{HOST}/ld.so.preload")


def test_a_host_directory_that_cannot_be_written_ends_the_start() -> None:
    host = machine()
    host.put(HOST, b"a file in its place")
    assert prepare(host).fatal.startswith("failed to copy /usr/local/hami-vnpu-core/")


class Busy(Watched):
    """Nothing can be put in the library's place."""

    number = errno.ETXTBSY

    def copy(self, source: str, target: str, mode: int) -> None:
        if target == LIBRARY:
            raise OSError(self.number, os.strerror(self.number), target)
        super().copy(source, target, mode)


def test_a_library_that_is_neither_there_nor_can_be_put_there_ends_the_start() -> None:
    host = machine()
    host.__class__ = Busy
    assert prepare(host).fatal == f"failed to copy {LIBRARY}: ETXTBSY"


@pytest.mark.parametrize("number", [errno.ETXTBSY, errno.ENOSPC])
def test_only_a_library_in_use_is_no_reason_to_stop(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A.6."""
    monkeypatch.setattr(Busy, "number", number)
    host = machine(library=OLD)
    host.__class__ = Busy
    done = prepare(host)
    assert host.read(LIBRARY) == OLD
    if number == errno.ETXTBSY:
        assert done.fatal == ""
        assert done.troubles[0].startswith(f"{LIBRARY} is in use and stays as it is")
    else:
        assert done.fatal == f"failed to copy {LIBRARY}: ENOSPC"


# ------------------------------------------------------------------ the upgrade rule

ANOTHER_LEDGER = {
    "1.4.0": reading.write(Reading(V140, (8 << 30,) * 8, (), 0, 0)),
    "1.4.0 small": reading.write(Reading(V140_SMALL, (8 << 30,) * 8, (), 0, 0)),
    "foreign": b"what a vendor's own file of 1.4.1 may be" * 300,
    "not sized yet": b"",
}


@pytest.mark.parametrize("kind", ANOTHER_LEDGER)
def test_the_library_stays_while_a_living_pods_ledger_is_of_another_version(kind: str) -> None:
    """Decision 45."""
    host = machine(library=OLD)
    ledger(host, ANOTHER_LEDGER[kind])
    done = prepare(host, LIVE)
    assert host.read(LIBRARY) == OLD
    assert done.fatal == ""
    version = "1.4.0" if kind.startswith("1.4.0") else "unknown"
    assert f"pods ns/live ({version}) are not of version 1.4.1" in done.troubles[0]
    (event,) = done.effects
    assert isinstance(event, NodeEvent)
    assert (event.type, event.reason) == ("Warning", "NPULibraryKept")
    assert "ns/live" in event.message
    assert event.name == f"{NODE}.npulibrarykept.{hostprep.sha256(NEW)[:16]}"


@pytest.mark.parametrize(
    ("data", "pods", "directory"),
    [
        (reading.fresh((8 << 30,)), (LIVE,), "uid-live_main"),
        (ANOTHER_LEDGER["1.4.0"], (ENDED,), "uid-ended_main"),
        (ANOTHER_LEDGER["1.4.0"], (), "uid-live_main"),
        (ANOTHER_LEDGER["1.4.0"], (LIVE,), "uid-live_main.stale-1"),
        (None, (LIVE,), "uid-live_main"),
    ],
    ids=["same version", "ended pod", "pod gone", "moved aside", "no ledger yet"],
)
def test_nothing_else_keeps_an_older_library(
    data: bytes | None, pods: tuple[Pod, ...], directory: str
) -> None:
    host = machine(library=OLD)
    host.mkdir(f"{HOST}/containers/{directory}")
    if data is not None:
        ledger(host, data, directory)
    done = prepare(host, *pods)
    assert host.read(LIBRARY) == NEW
    assert (done.troubles, done.effects) == ((), ())


def test_a_library_that_is_missing_is_installed_whoever_lives() -> None:
    """Nothing is replaced, and what refuses an old ledger is better than what limits nothing."""
    host = machine()
    ledger(host, ANOTHER_LEDGER["1.4.0"])
    prepare(host, LIVE)
    assert host.read(LIBRARY) == NEW


def test_the_same_library_is_no_upgrade_whatever_ledgers_there_are() -> None:
    host = machine(library=NEW)
    ledger(host, ANOTHER_LEDGER["1.4.0"])
    done = prepare(host, LIVE)
    assert (done.troubles, done.effects) == ((), ())


def test_many_pods_are_named_in_a_message_the_api_server_takes() -> None:
    host = machine(library=OLD)
    pods = [Pod("n" * 60, f"p{i}" + "x" * 20, f"uid-{i}", NODE, "Running") for i in range(40)]
    for pod in pods:
        ledger(host, ANOTHER_LEDGER["1.4.0"], f"{pod.uid}_c")
    (event,) = prepare(host, *pods).effects
    assert isinstance(event, NodeEvent)
    assert "and 30 more" in event.message
    assert "sha256" in event.message


def retry(host: Machine, *pods: Pod, kept: bool) -> Any:
    return hostprep.retry(cast("Any", host), SOFT, pods, kept)


def test_a_kept_library_is_tried_again_until_its_pods_are_gone_and_then_told_of() -> None:
    host = machine(library=OLD)
    ledger(host, ANOTHER_LEDGER["1.4.0"])
    prepare(host, LIVE)
    (event,), kept = retry(host, LIVE, kept=True)
    assert (event.reason, kept) == ("NPULibraryKept", True)
    (deed,), kept = retry(host, ENDED, kept=True)
    assert deed == InstallFile(f"{ASSETS}/libvnpu.so", LIBRARY, 0o755)
    carry_out(cast("Ground", host), deed)
    (event,), kept = retry(host, ENDED, kept=kept)
    assert (event.type, event.reason, kept) == ("Normal", "NPULibraryUpdated", False)
    assert hostprep.sha256(NEW) in event.message


def test_a_library_that_never_waited_is_not_told_of() -> None:
    host = machine()
    prepare(host)
    assert retry(host, kept=False) == ((), False)


# ------------------------------------------------------------------ device-share


def test_every_chip_is_shared_once_with_its_prompt_answered() -> None:
    """P30 and A.5: card 0 with chips 0 and 1."""
    host = machine("ascend/910c")
    assert prepare(host).fatal == ""
    assert shares(host) == [(str(card), str(chip)) for card in range(8) for chip in (0, 1)]
    assert {stdin for argv, stdin in host.ran} == {b"Y\n"}
    assert all(npu.share for npu in host.npus)


def test_what_is_shared_already_is_not_asked_for_and_not_taken_back() -> None:
    host = machine("ascend/910b4-soft")
    assert prepare(host).fatal == ""
    assert all(argv[-1] == "1" for argv, _ in host.ran)
    assert all(npu.share for npu in host.npus)


def test_a_chip_that_two_devices_name_is_shared_once() -> None:
    """P30: duplicates."""
    host = machine()
    first = inventory(host).npus[0]
    prepare(host, npus=(first, replace(first, uuid="other", logic=1)))
    assert shares(host) == [("0", "0")]


@pytest.mark.parametrize("status", [0, 1])
def test_the_first_chip_that_cannot_be_shared_stops_the_start_with_its_name(status: int) -> None:
    """P30: the status proves nothing."""
    host = machine("ascend/910c")
    host.npu_smi_fails("set -t device-share", "Status : Fail\nMessage : not supported\n", status)
    done = prepare(host)
    assert done.fatal == (
        "enable node device-share: npu-smi set device-share -i 0 -c 0 -d 1: "
        f"{status}: 'Status : Fail Message : not supported'"
    )
    assert shares(host) == [("0", "0")]


def test_the_second_chips_failure_leaves_the_third_alone() -> None:
    class Second(Watched):
        def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Any:
            done = super().run(argv, timeout=timeout, stdin=stdin)
            second = (argv[1], *argv[5:8]) == ("set", "0", "-c", "1")
            return Completed(1, b"busy", b"") if second else done

    host = machine("ascend/910c")
    host.__class__ = Second
    assert "-i 0 -c 1 -d 1: 1: 'busy'" in prepare(host).fatal
    assert shares(host) == [("0", "0"), ("0", "1")]


def test_a_tool_that_went_away_stops_the_start() -> None:
    """G 4."""
    done = prepare(machine(), tool="/usr/local/gone/npu-smi")
    assert done.fatal == "enable node device-share: npu-smi set device-share -i 0 -c 0 -d 1: ENOENT"
    assert prepare(machine(), tool="").fatal.endswith("npu-smi not found")


def test_the_tool_is_found_where_only_sbin_has_it() -> None:
    """G 4."""
    host = machine("ascend/910b4-sbin-status0")
    assert prepare(host).fatal == ""
    assert {argv[0] for argv, _ in host.ran} == {"/usr/local/sbin/npu-smi"}


def test_without_soft_mode_or_without_devices_there_is_nothing_to_do() -> None:
    """P30: non-hami-core, and no devices."""
    here = inventory(machine())
    assert hostprep.prepares(here, SOFT)
    assert not hostprep.prepares(here, HARD)
    assert not hostprep.prepares(replace(here, npus=()), SOFT)


def test_chips_that_appear_later_are_shared_then() -> None:
    """P26: the start had not seen them."""
    here = inventory(machine("ascend/910c"))
    few = replace(here, npus=here.npus[:2])
    none, known = hostprep.late(few, None)
    assert none == ()
    deeds, known = hostprep.late(here, known)
    first = deeds[0]
    assert isinstance(first, RunTool)
    assert (len(deeds), first.argv[5:], first.stdin) == (14, ("1", "-c", "0", "-d", "1"), b"Y\n")
    for _ in range(4):
        again, known = hostprep.late(here, known)
        assert again == deeds, "nobody tells whether it was done"
    assert hostprep.late(here, known) == ((), known)
