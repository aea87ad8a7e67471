"""A served machine answers like one in the same process, to many at once, and its socket is treated well."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusim.errors import GpusimError, NoServerError, SocketInUseError
from gpusim.machine import Completed, Machine
from gpusim.process import DeviceRules
from gpusim.remote import RemoteMachine
from gpusim.serve import Server, serve
from gpusim.spec import GpuSpec, NodeSpec
from gpusim.wire import error_in, error_out

BDF = "0000:75:00.0"
SPEC = NodeSpec("node", kernel="6.14.0-1-generic", driver="dkms-6.14.14", gpus=(GpuSpec("MI355X", BDF),))
MODE = f"/sys/bus/pci/devices/{BDF}/current_compute_partition"


@pytest.fixture
def machine() -> Machine:
    return Machine(SPEC)


@pytest.fixture
def path(tmp_path: Path) -> str:
    # pytest's own directories may be longer than a socket path can be.
    return os.path.relpath(tmp_path / "node.sock") if len(str(tmp_path)) > 90 else str(tmp_path / "node.sock")


@pytest.fixture
def server(machine: Machine, path: str) -> Iterator[Server]:
    with serve(machine, path) as running:
        yield running


@pytest.fixture
def remote(server: Server, path: str) -> Iterator[RemoteMachine]:
    client = RemoteMachine(path)
    yield client
    client.disconnect()


def refused(call: Callable[[], object]) -> tuple[str, object, object]:
    with pytest.raises(OSError) as caught:
        call()
    error = caught.value
    return errno.errorcode[error.errno or 0], error.strerror, error.filename


# The same answers


def test_every_file_reads_the_same_on_both_sides(machine: Machine, remote: RemoteMachine) -> None:
    compared = 0
    for name, _ in list(machine.tree.every_file()):
        assert remote.stat(name, follow=False) == machine.stat(name, follow=False)
        kind = machine.stat(name, follow=False).kind.name
        if kind == "LINK":
            assert remote.readlink(name) == machine.readlink(name)
        elif kind == "DIRECTORY":
            assert remote.list(name) == machine.list(name)
        elif kind == "FILE" and machine.stat(name).mode & 0o444:
            assert read_or_errno(remote, name) == read_or_errno(machine, name)
            compared += 1
    assert compared > 100


def read_or_errno(host: Machine | RemoteMachine, name: str) -> bytes | int | None:
    try:
        return host.read(name)
    except OSError as error:  # a file without a value now, such as the delay of a device that never sleeps
        return error.errno


def test_files_of_any_bytes_travel_whole(machine: Machine, remote: RemoteMachine) -> None:
    data = bytes(range(256)) * 5000
    remote.mkdir("/var/lib/x/y")
    remote.put("/var/lib/x/y/f", data, 0o600)
    assert machine.read("/var/lib/x/y/f") == remote.read("/var/lib/x/y/f") == data
    assert remote.write("/var/lib/x/y/f", b"") == 0
    remote.copy("/var/lib/x/y/f", "/var/lib/x/\udcff", 0o644)
    assert remote.list("/var/lib/x") == ["y", "\udcff"]
    remote.unlink("/var/lib/x/\udcff")
    assert machine.list("/var/lib/x") == ["y"]


def test_an_error_comes_back_with_errno_text_and_file_name(machine: Machine, remote: RemoteMachine) -> None:
    for call in (
        lambda host: host.read("/sys/none"),
        lambda host: host.list(MODE),
        lambda host: host.write(MODE, b"none"),
        lambda host: host.mkdir("/sys/x"),
        lambda host: host.probe("/dev/dri/renderD129"),
        lambda host: host.run(["npu-smi"]),
    ):
        assert refused(lambda: call(remote)) == refused(lambda: call(machine))  # noqa: B023
    with pytest.raises(FileNotFoundError):
        remote.read("/sys/none")


def test_a_view_asks_as_somebody_else(machine: Machine, remote: RemoteMachine) -> None:
    rules = DeviceRules.only((226, 999))
    for local, far in (
        (machine.view(devices=rules), remote.view(devices=rules)),
        (machine.view(readonly=True), remote.view(readonly=True)),
        (machine.view(readonly=("/sys/devices",)), remote.view(readonly=["/sys/devices"])),
        (machine.view(uid=1000, gids=(1,)), remote.view(uid=1000, gids=[1])),
        (machine.view(devices=DeviceRules()), remote.view(devices=DeviceRules())),
    ):
        for call in (
            lambda host: host.read("/sys/class/kfd/kfd/topology/nodes/2/gpu_id"),
            lambda host: host.write(MODE, b"SPX"),
            lambda host: host.probe("/dev/dri/renderD128"),
        ):
            assert outcome(lambda: call(far)) == outcome(lambda: call(local))  # noqa: B023
    assert refused(lambda: remote.view(readonly=True).write(MODE, b"SPX"))[0] == "EROFS"


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except OSError as error:
        return error.errno, error.strerror, error.filename


def test_cgroups_and_memory_of_a_served_machine(machine: Machine, remote: RemoteMachine) -> None:
    top, mib = "/sys/fs/cgroup/kubepods.slice", 1 << 20
    region = f"drm/{BDF}/vram"
    remote.mkdir(f"{top}/a/below")
    remote.rmdir(f"{top}/a/below")
    assert refused(lambda: remote.rmdir(top))[0] == "EBUSY"
    remote.write(f"{top}/cgroup.subtree_control", b"+dmem")
    remote.delegate("/kubepods.slice/a", 1000, 1000)
    remote.view(uid=1000).mkdir(f"{top}/a/own")
    inside = remote.view(cgroup="/kubepods.slice/a")
    assert refused(lambda: inside.write(f"{top}/a/dmem.max", f"{region} 1".encode()))[0] == "EPERM"
    remote.write(f"{top}/dmem.max", f"{region} 8M".encode())
    assert refused(lambda: remote.process(cgroup="/kubepods.slice"))[0] == "EBUSY"
    process = remote.process(cgroup="/kubepods.slice/a")
    assert process.cgroup == "/kubepods.slice/a"
    assert refused(lambda: remote.allocate_vram(process, BDF, mib))[0] == "EBADF"
    remote.open("/dev/kfd", process)
    made = remote.allocate_vram(process, BDF, 8 * mib - 1)
    kept = machine.vram.get(made.number)
    for name in ("number", "pid", "bdf", "minor", "bytes", "place", "cgroup", "gpu_id", "handle", "lost"):
        assert getattr(made, name) == getattr(kept, name)
    assert made.bytes == 8 * mib
    assert refused(lambda: remote.allocate_vram(process, 128, 1))[0] == "ENOMEM"
    spilled = remote.allocate_vram(process, 128, mib, gtt_ok=True)
    assert (spilled.place, spilled.cgroup) == ("gtt", "")
    remote.evict(made)
    assert (made.place, made.cgroup, kept.place) == ("gtt", "", "gtt")
    assert refused(lambda: remote.evict(made))[0] == "EINVAL"
    other = remote.process()
    remote.restore(made, other)
    assert (made.place, made.cgroup) == ("vram", "/")
    remote.evict(made)
    remote.restore(made)  # its owner's group again
    assert made.cgroup == "/kubepods.slice/a"
    remote.move(process, "/")
    assert process.cgroup == machine.processes.get(process.pid).cgroup == "/"
    assert remote.read(f"{top}/a/dmem.current") == f"{region} {8 * mib}\n".encode()
    remote.free(made)
    assert made.place == "freed"
    with pytest.raises(GpusimError, match="freed"):
        remote.free(made)
    remote.occupy(process, 128, 5)
    assert refused(lambda: remote.occupy(process, 128, 100_000))[0] == "EINVAL"
    assert list(machine.vram.occupied.values()) == [5]
    remote.exit(process, reap=False)
    assert machine.vram.allocations == {}
    assert remote.read(f"/proc/{process.pid}/cgroup") == b"0::/\n"
    remote.reap(process)
    assert refused(lambda: remote.read(f"/proc/{process.pid}/cgroup"))[0] == "ENOENT"
    with pytest.raises(GpusimError, match="no zombie"):
        remote.reap(process)
    remote.move(other, "/kubepods.slice/a/own")
    remote.kill("/kubepods.slice/a")
    assert list(machine.processes) == []
    assert remote.describe() == machine.describe()
    assert remote.events == machine.events


def test_a_write_that_would_oops_is_told_to_the_client_as_einval(
    machine: Machine, remote: RemoteMachine
) -> None:
    line = f"drm/{BDF}/vram".encode()
    assert refused(lambda: remote.write("/sys/fs/cgroup/kubepods.slice/dmem.max", line))[0] == "EINVAL"
    assert remote.events[-1]["event"] == "oops"


def test_the_actions_change_the_one_machine(machine: Machine, remote: RemoteMachine) -> None:
    process = remote.process(DeviceRules.only((226, 128)), uid=0, gids=[44])
    assert process.devices == DeviceRules.only((226, 128))
    handle = remote.open("/dev/dri/renderD128", process)
    assert machine.processes.holding(handle.path) == [machine.processes.get(process.pid)]
    assert refused(lambda: remote.open("/dev/kfd", process))[0] == "EPERM"
    remote.use(handle)
    remote.close(handle)
    assert machine.processes.holding(handle.path) == []
    remote.switch(BDF, "CPX")
    assert machine.read(MODE) == b"CPX\n"
    holder = remote.process()
    open_file = remote.open("/dev/dri/renderD128", holder)
    remote.remove(BDF)
    assert refused(lambda: remote.use(open_file))[0] == "ENODEV"
    remote.exit(holder)
    remote.add(BDF)
    remote.mknod("/dev/odd", 99, 1)
    assert refused(lambda: remote.probe("/dev/odd"))[0] == "ENXIO"
    assert remote.events == machine.events
    assert remote.describe() == json.loads(json.dumps(machine.describe()))


def test_a_program_gives_its_status_and_both_outputs(machine: Machine, remote: RemoteMachine) -> None:
    seen: list[object] = []

    def run(argv: list[str], *, timeout: float, stdin: bytes) -> Completed:
        seen.append((argv, timeout, stdin))
        if argv == ["sleep"]:
            raise TimeoutError("sleep: still running after 1 s")
        return Completed(3, b"out\0", b"err")

    machine.run = run  # type: ignore[method-assign, assignment]
    assert remote.run(["tool", "-x"], timeout=1.5, stdin=b"y\n") == Completed(3, b"out\0", b"err")
    assert seen == [(["tool", "-x"], 1.5, b"y\n")]
    with pytest.raises(TimeoutError, match="still running"):
        remote.run(["sleep"])


def test_a_refusal_of_the_simulator_comes_back_as_its_own_error(remote: RemoteMachine) -> None:
    with pytest.raises(GpusimError, match=r"no GPU at 0000:99:00\.0"):
        remote.switch("0000:99:00.0", "SPX")
    with pytest.raises(GpusimError, match="null byte"):
        remote.read("/sys/\0")
    process = remote.process()
    remote.exit(process)
    with pytest.raises(GpusimError, match="no process"):
        remote.open("/dev/kfd", process)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EBUSY, "busy", "/x"),
        PermissionError(errno.EPERM, "no"),
        TimeoutError("late"),
        GpusimError("why"),
    ],
)
def test_an_error_survives_the_wire(error: Exception) -> None:
    back = error_in(json.loads(json.dumps(error_out(error))))
    assert (type(back), str(back)) == (type(error), str(error))


# Many at once


def test_a_process_outlives_the_client_that_started_it(server: Server, path: str, machine: Machine) -> None:
    client = RemoteMachine(path)
    process = client.process()
    client.open("/dev/kfd", process)
    client.disconnect()
    other = RemoteMachine(path)
    assert machine.processes.holding("/dev/kfd") == [machine.processes.get(process.pid)]
    other.exit(process)
    assert machine.processes.holding("/dev/kfd") == []
    other.disconnect()


def test_threads_of_one_client_ask_at_the_same_time_and_get_their_own_answers(remote: RemoteMachine) -> None:
    wrong: list[object] = []

    def ask(number: int) -> None:
        name = f"/var/{number}"
        for turn in range(50):
            remote.put(name, f"{number} {turn}".encode())
            if remote.read(name) != f"{number} {turn}".encode():
                wrong.append((number, turn))
        remote.disconnect()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


COUNT_UP = """
import sys
from gpusim.remote import RemoteMachine
client = RemoteMachine(sys.argv[1])
for _ in range(20):
    client.process()
"""


def test_several_processes_share_one_machine(server: Server, path: str, machine: Machine) -> None:
    clients = [subprocess.Popen([sys.executable, "-c", COUNT_UP, path]) for _ in range(3)]
    assert [client.wait(timeout=60) for client in clients] == [0, 0, 0]
    assert len(machine.processes) == 60


FORK = """
import os, sys
from gpusim.remote import RemoteMachine
client = RemoteMachine(sys.argv[1])
child = os.fork()
name = "/var/parent" if child else "/var/child"
for turn in range(100):
    client.put(name, f"{name} {turn}".encode())
    assert client.read(name) == f"{name} {turn}".encode()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_does_not_disturb_its_parents_conversation(server: Server, path: str) -> None:
    subprocess.run([sys.executable, "-c", FORK, path], check=True, timeout=60)


def test_a_client_that_talks_nonsense_is_dropped_and_the_others_go_on(
    server: Server, path: str, remote: RemoteMachine
) -> None:
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2\0\0\0\0[]", b"\0\0\0\4\0\0\0\0{{{{"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rude:
            rude.connect(path)
            rude.sendall(noise)
            rude.settimeout(10)
            assert rude.recv(1) == b""
    assert remote.read(MODE) == b"SPX\n"


# The socket


def test_nobody_listening_is_said_with_the_socket_and_the_remedy(path: str) -> None:
    with pytest.raises(NoServerError) as caught:
        RemoteMachine(path)
    assert path in str(caught.value)
    assert f"gpusim serve FIXTURE --socket {path}" in str(caught.value)


def test_what_is_no_machine_is_told_from_one(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.bind(path)
        stranger.listen()

        def answer() -> None:
            connection, _ = stranger.accept()
            connection.sendall(b"220 mail.example ESMTP\r\n")
            connection.recv(1000)
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NoServerError, match="no machine of ours"):
            RemoteMachine(path)
        thread.join()


def test_a_path_over_107_bytes_is_refused_on_both_ends(machine: Machine) -> None:
    long = "/tmp/" + "x" * 103
    for call in (lambda: serve(machine, long), lambda: RemoteMachine(long)):
        with pytest.raises(GpusimError, match="108 bytes"):
            call()


def test_the_longest_path_works(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serve(machine, "x" * 107):
        client = RemoteMachine("x" * 107)
        assert client.read(MODE) == b"SPX\n"
        client.disconnect()
    assert os.listdir(tmp_path) == []


def test_a_stale_socket_is_replaced_and_a_live_one_refused(machine: Machine, path: str) -> None:
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(path)
    dead.close()
    with serve(machine, path), pytest.raises(SocketInUseError, match=path):
        serve(machine, path).start()
    with serve(machine, path):
        client = RemoteMachine(path)
        assert client.read(MODE) == b"SPX\n"
        client.disconnect()


def test_a_file_that_is_no_socket_is_left_alone(machine: Machine, path: str) -> None:
    Path(path).write_text("mine")
    with pytest.raises(GpusimError, match="no socket"):
        serve(machine, path).start()
    assert Path(path).read_text() == "mine"


def test_a_missing_directory_is_named(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(GpusimError, match="No such file or directory"):
        serve(machine, str(tmp_path / "none" / "s")).start()


def test_stop_removes_its_own_socket_and_nobody_elses(machine: Machine, path: str) -> None:
    server = serve(machine, path).start()
    Path(path).unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(path)
        server.stop()
        assert Path(path).is_socket()
    server.stop()
    with pytest.raises(GpusimError, match="started before"):
        server.start()


def test_two_servers_that_race_for_a_stale_socket_do_not_both_get_it(path: str) -> None:
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(path)
    dead.close()
    started: list[Server] = []
    refused_ones: list[SocketInUseError] = []
    gate = threading.Barrier(4)

    def contend() -> None:
        server = serve(Machine(SPEC), path)
        gate.wait()
        try:
            started.append(server.start())
        except SocketInUseError as error:
            refused_ones.append(error)

    threads = [threading.Thread(target=contend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(started), len(refused_ones)) == (1, 3)
    started[0].stop()


# Coming and going


def test_a_client_finds_the_restarted_server_by_itself(path: str) -> None:
    with serve(Machine(SPEC), path):
        client = RemoteMachine(path)
        client.switch(BDF, "CPX")
        assert client.read(MODE) == b"CPX\n"
    with pytest.raises(NoServerError):
        client.read(MODE)
    with serve(Machine(SPEC), path):
        assert client.read(MODE) == b"SPX\n"
    with serve(Machine(SPEC), path):
        client.switch(BDF, "DPX")
        assert client.read(MODE) == b"DPX\n"
        client.disconnect()


def test_stop_lets_a_request_under_way_be_answered(
    machine: Machine, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, finish = threading.Event(), threading.Event()

    def slow(path: str) -> bytes:
        begun.set()
        finish.wait(20)
        return b"answer"

    server = serve(machine, path).start()
    client = RemoteMachine(path)
    monkeypatch.setattr(machine, "read", slow)
    answers: list[bytes] = []

    def ask() -> None:
        answers.append(client.read(MODE))
        client.disconnect()

    asking, stopping = threading.Thread(target=ask), threading.Thread(target=server.stop)
    asking.start()
    begun.wait(20)
    stopping.start()
    while listening(path):
        pass
    finish.set()
    asking.join()
    stopping.join()
    assert answers == [b"answer"]


def listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0


SERVE = """
import signal, sys
from gpusim.machine import Machine
from gpusim.serve import serve
from gpusim.spec import NodeSpec
server = serve(Machine(NodeSpec("node", kernel="6.14.0")), sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: server.stop())
print("ready", flush=True)
server.serve_forever()
print("stopped", flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_serve_forever_ends_on_a_signal_and_leaves_no_socket(path: str, how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        wait_for(path)
        program.send_signal(how)
        out, err = program.communicate(timeout=20)
    assert not Path(path).exists()
    if how is signal.SIGTERM:
        assert (program.returncode, out, err) == (0, "stopped\n", "")
    else:
        assert "KeyboardInterrupt" in err


def wait_for(path: str) -> None:
    for _ in range(2000):
        try:
            RemoteMachine(path).disconnect()
        except NoServerError:
            signal.sigtimedwait((), 0.01)
        else:
            return
    pytest.fail(f"nobody listens on {path}")
