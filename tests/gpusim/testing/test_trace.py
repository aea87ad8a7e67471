"""Traces: what is written can be done again byte for byte, and what differs is found."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.cli.main import main
from gpusim.machine import Machine
from gpusim.process import DeviceRules
from gpusim.spec import NodeSpec
from gpusim.testing import strategies
from gpusim.testing.faults import Fault, Plan
from gpusim.testing.history import Step, play
from gpusim.testing.machines import node
from gpusim.testing.trace import BadTrace, Recorder, replay, tree_text

BDF = "0000:75:00.0"
ADDRESSES = [BDF, "0000:05:00.0"]
KFD = "/sys/class/kfd/kfd/topology/nodes"


def busy_trace() -> Recorder:
    """A bit of everything, with a fork in it."""
    plan = Plan((Fault("eio", path="*gpu_id", nth=2), Fault("slow", on="list", seconds=1.5)))
    recorder = Recorder(node(each=[{}, {"mode": "QPX"}]), plan)
    recorder.list(KFD)
    recorder.stat("/dev/kfd")
    for number in (8, 9, 9):
        with contextlib.suppress(OSError):
            recorder.read(f"{KFD}/{number}/gpu_id")
    process = recorder.process(DeviceRules.only((226, 128), (recorder.machine.driver.kfd_major, 0)), uid=0)
    handle = recorder.open("/dev/kfd", process)
    made = recorder.allocate_vram(process, BDF, 1 << 20)
    twin = recorder.fork()
    for size in (1 << 20, 1 << 60):
        with contextlib.suppress(OSError):
            twin.allocate_vram(twin.machine.processes.get(process.pid), BDF, size)
    twin.free(twin.machine.vram.get(made.number))
    twin.close(twin.machine.processes.handle(handle.number))
    handle.closed = True
    with contextlib.suppress(OSError):
        twin.use(handle)
    twin.switch(BDF, "CPX")
    twin.describe()
    twin.advance(2.5)
    return twin


def test_a_trace_is_replayed_byte_for_byte() -> None:
    text = busy_trace().text()
    done = replay(text)
    assert (done.line, done.was, done.now) == (0, "", "")
    assert done.same and done.text == text


@given(
    strategies.nodes(max_gpus=2),
    strategies.histories(max_size=8),
    strategies.fault_plans(gpus=(), max_faults=2),
)
def test_every_history_under_every_plan_is_replayed_byte_for_byte(
    spec: NodeSpec, steps: list[Step], plan: Plan
) -> None:
    recorder = Recorder(spec, plan)
    play(recorder, steps)
    for path in ("/dev", "/sys/bus/pci/devices", KFD):
        try:
            recorder.list(path)
        except OSError:
            continue
    assert replay(recorder.text()).same


def test_the_first_line_that_differs_is_named() -> None:
    lines = busy_trace().text().splitlines(keepends=True)
    number = next(i for i, line in enumerate(lines) if '"switch"' in line)
    lines[number] = lines[number].replace('"CPX"', '"DPX"')
    done = replay("".join(lines))
    assert not done.same and done.line > number + 1  # the call is done as written, what follows differs


def test_a_machine_that_answers_otherwise_is_found_out() -> None:
    class Other(Machine):
        def read(self, path: str) -> bytes:
            return super().read(path) + b"!" if path.endswith("/gpu_id") else super().read(path)

    done = replay(busy_trace().text(), make=Other)
    assert not done.same and "gpu_id" in done.was and "!" in done.now


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1"),
        ("{}", "not a trace"),
        ("nonsense", "not JSON"),
        ('{"gpusim": "trace", "version": 9, "node": ""}', "version 9"),
        ('{"gpusim": "trace", "version": 1, "node": "kernel: []"}', "its node"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(BadTrace, match=said):
        replay(text)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"do": "explode"}, "nothing is called"),
        ({"do": "__init__"}, "nothing is called"),
        ({"do": "read", "args": 3}, "args is a list"),
        ({"do": "read", "args": [7]}, "make no sense"),
        ({"do": "close", "args": [{"handle": 99}]}, "no handle 99"),
        ({"do": "write", "args": ["/x", {"bytes": 4}]}, "make no sense"),
        ({"do": "write", "args": ["/x", {"a": 1, "b": 2}]}, "make no sense"),
    ],
)
def test_a_call_that_cannot_be_is_refused_with_its_line(call: object, said: str) -> None:
    head, *_ = Recorder(node(each=[{}])).text().splitlines()
    with pytest.raises(BadTrace, match=f"line 2.*{said}"):
        replay(f"{head}\n{json.dumps(call)}\n")


def test_a_trace_that_was_cut_is_refused() -> None:
    with pytest.raises(BadTrace, match="was cut"):
        replay("".join(busy_trace().text().splitlines(keepends=True)[:-1]))


@given(st.data())
def test_a_damaged_trace_is_replayed_or_refused(data: st.DataObject) -> None:
    text = data.draw(strategies.damaged_files(TRACE.encode())).decode("utf-8", "replace")
    with contextlib.suppress(BadTrace):
        replay(text)


TRACE = busy_trace().text()


# ---- the command


def test_the_command_replays_shows_and_says_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(TRACE)
    again = tmp_path / "again.jsonl"
    assert main(["replay", str(file), "--show", "--output", str(again)]) == 0
    out = capsys.readouterr().out
    assert f"switch '{BDF}' 'CPX'" in out and "→ EIO" in out and "every answer the same" in out
    assert again.read_text() == TRACE
    file.write_text(TRACE.replace('"kind": "DIRECTORY"', '"kind": "FILE"').replace("4096", "4097"))
    file.write_text(TRACE.replace('{"errno": "EIO"', '{"errno": "EPERM"'))
    assert main(["replay", str(file), "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["same"] is False and "EPERM" in result["was"] and "EIO" in result["now"]
    assert main(["replay", str(file)]) == 1
    assert f"line {result['line']} differs" in capsys.readouterr().out


def test_the_command_refuses_what_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_bytes(b"\xff\xfe")
    assert main(["replay", str(file)]) == 1
    assert main(["replay", str(tmp_path / "none")]) == 1
    file.write_text("{}")
    assert main(["replay", str(file)]) == 1
    err = capsys.readouterr().err
    assert "not UTF-8" in err and "No such file" in err and "not a trace" in err


# ---- determinism

PROGRAM = """
import sys
from gpusim import Machine, load
from gpusim.testing.clock import EventLog
from gpusim.testing.faults import seeded
from gpusim.testing.faulty import Faulty
from gpusim.testing.trace import Recorder, tree_text
import random

name, seed = sys.argv[1], int(sys.argv[2])
spec = load(name)
gpus = [gpu.bdf for gpu in spec.gpus]
recorder = Recorder(spec, seeded(seed, faults=6, gpus=gpus, within=20))
log = EventLog(recorder.clock)
log.follow(recorder.machine)
dice = random.Random(seed)
for _ in range(60):
    step = dice.choice(("switch", "read", "list", "process", "remove", "add", "advance"))
    bdf = dice.choice(gpus)
    try:
        if step == "switch":
            recorder.switch(bdf, dice.choice(("SPX", "DPX", "QPX", "CPX")))
        elif step == "read":
            recorder.read(f"/sys/bus/pci/devices/{bdf}/mem_info_vram_used")
        elif step == "list":
            recorder.list("/sys/class/kfd/kfd/topology/nodes")
        elif step == "process":
            process = recorder.process()
            recorder.open("/dev/kfd", process)
            recorder.allocate_vram(process, bdf, dice.randint(1, 1 << 30))
            if dice.random() < 0.7:
                recorder.exit(process)
        elif step == "advance":
            recorder.advance(dice.random())
        else:
            getattr(recorder, step)(bdf)
    except Exception as error:
        log.record("refused", step=step, why=str(error))
sys.stdout.write(log.text() + recorder.text() + tree_text(recorder.machine))
"""


@pytest.mark.parametrize(("fixture", "seed"), [("mi355x/qpx-6.14", 1), ("mi300x/cpx-6.8-bmc-63", 2)])
def test_the_same_seed_gives_the_same_tree_and_log_in_every_process(fixture: str, seed: int) -> None:
    def run(hash_seed: str, chosen: int) -> bytes:
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, fixture, str(chosen)], env=env, capture_output=True, check=True
        )
        return done.stdout

    first = run("0", seed)
    assert first == run("4242", seed)
    assert len(first) > 100_000 and first != run("0", seed + 100)


def test_a_machine_goes_back_to_a_fork_as_often_as_it_is_asked() -> None:
    machine = Machine(node(each=[{}, {}]))
    machine.mkdir("/var/lib")
    machine.put("/var/lib/x", b"1")
    saved = machine.fork()
    before = (tree_text(machine), machine.describe(), list(machine.events))
    for _ in range(2):
        machine.remove(BDF)
        machine.switch(ADDRESSES[1], "CPX")
        machine.open("/dev/kfd", machine.process())
        machine.put("/var/lib/x", b"2")
        assert tree_text(machine) != before[0]
        machine.rewind(saved)
        assert (tree_text(machine), machine.describe(), list(machine.events)) == before
    assert tree_text(saved) == before[0]
    machine.switch(BDF, "CPX")
    assert saved.read(f"/sys/bus/pci/devices/{BDF}/current_compute_partition") == b"SPX\n"
