"""Plans of faults: what strikes when, on any host, and what the docs say of it."""

from __future__ import annotations

import contextlib
import errno
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.linux import LinuxHost
from gpusim.cluster.apifaults import Call, Faults
from gpusim.errors import GpusimError
from gpusim.export.render import render
from gpusim.machine import Machine
from gpusim.remote import RemoteMachine
from gpusim.serve import Server
from gpusim.spec import NodeSpec
from gpusim.testing.clock import Clock
from gpusim.testing.faults import OPERATIONS, VERBS, Fault, Plan, arm, seeded
from gpusim.testing.faulty import Faulty
from gpusim.testing.machines import node
from gpusim.testing.trace import Recorder

BDF = "0000:75:00.0"
PCI = f"/sys/bus/pci/devices/{BDF}"
MODE = f"{PCI}/current_compute_partition"
DOCS = Path(__file__).resolve().parents[3] / "docs" / "faults.md"


def faulty(*faults: Fault) -> Faulty:
    return Faulty(Machine(node(each=[{}])), Plan(faults))


def code(act: Any) -> str:
    with pytest.raises(OSError) as caught:
        act()
    return errno.errorcode[caught.value.errno or 0]


@pytest.mark.parametrize(("verb", "name"), [("eio", "EIO"), ("eperm", "EPERM")])
def test_a_read_fails_once_with_the_errno_and_the_path(verb: str, name: str) -> None:
    host = faulty(Fault(verb, path="*partition", nth=2))
    assert host.read(MODE) == b"SPX\n"
    with pytest.raises(OSError) as caught:
        host.read(MODE)
    assert (errno.errorcode[caught.value.errno or 0], caught.value.filename) == (name, MODE)
    assert host.read(MODE) == b"SPX\n"


def test_a_busy_write_changes_nothing() -> None:
    host = faulty(Fault("ebusy", times=2))
    assert [code(lambda: host.write(MODE, b"CPX")) for _ in range(2)] == ["EBUSY"] * 2
    assert host.read(MODE) == b"SPX\n"
    host.write(MODE, b"CPX")
    assert host.read(MODE) == b"CPX\n"


@given(st.integers(1, 5), st.one_of(st.none(), st.integers(1, 5)), st.integers(1, 12))
def test_the_nth_to_the_last_of_its_times_are_struck(nth: int, times: int | None, reads: int) -> None:
    host, failed = faulty(Fault("eio", nth=nth, times=times)), []
    for number in range(1, reads + 1):
        try:
            host.read(MODE)
        except OSError:
            failed.append(number)
    assert failed == [n for n in range(1, reads + 1) if n >= nth and (times is None or n < nth + times)]
    assert len(host.struck) == len(failed)


def test_a_slow_read_takes_virtual_time_only() -> None:
    host = faulty(Fault("slow", seconds=30.0))
    assert host.read(MODE) == b"SPX\n" and host.clock() == 30.0


def test_files_are_cut_and_padded() -> None:
    host = faulty(Fault("truncate", size=2), Fault("pad", size=16, nth=2))
    assert host.read(MODE) == b"SP"
    assert host.read(MODE) == b"SPX\n" + bytes(12)


def test_a_name_vanishes_between_list_and_read() -> None:
    host = faulty(Fault("vanish", path="/sys/bus/pci/devices", name=BDF))
    assert BDF in host.list("/sys/bus/pci/devices")
    assert code(lambda: host.read(MODE)) == "ENOENT" == code(lambda: host.stat(PCI))
    assert BDF not in host.list("/sys/bus/pci/devices")


@pytest.mark.parametrize(
    "path",
    [
        "/run/d/b",
        "//run/d/b",
        "/run/./d/b",
        "/run/d/../d/b",
        "/run/way/b",
        "/run/d//b/",
        "/run/d/b/c",
        "/run/to-b",
    ],
)
@pytest.mark.parametrize("listed", ["/run/d", "//run/./d/", "/run/way"])
def test_what_vanished_is_gone_however_its_path_is_written(path: str, listed: str) -> None:
    host = faulty(Fault("vanish", name="b"))
    host.mkdir("/run/d/b")
    host.put("/run/d/b/c", b"1")
    host.host.symlink("d", "/run/way")
    host.host.symlink("d/b", "/run/to-b")
    assert "b" in host.list(listed)
    assert code(lambda: host.list(path)) == "ENOENT" == code(lambda: host.stat(path))
    assert "b" not in host.list("/run/d")
    assert "b" not in host.list("/run/way")
    assert host.readlink("/run/to-b") == "d/b"
    host.mkdir("/run/way/b")
    assert host.list("/run/d/b") == ["c"]


def test_a_link_that_vanished_leaves_what_it_led_to() -> None:
    host = faulty(Fault("vanish", path="/sys/bus/pci/devices", name=BDF))
    real = host.host.tree.resolve(PCI)
    host.list("/sys/bus/pci/devices")
    assert code(lambda: host.list(PCI)) == "ENOENT" == code(lambda: host.readlink(PCI))
    assert "current_compute_partition" in host.list(real)


def test_links_that_lead_round_and_round_are_eloop_as_before() -> None:
    host = faulty(Fault("vanish", name="x"))
    host.mkdir("/run/d")
    host.put("/run/d/x", b"")
    host.host.symlink("loop", "/run/loop")
    host.list("/run/d")
    assert code(lambda: host.read("/run/loop/y")) == "ELOOP"


def test_a_gpu_that_is_not_on_the_node_is_refused_when_the_plan_meets_it() -> None:
    plan = Plan((Fault("unplug", gpu="0000:ff:00.0"),))
    assert Plan.from_json(plan.to_json()) == plan  # alone it cannot know
    words = f"fault unplug: the node has no GPU at '0000:ff:00.0'; it has {BDF}"
    with pytest.raises(GpusimError) as refused:
        Faulty(Machine(node(each=[{}])), plan)
    assert str(refused.value) == words
    with pytest.raises(GpusimError, match="it has none"):
        Faulty(Machine(node(each=[])), plan)
    with pytest.raises(GpusimError, match=f"it has {re.escape(BDF)}"):
        Recorder(node(each=[{}]), plan)
    with served(node(each=[{}])) as remote, pytest.raises(GpusimError) as refused:
        Faulty(remote, plan)
    assert str(refused.value) == words


@contextlib.contextmanager
def served(spec: NodeSpec) -> Iterator[RemoteMachine]:
    with tempfile.TemporaryDirectory() as place, Server(Machine(spec), f"{place}/socket") as server:
        remote = RemoteMachine(server.path)
        yield remote
        remote.disconnect()


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("nth", "3", "int"),
        ("nth", None, "int"),
        ("nth", True, "int"),
        ("times", "all", "int"),
        ("times", 1.5, "int"),
        ("size", "4", "int"),
        ("seconds", "5", "int or float"),
        ("code", "500", "int"),
        ("path", None, "str"),
        ("gpu", 5, "str"),
        ("name", b"x", "str"),
        ("on", ["read"], "str"),
    ],
)
def test_a_value_of_another_type_is_named(field: str, value: object, kind: str) -> None:
    fields: dict[str, Any] = {field: value}
    with pytest.raises(GpusimError) as refused:
        Fault("eio", **fields)
    assert str(refused.value) == f"fault eio: {field} = {value!r} is no {kind}"
    with pytest.raises(GpusimError):
        Fault(["eio"])  # type: ignore[arg-type]


def test_a_gpu_is_unplugged_between_list_and_read_and_comes_back() -> None:
    host = faulty(
        Fault("unplug", path="/sys/bus/pci/devices", gpu=BDF),
        Fault("plug", path="/sys/bus/pci/devices", nth=2, gpu=BDF),
    )
    assert BDF in host.list("/sys/bus/pci/devices")
    assert code(lambda: host.read(MODE)) == "ENOENT"
    assert BDF not in host.list("/sys/bus/pci/devices")
    assert host.read(MODE) == b"SPX\n"


def test_a_gpu_hangs_and_recovers_behind_an_operation() -> None:
    host = faulty(Fault("hang", on="read", gpu=BDF), Fault("recover", on="probe", gpu=BDF))
    host.read(MODE)
    assert code(lambda: host.probe("/dev/dri/renderD128")) == "EIO"
    host.probe("/dev/dri/renderD128")


def test_a_program_that_is_too_slow_times_out() -> None:
    host = faulty(Fault("slow", on="run", path="npu-smi", seconds=60.0))
    with pytest.raises(TimeoutError, match="npu-smi"):
        host.run(["npu-smi", "info"], timeout=10)
    assert host.clock() == 10


def test_a_new_file_may_take_the_place_of_what_vanished() -> None:
    host = faulty(Fault("vanish", path="/tmp"))
    host.mkdir("/tmp")
    host.put("/tmp/x", b"1")
    assert host.list("/tmp") == ["x"]
    assert code(lambda: host.read("/tmp/x")) == "ENOENT"
    host.put("/tmp/x", b"2")
    assert host.read("/tmp/x") == b"2"


def test_any_host_can_be_wrapped(tmp_path: Path) -> None:
    render(Machine(node(each=[{}])), str(tmp_path / "node"))
    host = Faulty(LinuxHost(str(tmp_path / "node")), Plan((Fault("eio", nth=2),)))
    assert host.read(MODE) == b"SPX\n" and code(lambda: host.read(MODE)) == "EIO"
    with pytest.raises(GpusimError, match="LinuxHost has no remove"):
        Faulty(LinuxHost("/"), Plan((Fault("unplug", gpu=BDF),)))


def test_a_fork_has_the_same_faults_still_to_come() -> None:
    host = faulty(Fault("eio", nth=2))
    host.read(MODE)
    twin = host.fork()
    assert code(lambda: twin.read(MODE)) == "EIO" == code(lambda: host.read(MODE))


@given(st.integers(), st.integers(0, 9))
def test_a_seeded_plan_is_the_same_every_time_and_can_be_written(seed: int, faults: int) -> None:
    plan = seeded(seed, faults=faults, gpus=[BDF], paths=["*", "/sys/*"])
    assert plan == seeded(seed, faults=faults, gpus=[BDF], paths=["*", "/sys/*"])
    assert len(plan.faults) == faults and Plan.from_json(plan.to_json()) == plan
    assert seeded(seed, faults=2, verbs=list(VERBS), gpus=[BDF]).faults


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Fault("explode"), "explode"),
        (lambda: Fault("unplug"), "gpu is needed"),
        (lambda: Fault("slow"), "seconds is needed"),
        (lambda: Fault("eio", on="ioctl"), "ioctl"),
        (lambda: Fault("eio", nth=0), "start at 1"),
        (lambda: Fault("truncate", on="write"), "read"),
        (lambda: Fault("slow", seconds=float("nan")), "finite"),
        (lambda: Plan.from_json([{"verb": "eio", "nth": "1"}]), "nth"),
        (lambda: Plan.from_json([{"verb": "eio", "colour": 1}]), "colour"),
        (lambda: Plan.from_json({}), "list"),
        (lambda: seeded(1, verbs=["unplug"]), "can strike"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(make: Any, said: str) -> None:
    with pytest.raises(GpusimError, match=said):
        make()


CALLS = (("get", "nodes"), ("patch", "pods"), ("patch", "pods"), ("update", "nodes"))


def test_the_api_servers_part_of_a_plan_strikes_there() -> None:
    api = SimpleNamespace(faults=Faults())
    plan = Plan(
        (
            Fault("api-error", on="patch", path="pods", code=409),
            Fault("api-lose", on="update"),
            Fault("api-slow", seconds=0.5),
        )
    )
    arm(plan, api=api)
    found = [api.faults.strike(Call(verb, resource)) for verb, resource in CALLS]
    assert [fault and (fault.action, fault.code, fault.delay) for fault in found] == [
        ("none", 500, 0.5),
        ("error", 409, 0.0),
        None,
        ("lose", 500, 0.0),
    ]


def test_kubelets_part_of_a_plan_is_set_or_waits_for_its_time() -> None:
    done: list[str] = []
    kubelet = SimpleNamespace(
        faults=SimpleNamespace(
            options_failures=0, accepted_version="v1beta1", dial_delay=0.0, allocate_delay=0.0
        ),
        restart=lambda: done.append("restart"),
        kill=lambda: done.append("kill"),
        cancel_stream=done.append,
    )
    clock = Clock()
    plan = Plan(
        (
            Fault("options-fail", times=3),
            Fault("version", name="v1"),
            Fault("dial-slow", seconds=1.0),
            Fault("allocate-slow", seconds=2.0),
            Fault("kubelet-restart", seconds=20.0),
            Fault("kubelet-kill", seconds=30.0),
            Fault("stream-cut", name="amd.com/gpu"),
        )
    )
    arm(plan, kubelet=kubelet, clock=clock)
    assert vars(kubelet.faults) == {
        "options_failures": 3,
        "accepted_version": "v1",
        "dial_delay": 1.0,
        "allocate_delay": 2.0,
    }
    assert done == ["amd.com/gpu"]
    clock.advance(25)
    assert done == ["amd.com/gpu", "restart"]
    clock.advance(5)
    assert done[-1] == "kill"
    with pytest.raises(GpusimError, match="clock"):
        arm(plan, kubelet=kubelet)


@pytest.mark.parametrize("how", ["put", "rename", "copy"])
def test_what_is_made_under_a_name_that_vanished_is_there_again(how: str) -> None:
    host = faulty(Fault("vanish", path="/run/own", name="b"))
    host.mkdir("/run/own")
    for name in ("a", "b"):
        host.put(f"/run/own/{name}", name.encode())
    host.list("/run/own")
    assert code(lambda: host.read("/run/own/b")) == "ENOENT"
    if how == "put":
        host.put("/run/own/b", b"a")
    elif how == "rename":
        host.rename("/run/own/a", "/run/own/b")
    else:
        host.copy("/run/own/a", "/run/own/b", 0o644)
    assert "b" in host.list("/run/own")
    assert host.read("/run/own/b") == b"a"


def test_a_plan_that_is_not_made_of_faults_says_so_at_once() -> None:
    one = Fault("eio")
    assert Plan([one]) == Plan((one,))  # type: ignore[arg-type]
    for wrong in (one, "eio", ("eio",), None):
        with pytest.raises(GpusimError, match=r"^a plan is made of a tuple of faults, .* not of "):
            Plan(wrong)  # type: ignore[arg-type]


def test_the_docs_list_every_operation_that_can_be_struck() -> None:
    (listed,) = re.findall(r"^\| `on` \| the operation: `([a-z ]+)`", DOCS.read_text(), re.MULTILINE)
    assert sorted(listed.split()) == sorted(OPERATIONS)


def test_the_docs_list_every_verb_with_its_sentence() -> None:
    rows = re.findall(
        r"^\| `([a-z-]+)` \| ([a-z]+) \| (.*?) \| (.*?) \| (.*?) \|$", DOCS.read_text(), re.MULTILINE
    )
    assert [(verb, where, does) for verb, where, _, _, does in rows] == [
        (verb, row.where, row.does) for verb, row in VERBS.items()
    ]
    assert [on.strip("`") for _, _, on, _, _ in rows] == [row.on or "–" for row in VERBS.values()]
    assert [tuple(re.findall("`([a-z]+)`", needs)) for _, _, _, needs, _ in rows] == [
        r.needs for r in VERBS.values()
    ]
