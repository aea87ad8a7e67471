"""Field reports of ascend_ppu_hami.md G that a simulated node must be able to play, by their numbers.

Rows 3 and 11 are in `tests/gpusim/cluster/test_kubelet_runtimes.py`, row 26 in `test_reading_live.py`.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import pytest

from devplugin.ascend import ledgerfile
from devplugin.linux import LinuxHost
from gpusim import Machine, load
from gpusim.ascend.ledger import Ledger
from gpusim.ascend.ledgerview import read_file
from gpusim.ascend.mapping import NotReadyError
from gpusim.ascend.reading import fresh
from gpusim.ascend.runtime import RefusedError
from gpusim.ascend.shm import MIB, V140, UnknownLedgerError
from gpusim.cluster.ascendruntime import AscendRuntime
from gpusim.cluster.kubelet_edits import Mount

LIMIT = 100 * MIB


def smi(machine: Machine, words: str) -> str:
    return machine.run(["npu-smi", *words.split()], stdin=b"Y\n").stdout.decode()


def test_g4_npu_smi_may_be_in_usr_local_sbin_alone() -> None:
    machine = Machine(load("ascend/910b4-sbin-status0"))
    for place in ("/usr/local/Ascend/driver/tools/npu-smi", "/usr/local/bin/npu-smi"):
        with pytest.raises(FileNotFoundError):
            machine.run([place, "info"])
    found = machine.run(["/usr/local/sbin/npu-smi", "info"])
    assert found.status == 0
    assert machine.run(["npu-smi", "info"]) == found  # by PATH


def test_g8_devices_5_and_4_are_handed_in_and_counted_as_4_and_5(tmp_path: Path) -> None:
    """The order of the annotation has broken 910C workloads; rank 0 is the smallest id everywhere."""
    machine = Machine(load("ascend/910c"))
    runtime = AscendRuntime(machine, lambda path: (tmp_path / path.lstrip("/")).read_bytes())
    environ = {
        "ASCEND_VISIBLE_DEVICES": "5,4",
        "NPU_MEM_QUOTA": "100",
        "NPU_LOCAL_SHM_PATH": "/hami-vnpu-shmem/vnpu_local_shmem",
    }
    given = runtime.start("c" * 64, environ, [Mount("/hami-vnpu-shmem", "/c", False)])
    assert given.devices[:2] == ("/dev/davinci4", "/dev/davinci5")
    ledger = Ledger(str(tmp_path / "c" / "vnpu_local_shmem"), (LIMIT, LIMIT), pid=1, alive=lambda *_: True)
    ledger.commit(ledger.reserve(7 * MIB), "a")  # on the container's device 0
    assert given.smi is not None
    shown = given.smi.run(["npu-smi", "info"]).stdout.decode()
    buses = [npu.bdf.upper() for npu in (machine.npus.phy(4), machine.npus.phy(5))]
    assert re.findall(r"\| (\w{4}:\w\w:\w\w\.\d) .*?(\d+) */ 100 ", shown) == [
        (buses[0], "7"),
        (buses[1], "0"),
    ]
    ledger.close()


def test_g14_two_chips_of_one_card_are_told_apart_by_their_chip_id() -> None:
    machine = Machine(load("ascend/310p3-duo"))
    places = [(npu.card, npu.number, npu.logic, npu.phy) for npu in machine.npus]
    assert places == [(0, 0, 0, 0), (0, 1, 1, 1), (1, 0, 2, 2), (1, 1, 3, 3)]
    rows = [line.split()[:3] for line in smi(machine, "info -m").splitlines()[1:]]
    assert rows == [
        *(["0", "0", "0"], ["0", "1", "1"], ["0", "2", "-"]),
        *(["1", "0", "2"], ["1", "1", "3"], ["1", "2", "-"]),
    ]
    dies = {smi(machine, f"info -t board -i {card} -c {chip}") for card, chip, *_ in places}
    assert len(dies) == 4
    assert "Status                         : OK" in smi(machine, "set -t create-vnpu -i 0 -c 1 -f vir02")
    assert [len(npu.vnpus) for npu in machine.npus] == [0, 1, 0, 0]
    assert [f"vdavinci{n}" in machine.list("/dev") for n in (100, 116)] == [False, True]
    smi(machine, "set -t device-share -i 1 -c 0 -d 1")
    assert [npu.share for npu in machine.npus] == [False, False, True, False]
    machine.npu_health(3, "Alarm")
    healths = [npu.health.value for npu in machine.npus]
    assert healths == ["OK", "OK", "OK", "Alarm"]


def test_g14_a_soft_container_of_one_chip_of_a_card_gets_that_chip() -> None:
    machine = Machine(load("ascend/310p3-duo"))
    given = AscendRuntime(machine).start("c" * 64, {"ASCEND_VISIBLE_DEVICES": "1", "NPU_MEM_QUOTA": "8192"})
    assert given.devices[0] == "/dev/davinci1"
    assert given.smi is not None
    shown = given.smi.run(["npu-smi", "info"]).stdout.decode()
    assert "0000:82:00.0" in shown and "0000:81:00.0" not in shown


@pytest.mark.parametrize("whole", [fresh((LIMIT,)), bytes(V140.size)])
def test_g15_a_file_that_is_there_and_not_yet_sized_is_no_ledger_for_anybody(
    whole: bytes, tmp_path: Path
) -> None:
    """Mapped before it has its size, it killed the process by SIGBUS."""
    path = tmp_path / "ledger"
    for size in (0, 1, 4096, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UnknownLedgerError):
            Ledger(str(path), (LIMIT,))
        with pytest.raises(UnknownLedgerError):
            read_file(str(path))
        with pytest.raises(ledgerfile.NoLedgerError):
            ledgerfile.read(LinuxHost("/"), str(path))
        assert path.read_bytes() == whole[:size]


def test_g15_ours_is_never_seen_before_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    seen: set[int] = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            try:
                seen.add(path.stat().st_size)
            except FileNotFoundError:
                continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(200):
        Ledger(str(path), (LIMIT,), pid=1, alive=lambda *_: True).close()
        path.unlink()
    stop.set()
    watcher.join()
    assert seen <= {10560}


def test_g16_a_child_forked_while_a_thread_holds_the_lock_goes_on_and_has_the_limit(tmp_path: Path) -> None:
    parent = Ledger(str(tmp_path / "ledger"), (LIMIT,))
    parent.commit(parent.reserve(60 * MIB), "mine")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with parent._map:
            held.set()
            done.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # a deadlock ends the child, and the test
        try:
            parent.reserve(40 * MIB + 1)
        except RefusedError:
            parent.commit(parent.reserve(40 * MIB), "all that is left")
            os._exit(0)
        os._exit(1)
    done.set()
    holder.join()
    assert os.waitpid(pid, 0)[1] == 0
    parent.close()


def test_g17_a_process_without_a_manager_waits_a_bounded_while_and_is_refused(tmp_path: Path) -> None:
    """Upstream stood at "Initialize SchedulerClient..." for ever; nobody makes the file here either."""
    slept: list[float] = []
    with pytest.raises(NotReadyError, match="there is no ledger yet"):
        Ledger(str(tmp_path / "ledger"), wait=10.0, sleep=slept.append)
    assert sum(slept) == pytest.approx(10.0)
    assert list(tmp_path.iterdir()) == []
