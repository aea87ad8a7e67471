"""`gpusim top`: what it reads of a node, what it prints, and that it leaves the terminal as it was."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusim.cli import main
from gpusim.cli.top import RealFiles, plain
from gpusim.cli.toplook import look
from gpusim.cluster.podcgroups import Layout, create
from gpusim.export.render import render
from gpusim.fixture import load
from gpusim.machine import Machine
from gpusim.serve import Server
from gpusim.testing.machines import node

Output = pytest.CaptureFixture[str]

GIB = 1 << 30
BDF = "0000:75:00.0"
UID = "a3e5b9dc-1111-4222-8333-444455556666"
LAYOUTS = [
    Layout(),
    Layout(runtime="cri-o"),
    Layout(driver="cgroupfs", runtime="cri-dockerd"),
    Layout(cgroup_root="/kubelet"),
    Layout(cgroup_root="/kubelet", node=f"/system.slice/docker-{'ab' * 32}.scope"),
]


def pod(uid: str = UID) -> dict[str, Any]:
    return {"metadata": {"uid": uid}, "spec": {"containers": [{"name": "main"}]}}


def busy(machine: Machine, layout: Layout | None = None) -> Machine:
    """One pod whose process has 3 GiB and seven CUs of the first GPU, limited to 4 GiB; one idle pod."""
    groups = create(machine, pod(), layout=layout)
    create(machine, pod("b3e5b9dc-1111-4222-8333-444455556666"), layout=layout)
    process = machine.process(cgroup=groups.containers["main"])
    machine.open("/dev/kfd", process)
    machine.allocate_vram(process, BDF, 3 * GIB)
    machine.occupy(process, BDF, 7)
    if machine.cgroups.dmem is not None:
        machine.write(f"/sys/fs/cgroup{groups.path}/dmem.max", f"drm/{BDF}/vram {4 * GIB}".encode())
    return machine


def test_gpus_and_partitions_are_in_the_order_of_their_cards_with_use_and_sensors() -> None:
    machine = busy(Machine(node(gpu={"mode": "QPX"})))
    gpus = look(machine)["gpus"]
    assert [gpu["bdf"] for gpu in gpus] == [gpu["bdf"] for gpu in machine.describe()["gpus"]]  # type: ignore[attr-defined]
    first = gpus[0]
    assert first["vram_used"] == machine.gpu(BDF).vram_used > 3 * GIB
    assert first["vram_total"] == 309220868096
    assert (first["mode"], first["memory_mode"], first["celsius"], first["watts"]) == ("QPX", "NPS1", 45, 150)
    assert [part["cus"] for part in first["partitions"]] == [64] * 4
    assert [(part["vram_used"], part["cus_occupied"]) for part in first["partitions"]] == [
        (3 * GIB, 7),
        (0, 0),
        (0, 0),
        (0, 0),
    ]
    assert len({part["gpu_id"] for gpu in gpus for part in gpu["partitions"]}) == 32


@pytest.mark.parametrize(
    "layout", LAYOUTS, ids=[f"{one.driver} {one.runtime} {one.cgroup_root}" for one in LAYOUTS]
)
def test_pods_are_found_by_their_cgroups_however_the_node_names_them(layout: Layout) -> None:
    state = look(busy(Machine(node()), layout))
    used, idle = state["pods"]
    assert (used["uid"], used["qos"], len(used["containers"])) == (UID, "BestEffort", 2)
    assert used["gpus"] == {
        BDF: {"used": 3 * GIB, "limit": 4 * GIB, "processes_vram": 3 * GIB, "cus_occupied": 7}
    }
    assert [process["pod"] for process in state["processes"]] == [UID]
    assert used["pids"] == [process["pid"] for process in state["processes"]]
    assert (idle["gpus"], idle["pids"]) == ({}, [])


def test_without_dmem_a_pod_has_what_its_processes_asked_of_kfd() -> None:
    state = look(busy(Machine(load("mi355x/spx-6.8"))))
    assert state["dmem"] is False
    assert state["pods"][0]["gpus"] == {
        BDF: {"used": None, "limit": None, "processes_vram": 3 * GIB, "cus_occupied": 7}
    }
    text = "\n".join(plain(state))
    assert re.search(rf"{UID} +BestEffort +0 +3072 MiB +- +- +7 +1", text)
    assert "no dmem controller" in text


def test_plain_text_says_all_of_it() -> None:
    lines = list(plain(look(busy(Machine(node(count=2, gpu={"mode": "DPX"}))))))
    assert re.sub(" +", " ", lines[0]) == "GPU PCI address product mode VRAM used busy CUs temp power"
    assert re.search(
        rf"^ +0 +{BDF} .* DPX/NPS1 +3372 of 294896 MiB +1 % +0 % +7 of 256 +45 °C +150 W$", lines[1]
    )
    assert re.search(r"^ +0 +renderD\d+, KFD node \d+ +3072 MiB +7 of 128$", lines[2])
    assert re.search(rf"^{UID} +BestEffort +0 +3072 MiB +4096 MiB +75 % +7 +1$", lines[-3])
    assert lines[-1] == "1 pod has no VRAM and no limit"


def test_processes_outside_pods_are_named() -> None:
    machine = Machine(node())
    process = machine.process()
    machine.open("/dev/kfd", process)
    assert list(plain(look(machine)))[-1] == f"processes outside pods: {process.pid}"


def test_a_gpu_that_is_pulled_is_gone_and_a_node_without_gpus_says_so() -> None:
    machine = Machine(node(count=2))
    machine.remove(BDF)
    assert [gpu["bdf"] for gpu in look(machine)["gpus"]] == ["0000:05:00.0"]
    assert "amdgpu drives no GPU of this node" in list(plain(look(Machine(load("mi355x/spx-6.8-intree")))))


def test_files_of_a_real_tree_are_read_the_same(tmp_path: Path) -> None:
    machine = busy(Machine(node(count=2, gpu={"mode": "QPX"})))
    render(machine, str(tmp_path / "node"))

    class Below(RealFiles):
        def read(self, path: str) -> bytes:
            return super().read(f"{tmp_path}/node{path}")

        def list(self, path: str) -> Any:
            return super().list(f"{tmp_path}/node{path}")

    assert look(Below()) == look(machine)


# The command


@pytest.fixture
def served() -> Iterator[tuple[str, Machine]]:
    machine = busy(Machine(node(gpu={"mode": "CPX"})))
    with tempfile.TemporaryDirectory(prefix="top") as directory, Server(machine, f"{directory}/s"):
        yield f"unix:{directory}/s", machine


def test_json_is_printed_once(served: tuple[str, Machine], capsys: Output) -> None:
    where, machine = served
    assert main(["top", where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(look(machine)))


def test_where_nobody_watches_plain_text_is_printed_once(served: tuple[str, Machine], capsys: Output) -> None:
    where, machine = served
    assert main(["top", where]) == 0
    assert capsys.readouterr().out.splitlines() == list(plain(look(machine)))


def test_live_on_a_computer_without_amdgpu_is_one_line(capsys: Output) -> None:
    if Path("/sys/bus/pci/drivers/amdgpu").exists():
        pytest.skip("this computer has amdgpu")
    assert main(["top", "--live"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "amdgpu drives no GPU of this computer" in err


@pytest.mark.parametrize(
    "words",
    [[], ["mi355x/spx-6.14", "--live"], ["mi355x/spx-6.14", "--interval", "0"], ["x", "--interval", "soon"]],
)
def test_wrong_usage_is_2(words: list[str], capsys: Output) -> None:
    assert main(["top", *words]) == 2
    assert "usage: gpusim top" in capsys.readouterr().err


def test_nobody_serving_is_one_line(capsys: Output) -> None:
    assert main(["top", "unix:/nonexistent/socket"]) == 1
    assert "gpusim serve" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_on_a_terminal_it_refreshes_until_interrupted_and_leaves_the_screen(
    served: tuple[str, Machine], number: signal.Signals
) -> None:
    where, machine = served
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpusim.cli", "top", where, "--interval", "0.1"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"},
        )
        seen = read_until(ours, lambda text: "3072 MiB" in text and "Ctrl-C ends" in text)
        assert "\x1b[?1049h" in seen
        assert "idle partitions are not shown" in seen, "64 partitions are higher than 40 lines"
        (busy_process,) = machine.processes
        machine.occupy(busy_process, BDF, 32)
        read_until(ours, lambda text: "32 of 32" in text)
        process.send_signal(number)
        seen = read_until(ours, lambda text: "\x1b[?1049l" in text)
        assert process.wait(10) == 0
        assert "\x1b[?25h" in seen, "the cursor is back"
        assert "Traceback" not in seen
    finally:
        os.close(ours)
        os.close(theirs)


def read_until(descriptor: int, enough: Any, seconds: float = 20.0) -> str:
    text, end = "", time.monotonic() + seconds
    while not enough(text):
        left = end - time.monotonic()
        assert left > 0, text[-3000:]
        if select.select([descriptor], [], [], left)[0]:
            text += os.read(descriptor, 1 << 16).decode(errors="replace")
    return text
