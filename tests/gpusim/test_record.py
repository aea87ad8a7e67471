"""Recording a node: what is taken, what is never touched, what does not answer, and what is left behind."""

from __future__ import annotations

import ast
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpusim
from gpusim.export.render import render
from gpusim.snapshots import directory, pack, recorder, recorderzip
from gpusim.snapshots.children import Readers
from gpusim.snapshots.host import CaptureHost, load
from gpusim.snapshots.pack import Command, Entry, Kind
from gpusim.snapshots.plan import LEFT_OUT
from gpusim.snapshots.programs import ask
from gpusim.snapshots.record import DirectorySource, record

ROOT = Path(gpusim.__file__).parent
GPU = "/sys/devices/pci0000:00/0000:00:01.1/0000:05:00.0"


class Listed:
    """A Host of a few files: text, an errno, or a function; parents are directories."""

    def __init__(
        self, files: dict[str, bytes | int | Callable[[], bytes]], modes: dict[str, int] | None = None
    ):
        self.files = files
        self.modes = modes or {}
        self.links: dict[str, str] = {}

    def list(self, path: str) -> Sequence[str]:
        top = path.rstrip("/") + "/"
        every = (*self.files, *self.links)
        names = {name[len(top) :].partition("/")[0] for name in every if name.startswith(top)}
        if not names:
            raise OSError(errno.ENOTDIR, "", path)
        return sorted(names)

    def readlink(self, path: str) -> str:
        return self.links[path]

    def stat(self, path: str, *, follow: bool = True) -> Any:
        if path in self.links:
            return SimpleNamespace(kind=Kind.LINK, mode=0o777, rdev=None)
        if path in self.files:
            return SimpleNamespace(kind=Kind.FILE, mode=self.modes.get(path, 0o444), rdev=None)
        self.list(path)
        return SimpleNamespace(kind=Kind.DIRECTORY, mode=0o755, rdev=None)

    def read(self, path: str) -> bytes:
        found = self.files[path]
        if isinstance(found, int):
            raise OSError(found, os.strerror(found), path)
        return found() if callable(found) else found


def forever() -> bytes:
    time.sleep(60)
    return b""


NODES = "/sys/class/kfd/kfd/topology/nodes"


def test_errnos_and_files_that_never_answer_are_recorded_and_the_rest_is_whole() -> None:
    host = Listed(
        {
            f"{NODES}/0/gpu_id": b"0\n",
            f"{NODES}/1/gpu_id": errno.EPERM,
            f"{NODES}/1/properties": errno.EPERM,
            f"{NODES}/2/name": forever,
            f"{NODES}/2/gpu_id": b"4711\n",
            f"{NODES}/3/gpu_id": forever,
        }
    )
    begin = time.monotonic()
    recorded = record(host, patience=0.3)
    assert time.monotonic() - begin < 5
    again = CaptureHost(recorded)
    assert again.read(f"{NODES}/2/gpu_id") == b"4711\n"
    for path, code in ((f"{NODES}/1/gpu_id", errno.EPERM), (f"{NODES}/3/gpu_id", errno.ETIMEDOUT)):
        with pytest.raises(OSError) as caught:
            again.read(path)
        assert caught.value.errno == code
    assert [again.list(f"{NODES}/{n}") for n in range(4)] == [host.list(f"{NODES}/{n}") for n in range(4)]


def test_what_is_recorded_without_scrubbing_is_the_source_after_unpacking(tmp_path: Path) -> None:
    machine = gpusim.Machine(gpusim.load("mi355x/qpx-6.14"))
    recorded = record(machine)
    pack.write(recorded, tmp_path / "p")
    directory.write(pack.read(tmp_path / "p"), tmp_path / "d")
    again = load(tmp_path / "d")
    assert again == recorded
    for path, entry in again.entries():
        found = machine.stat(path, follow=False)
        assert (found.kind.name, found.mode, found.rdev) == (entry.kind.name, entry.mode, entry.rdev)
        if entry.kind is Kind.LINK:
            assert machine.readlink(path) == entry.target
        elif entry.kind is Kind.FILE:
            try:
                assert (machine.read(path), "") == (entry.content, entry.error)
            except OSError as error:
                assert errno.errorcode[error.errno or 0] == entry.error


def test_everything_below_the_accelerators_directories_is_taken() -> None:
    machine = gpusim.Machine(gpusim.load("mi355x/cpx-6.8-bmc-63"))
    taken = {path for path, _ in record(machine).entries()}
    for path, _ in machine.tree.every_file():
        if path.startswith(
            ("/sys/class/", "/sys/devices/virtual/kfd", "/sys/devices/platform", "/sys/bus", "/dev/dri")
        ):
            assert path in taken, path
        if path.startswith(("/sys/module/amdgpu", "/sys/dev/char")) or "/drm" in path or "/hwmon" in path:
            assert path in taken, path
    assert {"/dev/kfd", "/proc/devices", "/proc/sys/kernel/osrelease"} <= taken
    assert {"/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/kubepods.slice/cgroup.controllers"} <= taken
    assert not {path for path in taken if path.endswith("cgroup.procs")}


def test_pods_and_what_is_no_accelerator_are_not_recorded() -> None:
    host = Listed(
        {
            "/sys/class/drm/version": b"drm\n",
            "/sys/class/net/eth0/address": b"ba:dc:0f:fe:e0:0d\n",
            "/sys/fs/cgroup/cgroup.controllers": b"cpu dmem\n",
            "/sys/fs/cgroup/system.slice/cgroup.controllers": b"cpu\n",
            "/sys/fs/cgroup/kubepods.slice/dmem.current": b"",
            "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/dmem.max": b"",
            "/sys/fs/cgroup/kubepods.slice/kubepods-pod1234.slice/dmem.max": b"",
            "/proc/1/environ": b"SECRET=1",
            "/etc/shadow": b"root",
        }
    )
    assert [path for path, entry in record(host).entries() if entry.kind is Kind.FILE] == [
        "/sys/class/drm/version",
        "/sys/fs/cgroup/cgroup.controllers",
        "/sys/fs/cgroup/kubepods.slice/dmem.current",
        "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/dmem.max",
    ]


def test_nothing_is_opened_that_acts_is_private_or_cannot_be_read(tmp_path: Path) -> None:
    card = "/sys/class/drm/card0/device"
    read: list[str] = []
    log = tmp_path / "read"

    class Watched(Listed):
        def read(self, path: str) -> bytes:
            with log.open("a") as file:
                file.write(f"{path}\n")
            return super().read(path)

    names = [*LEFT_OUT, "resource0", "resource0_wc", "psp_vbflash", "remove", "vendor", "dev"]
    host = Watched({f"{card}/{name}": b"x" for name in names}, {f"{card}/remove": 0o200})
    host.files["/dev/kfd"] = host.files["/dev/dri/renderD128"] = b""
    recorded = dict(record(host).entries())
    read = sorted(set(log.read_text().split()))
    assert read == [f"{card}/dev", f"{card}/vendor"]
    assert recorded[f"{card}/remove"] == Entry(Kind.FILE, 0o200, error="EACCES")
    assert f"{card}/psp_vbflash" not in recorded
    assert recorded["/dev/dri/renderD128"] == Entry(Kind.FILE, 0o444)


def test_links_lead_nowhere_but_inside_the_root(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("x")
    drm = tmp_path / "node/sys/class/drm"
    drm.mkdir(parents=True)
    (drm / "card0").symlink_to(outside)
    (drm / "card1").symlink_to("/sys/devices/here/drm/card1")
    (tmp_path / "node/sys/devices/here/drm/card1").mkdir(parents=True)
    (tmp_path / "node/sys/devices/here/drm/card1/dev").write_text("226:1\n")
    (drm / "loop").symlink_to("loop")
    taken = dict(record(DirectorySource(str(tmp_path / "node"))).entries())
    assert taken["/sys/class/drm/card0"].target == str(outside)
    assert taken["/sys/devices/here/drm/card1/dev"].content == b"226:1\n"
    assert not [path for path in taken if "secret" in path]


# ------------------------------------------------------------------ children


def test_a_child_that_dies_costs_one_file() -> None:
    def read(path: str) -> bytes:
        if path == "/die":
            os._exit(3)
        return path.encode()

    with Readers(read, children=1) as readers:
        answers = dict(readers.all(["/a", "/die", "/b"]))
        assert (answers["/a"], answers["/b"]) == (b"/a", b"/b")
        assert isinstance(answers["/die"], OSError)
        assert answers["/die"].errno == errno.EIO


def test_large_and_many_answers_arrive_whole() -> None:
    def read(path: str) -> bytes:
        return path.encode() * (100_000 if path == "/7" else 3)

    with Readers(read, children=3) as readers:
        answers = dict(readers.all(f"/{n}" for n in range(300)))
    assert answers == {f"/{n}": read(f"/{n}") for n in range(300)}


def test_no_child_outlives_the_recording() -> None:
    pids: list[int] = []

    def read(path: str) -> bytes:
        return forever() if path == "/slow" else str(os.getpid()).encode()

    with Readers(read, children=2, patience=0.2) as readers:
        for path, answer in readers.all(["/a", "/slow", "/b", "/c"]):
            if path != "/slow":
                assert isinstance(answer, bytes)
                pids.append(int(answer))
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# ------------------------------------------------------------------ the command


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rendered") / "node"
    render(gpusim.Machine(gpusim.load("rdna4/rx9070-igpu")), made)
    return made


@pytest.fixture
def stuck(tree: Path) -> Iterator[Path]:
    """A node with an attribute that never answers."""
    place = next(tree.rglob("hwmon*/temp1_input"))
    pipe = place.with_name("temp9_input")
    os.mkfifo(pipe, 0o444)
    yield pipe
    pipe.unlink()


def run(*words: str, **named: Any) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "gpusim.cli", "record", *words],
        capture_output=True,
        text=True,
        check=False,
        **named,
    )


def state(path: Path) -> list[Any]:
    return [(str(p), p.lstat().st_mtime_ns, p.lstat().st_mode) for p in sorted(path.rglob("*"))]


def test_record_writes_one_scrubbed_file_and_nothing_to_the_node(tree: Path, tmp_path: Path) -> None:
    before = state(tree)
    done = run(str(tmp_path / "n.gpusim"), "--root", str(tree))
    assert (done.returncode, done.stderr) == (0, "")
    assert state(tree) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["n.gpusim"]
    assert pack.read(tmp_path / "n.gpusim").about == {"recorder": "gpusim-record", "scrubbed": True}


def test_record_writes_a_directory_when_one_is_named(tree: Path, tmp_path: Path) -> None:
    assert run(f"{tmp_path}/n/", "--root", str(tree)).returncode == 0
    assert run(str(tmp_path / "n.gpusim"), "--root", str(tree)).returncode == 0
    assert directory.collect(tmp_path / "n") == pack.read(tmp_path / "n.gpusim")


def test_a_pipe_that_never_answers_costs_two_seconds_and_is_named(
    stuck: Path, tree: Path, tmp_path: Path
) -> None:
    begin = time.monotonic()
    done = run(str(tmp_path / "n.gpusim"), "--root", str(tree))
    assert 2 <= time.monotonic() - begin < 20
    assert done.returncode == 0
    path = str(stuck.resolve())[len(str(tree)) :]
    assert f"  no answer, given up: {path}\n" in done.stdout
    assert pack.read(tmp_path / "n.gpusim").entry(path) == Entry(Kind.FILE, 0o444, error="ETIMEDOUT")


def test_ctrl_c_leaves_nothing_behind(stuck: Path, tree: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "gpusim.cli", "record", str(tmp_path / "n.gpusim"), "--root", str(tree)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    end = time.monotonic() + 20
    while not (pids := children.read_text().split()) and time.monotonic() < end:
        time.sleep(0.02)
    assert pids
    time.sleep(0.3)  # the pipe is being waited for
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (130, "")
    assert list(tmp_path.iterdir()) == []
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["{tmp}/there", "--root", "{tree}"], "there: is there already"),
        (["{tmp}/no/such/n.gpusim", "--root", "{tree}"], "No such file or directory"),
        (["{tmp}/n.gpusim", "--root", "{tmp}/none"], "is no directory"),
        (["{tmp}/n.gpusim", "--root", "{tmp}"], "no node is there"),
        (["", "--root", "{tree}"], "OUT is empty"),
        (["{tree}", "--root", "{tree}"], "is not empty; name a new directory"),
    ],
)
def test_what_cannot_be_recorded_is_one_line(tree: Path, tmp_path: Path, words: list[str], text: str) -> None:
    (tmp_path / "there").write_text("mine")
    done = run(*(word.format(tmp=tmp_path, tree=tree) for word in words))
    assert done.returncode == 1
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["there"]
    assert (tmp_path / "there").read_text() == "mine"


def test_progress_is_shown_after_two_seconds_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    progress = recorder.Progress()
    for now in (100.0, 101.9, 102.0, 103.0, 107.0):
        clock[0] = now
        progress.show(int(now), 500)
    progress.end()
    assert capsys.readouterr().err == "recording: 102 of 500 files\nrecording: 107 of 500 files\n"


def test_programs_are_asked_what_plugins_ask_and_only_when_they_are_there() -> None:
    table = (
        "NPU ID     Chip ID    Chip Logic ID    Chip Phy-ID   Chip Name\n"
        "0          0          0                4             Ascend 910B4\n"
        "0          1          -                -             Mcu\n"
        "5          0          1                9             Ascend 910B4\n"
    )
    asked: list[str] = []

    def tool(argv: Sequence[str]) -> Command:
        asked.append(" ".join(argv[1:]))
        return Command(tuple(argv), 0, table.encode() if argv[-1] == "-m" else b"text\n", b"")

    assert len(ask("npu-smi", run=tool)) == len(asked) == 8
    chips = [f"info -t {form} -i {npu} -c 0" for npu in (0, 5) for form in ("board", "info-vnpu")]
    ids = [f"info -t phyid-remap -p {phy}" for phy in (4, 9)]
    assert asked == ["info", "info -m", *chips, *ids]
    assert ask("ppu-smi", run=lambda _: None) == []


def test_a_real_program_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "ppu-smi"
    script.write_text('#!/bin/sh\n[ "$1" = -q ] && sleep 60\necho "$1"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("gpusim.snapshots.programs.PATIENCE", 0.5)
    answers = ask("ppu-smi")
    assert [answer.argv[0] for answer in answers] == ["ppu-smi"]
    assert answers[0].stdout.startswith(b"--query-ppu=")


# ------------------------------------------------------------------ the program for nodes


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pyz") / "gpusim-record.pyz"
    recorderzip.build(made)
    return made


def test_the_program_needs_nothing_but_an_interpreter(program: Path, tree: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(program), str(tmp_path / "n.gpusim"), "--root", str(tree)],
        env={},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert run(str(tmp_path / "m.gpusim"), "--root", str(tree)).returncode == 0
    assert (tmp_path / "n.gpusim").read_bytes() == (tmp_path / "m.gpusim").read_bytes()


def test_the_same_sources_give_the_same_program(program: Path, tmp_path: Path) -> None:
    recorderzip.build(tmp_path / "again.pyz")
    assert (tmp_path / "again.pyz").read_bytes() == program.read_bytes()
    assert program.stat().st_mode & 0o777 == 0o755


def test_its_help_and_its_refusals_need_no_node(program: Path) -> None:
    for words, status in (
        (["--help"], 0),
        ([], 2),
        (["x", "--root", "/no/such"], 1),
        (["--nonsense", "x"], 2),
    ):
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(program), *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr


NEWER = {"slots", "kw_only", "match_args"}
"""Words of dataclass that came with Python 3.10."""


@pytest.mark.parametrize("module", recorderzip.MODULES)
def test_its_modules_are_python_3_9(module: str) -> None:
    source = (ROOT / f"{module}.py").read_text()
    parsed = ast.parse(source, feature_version=(3, 9))
    assert any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in parsed.body) or not any(
        isinstance(n, ast.FunctionDef | ast.ClassDef) for n in parsed.body
    )
    for node in ast.walk(parsed):
        assert not isinstance(node, ast.Match)
        if isinstance(node, ast.Call):
            words = {keyword.arg for keyword in node.keywords}
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            assert not (name == "zip" and "strict" in words), f"line {node.lineno}: zip(strict=)"
            assert not (name == "dataclass" and words & NEWER), f"line {node.lineno}: dataclass"
            assert not (name == "isinstance" and isinstance(node.args[1], ast.BinOp)), (
                f"line {node.lineno}: A | B"
            )
        lazy = module == "__init__"  # the package's own names are imported when they are asked for
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpusim") and not lazy:
            taken = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            inside = {f"gpusim.{name.replace('/', '.')}" for name in recorderzip.MODULES} | {
                "gpusim.snapshots"
            }
            assert any(name in inside for name in taken), taken
