"""Packed captures: round trips, refusals, what an archive cannot do, and the node that one is."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpusim
from devplugin.amd.settings import Settings
from devplugin.amd.vendor import Amd
from devplugin.linux import LinuxHost
from gpusim import fixture
from gpusim.cli import main as cli
from gpusim.export.render import render
from gpusim.snapshots import directory, pack
from gpusim.snapshots.host import CaptureHost, load, open_capture
from gpusim.snapshots.pack import Capture, Command, Entry, Kind, PackError

SAMPLE = {
    "/sys": Entry(Kind.DIRECTORY, 0o555),
    "/sys/plain": Entry(Kind.FILE, 0o444, b"text\n"),
    "/sys/rw": Entry(Kind.FILE, 0o640, b"\x00\xff\xfe\x80 binary"),
    "/sys/empty": Entry(Kind.FILE, 0o444),
    "/sys/guarded": Entry(Kind.FILE, 0o444, error="EPERM"),
    "/sys/slow": Entry(Kind.FILE, 0o600, error="ETIMEDOUT"),
    "/sys/closed": Entry(Kind.DIRECTORY, 0o700, error="EACCES"),
    "/sys/up": Entry(Kind.LINK, 0o777, target="../dev/../sys/plain"),
    "/sys/absolute": Entry(Kind.LINK, 0o777, target="/sys/plain"),
    "/sys/dangling": Entry(Kind.LINK, 0o777, target="/nowhere/at/all"),
    "/sys/out": Entry(Kind.LINK, 0o777, target="../../../etc/passwd"),
    "/dev/kfd": Entry(Kind.CHARACTER, 0o660, rdev=(235, 0)),
    "/dev/log": Entry(Kind.OTHER, 0o666),
    "/run/odd \udcff name": Entry(Kind.FILE, 0o444, "ümlaut".encode()),
}


def sample() -> Capture:
    return pack.capture(SAMPLE, {"recorder": "test"}, [Command(("npu-smi", "info"), 0, b"\xff\n", b"")])


def test_a_capture_survives_packing() -> None:
    assert pack.loads(pack.dumps(sample())) == sample()
    entries = dict(sample().entries())
    assert {path: entries[path] for path in SAMPLE} == SAMPLE
    assert list(entries)[:3] == ["/dev", "/dev/kfd", "/dev/log"]


def test_the_same_capture_gives_the_same_bytes() -> None:
    backwards = pack.capture(dict(reversed(SAMPLE.items())), {"recorder": "test"}, sample().commands)
    assert pack.dumps(backwards) == pack.dumps(sample())


NAMES = st.text(min_size=1, max_size=4).filter(
    lambda s: not set(s) & set("/\0") and s not in (".", "..") and s.isprintable()
)
CODES = st.sampled_from(["EPERM", "EIO", "ETIMEDOUT"])
MODES = st.integers(0, 0o1777)
LEAVES = st.one_of(
    st.builds(lambda m, c: Entry(Kind.FILE, m, c), MODES, st.binary(max_size=20)),
    st.builds(lambda m, e: Entry(Kind.FILE, m, error=e), MODES, CODES),
    st.builds(
        lambda t: Entry(Kind.LINK, 0o777, target=t), st.sampled_from(["a", "../b", "/c", "../../../x/.."])
    ),
    st.builds(
        lambda m, a, b: Entry(Kind.CHARACTER, m, rdev=(a, b)), MODES, st.integers(0, 511), st.integers(0, 255)
    ),
)
TREES = st.dictionaries(st.tuples(NAMES, NAMES).map(lambda parts: "/" + "/".join(parts)), LEAVES, max_size=6)


@given(TREES)
def test_every_tree_survives_packing(tree: dict[str, Entry]) -> None:
    made = pack.capture(tree)
    assert pack.loads(pack.dumps(made)) == made
    assert {path: entry for path, entry in made.entries() if entry.kind is not Kind.DIRECTORY} == tree


# ------------------------------------------------------------------ refusals


def packed(tree: Any, version: int = 1) -> bytes:
    body = json.dumps({"about": {}, "commands": [], "tree": tree})
    return b"gpusim-pack %d\n" % version + zlib.compress(body.encode())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is no packed capture"),
        (b"PK\x03\x04", "is no packed capture"),
        (b"gpusim-pack one\n", "names no version"),
        (packed({}, 2), "has pack format 2, this gpusim reads up to 1; use a newer gpusim"),
        (packed({}, 0), "has pack format 0, which never was"),
        (packed({})[:-5], "is cut short"),
        (packed({}) + b"x", "has bytes after its end"),
        (packed({"a": "\ud800"}), "stands for no bytes"),
        (packed({"a": {"b": ["f", 420, "x\udfff"]}}), "stands for no bytes"),
        (packed({"\ud800": "x"}), "stands for no bytes"),
        (b"gpusim-pack 1\nnot zlib", "is damaged"),
        (b"gpusim-pack 1\n" + zlib.compress(b"[]"), "is damaged: there is no tree"),
        (b"gpusim-pack 1\n" + zlib.compress(b"[" * 100_000), "is damaged"),
        (packed({"..": {}}), "is no file name"),
        (packed({"a/b": "x"}), "is no file name"),
        (packed({"a": {"": "x"}}), "is no file name"),
        (packed({"a\0": "x"}), "is no file name"),
        (packed({"a": 7}), "has an entry of no known form"),
        (packed({"a": ["z", 0]}), "has an entry of no known form"),
        (packed({"a": ["f", "0", "x"]}), "has an entry of no known form"),
        (packed({"a": ["f", 1 << 20, "x"]}), "is no file mode"),
        (packed({"a": ["e", 292, "EWHAT"]}), "has an errno of no known name"),
        (packed({"a": ["c", 292, 226, -1]}), "has an impossible device number"),
        (packed({"a": ["l", ""]}), "is a link with an impossible target"),
        (packed({"/": "x"}), "is no file mode"),
    ],
)
def test_what_is_no_pack_is_refused_with_its_reason(data: bytes, text: str) -> None:
    with pytest.raises(PackError, match=text) as caught:
        pack.loads(data, "node.gpusim")
    assert str(caught.value).startswith("node.gpusim: ")


def test_a_bomb_is_not_unfolded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "MAX_BYTES", 1 << 16)
    with pytest.raises(PackError, match="unfolds to more than"):
        pack.loads(packed({"a": "x" * (1 << 20)}))


@given(st.binary(max_size=30), st.integers(0, 200))
def test_damage_is_a_pack_error_or_a_capture(noise: bytes, where: int) -> None:
    good = pack.dumps(sample())
    with contextlib.suppress(PackError):
        assert isinstance(pack.loads(good[:where] + noise + good[where + len(noise) :]), Capture)


# ------------------------------------------------------------------ directories


def test_a_directory_and_back_is_the_same_capture(tmp_path: Path) -> None:
    directory.write(sample(), tmp_path / "d")
    assert directory.collect(tmp_path / "d") == sample()
    assert (tmp_path / "d/sys/plain").read_bytes() == b"text\n"
    assert (tmp_path / "d/sys").stat().st_mode & 0o7777 == 0o555
    assert (tmp_path / "d/sys/up").readlink() == Path("../dev/../sys/plain")


@given(TREES)
def test_every_tree_survives_a_directory(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Entry]
) -> None:
    made = pack.capture(tree)
    if directory.NOTES & set(made.tree):
        return
    target = tmp_path_factory.mktemp("any") / "d"
    directory.write(made, target)
    try:
        back = directory.collect(target)
        if os.geteuid() == 0 or all(entry.mode & 0o400 for entry in tree.values()):
            # Modes on disk keep no set-id bits and no sticky files: nobody may plant those.
            for path, entry in made.entries():
                found = back.entry(path)
                assert found is not None
                assert found._replace(mode=entry.mode) == entry
                assert found.mode & 0o777 == entry.mode & 0o777
    finally:
        directory.remove(target)


ESCAPES = {
    "absolute": "/etc/passwd",
    "parents": "../../../../../../../../etc/passwd",
    "through a link": "deep/up/../../etc",
    "root itself": "/",
    "above": "..",
    "loop": "loop",
}


@pytest.mark.parametrize("target", ESCAPES.values(), ids=list(ESCAPES))
def test_no_link_of_an_archive_leads_out_of_the_directory(tmp_path: Path, target: str) -> None:
    made = pack.capture(
        {
            "/deep": Entry(Kind.LINK, 0o777, target="a/b/c"),
            "/a/b/c/up": Entry(Kind.LINK, 0o777, target="../../.."),
            "/loop": Entry(Kind.LINK, 0o777, target="loop"),
            "/evil": Entry(Kind.LINK, 0o777, target=target),
            "/sub/evil": Entry(Kind.LINK, 0o777, target=target),
        }
    )
    directory.write(made, tmp_path / "d")
    for name in ("evil", "sub/evil"):
        led = os.path.realpath(tmp_path / "d" / name)
        assert led == str(tmp_path / "d") or led.startswith(f"{tmp_path}/d/")
    assert directory.collect(tmp_path / "d") == made


@given(st.lists(st.sampled_from(["..", "a", "b", "l", "m", "/", "x"]), min_size=1, max_size=8), st.data())
def test_no_chain_of_links_leads_out(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], data: Any
) -> None:
    def target() -> str:
        drawn = data.draw(st.lists(st.sampled_from(["..", "a", "b", "l", "m", "x"]), min_size=1, max_size=6))
        return ("/" if data.draw(st.booleans()) else "") + "/".join(drawn)

    made = pack.capture(
        {
            "/a/b/file": Entry(Kind.FILE, 0o444, b"x"),
            "/a/l": Entry(Kind.LINK, 0o777, target=target()),
            "/l": Entry(Kind.LINK, 0o777, target=target()),
            "/a/b/m": Entry(Kind.LINK, 0o777, target=target()),
            "/m": Entry(Kind.LINK, 0o777, target="/".join(steps).replace("//", "/") or "a"),
        }
    )
    top = tmp_path_factory.mktemp("chain")
    directory.write(made, top / "d")
    for link in ("l", "m", "a/l", "a/b/m"):
        led = os.path.realpath(top / "d" / link)
        assert led == str(top / "d") or led.startswith(f"{top}/d/"), (link, led)


def test_a_device_node_becomes_an_empty_file_and_keeps_its_number(tmp_path: Path) -> None:
    directory.write(sample(), tmp_path / "d")
    kfd = tmp_path / "d/dev/kfd"
    assert kfd.is_file()
    assert (kfd.stat().st_size, kfd.stat().st_mode & 0o777) == (0, 0o660)
    assert load(tmp_path / "d").entry("/dev/kfd") == SAMPLE["/dev/kfd"]


def test_what_was_edited_in_the_directory_wins_over_the_notes(tmp_path: Path) -> None:
    directory.write(sample(), tmp_path / "d")
    (tmp_path / "d/sys/guarded").chmod(0o644)
    (tmp_path / "d/sys/guarded").write_text("now readable\n")
    entry = directory.collect(tmp_path / "d").entry("/sys/guarded")
    assert entry == Entry(Kind.FILE, 0o644, b"now readable\n")


def test_only_a_new_or_an_empty_directory_is_written(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "empty").mkdir()
    for name in ("full", "file", "link"):
        with pytest.raises(PackError):
            directory.write(sample(), tmp_path / name)
    assert (tmp_path / "full/mine").read_text() == "x"
    directory.write(sample(), tmp_path / "empty")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["empty", "file", "full", "link"]


def test_an_interrupted_unpacking_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "symlink", interrupted)
    with pytest.raises(KeyboardInterrupt):
        directory.write(sample(), tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[]",
        "{}",
        '{"format": 1, "tree": {"/a": ["l"]}, "commands": [], "about": {}}',
        '{"format": 9}',
    ],
)
def test_damaged_notes_beside_a_tree_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / directory.SIDECAR).write_text(text)
    with pytest.raises(PackError, match=r"gpusim-capture\.json"):
        directory.collect(tmp_path)


def test_a_pack_is_written_at_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "node.gpusim"
    file.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        pack.write(sample(), file)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


# ------------------------------------------------------------------ the node that a capture is


@pytest.fixture
def node() -> CaptureHost:
    return CaptureHost(sample())


def code(operation: Any, *arguments: Any) -> str:
    with pytest.raises(OSError) as caught:
        operation(*arguments)
    return errno.errorcode[caught.value.errno or 0]


def test_a_recorded_errno_is_answered_again(node: CaptureHost) -> None:
    assert code(node.read, "/sys/guarded") == "EPERM"
    assert code(node.read, "/sys/slow") == "ETIMEDOUT"
    assert code(node.list, "/sys/closed") == "EACCES"
    assert code(node.read, "/sys/none") == "ENOENT"
    assert code(node.read, "/sys/plain/x") == "ENOTDIR"
    assert code(node.readlink, "/sys/plain") == "EINVAL"
    assert node.stat("/sys/guarded").mode == 0o444


def test_nothing_can_be_changed(node: CaptureHost) -> None:
    for operation, *arguments in (
        (node.write, "/sys/rw", b"x"),
        (node.put, "/run/new", b"x"),
        (node.mkdir, "/run/new"),
        (node.unlink, "/sys/plain"),
        (node.rmdir, "/run"),
        (node.copy, "/sys/plain", "/run/copy"),
    ):
        extra = (0o644,) if operation == node.copy else ()
        assert code(operation, *arguments, *extra) == "EROFS"


def test_links_are_followed_inside(node: CaptureHost) -> None:
    assert node.read("/sys/up") == node.read("/sys/absolute") == b"text\n"
    assert code(node.read, "/sys/out") == "ENOENT"
    assert node.readlink("/sys/absolute") == "/sys/plain"


def test_a_device_that_was_there_opens(node: CaptureHost) -> None:
    node.probe("/dev/kfd")
    assert node.stat("/dev/kfd").rdev == (235, 0)
    assert code(node.probe, "/dev/dri/renderD128") == "ENOENT"
    assert code(node.probe, "/sys") == "EISDIR"
    assert code(node.probe, "/sys/guarded") == "EPERM"


def test_a_recorded_program_answers_as_it_did(node: CaptureHost) -> None:
    for program in ("npu-smi", "/usr/local/bin/npu-smi"):
        done = node.run([program, "info"])
        assert (done.status, done.stdout, done.stderr) == (0, b"\xff\n", b"")
    assert code(node.run, ["npu-smi", "set"]) == "ENOENT"


# ------------------------------------------------------------------ whole nodes


@pytest.mark.parametrize("name", fixture.names())
def test_the_plugin_says_the_same_of_a_pack_as_of_the_tree(tmp_path: Path, name: str) -> None:
    loaded = fixture.load(name)
    tree = tmp_path / "tree"
    render(gpusim.Machine(loaded), tree)
    file = tmp_path / "node.gpusim"
    pack.write(directory.collect(tree), file)
    vendor = Amd()
    for mode in ("cu", "partition"):
        settings = Settings(node_name="node", mode=mode)
        reports = []
        for host in (LinuxHost(str(tree)), open_capture(file)):
            inventory = vendor.discover(host, settings, None)
            reports.append(
                (vendor.report(host, inventory, settings), vendor.notices(inventory, settings), inventory)
            )
        assert reports[0] == reports[1]


def test_a_rendered_node_packed_and_unpacked_is_the_same_tree(tmp_path: Path) -> None:
    render(gpusim.Machine(gpusim.load("mi300a/spx-intree")), tmp_path / "tree")
    assert cli(["pack", str(tmp_path / "tree"), str(tmp_path / "p")]) == 0
    assert cli(["unpack", str(tmp_path / "p"), str(tmp_path / "out")]) == 0
    listed = [
        subprocess.run(
            ["find", ".", "-mindepth", "1", "-not", "-name", ".gpusim-*", "-printf", "%p %m %y %l %s\\n"],
            cwd=tmp_path / name,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for name in ("tree", "out")
    ]
    without_sizes = [
        sorted(line if " d " not in line else line.rpartition(" ")[0] for line in lines) for lines in listed
    ]
    assert without_sizes[0] == without_sizes[1]
    for path in (tmp_path / "tree").rglob("*"):
        if path.is_file() and not path.is_symlink() and path.name != ".gpusim-rendering":
            assert path.read_bytes() == (tmp_path / "out" / path.relative_to(tmp_path / "tree")).read_bytes()


@pytest.mark.snapshots
def test_every_capture_packs_and_answers_the_same(snapshots: Path, tmp_path: Path) -> None:
    for place in sorted(snapshots.iterdir()):
        if place.is_dir():
            pack.write(directory.collect(place), tmp_path / "p")
            host = open_capture(tmp_path / "p")
            for path in place.rglob("*"):
                if path.is_file():
                    assert host.read("/" + str(path.relative_to(place))) == path.read_bytes()


def test_the_commands_refuse_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "there").write_text("mine")
    assert cli(["pack", str(tmp_path / "tree"), str(tmp_path / "there")]) == 1
    assert (tmp_path / "there").read_text() == "mine"
    assert cli(["unpack", str(tmp_path / "there"), str(tmp_path / "out")]) == 1
    assert cli(["pack", str(tmp_path / "none"), str(tmp_path / "p")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 3
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["there", "tree"]


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
@pytest.mark.parametrize("command", ["pack", "record"])
def test_force_replaces_no_link_and_no_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, command: str
) -> None:
    render(gpusim.Machine(gpusim.load("mi355x/spx-6.14")), tmp_path / "tree")
    (tmp_path / "mine").write_text("mine")
    there = tmp_path / "there"
    if kind == "pipe":
        os.mkfifo(there)
    else:
        there.symlink_to("mine" if kind == "link" else "none")
    before = (there.lstat().st_ino, there.lstat().st_mode)
    tree = str(tmp_path / "tree")
    words = ["pack", tree, str(there)] if command == "pack" else ["record", str(there), "--root", tree]
    assert cli([*words, "--force"]) == 1
    shown = capsys.readouterr().err
    assert shown == f"gpusim: {there}: is no regular file, and is not replaced\n"
    assert (there.lstat().st_ino, there.lstat().st_mode) == before
    assert (tmp_path / "mine").read_text() == "mine"
    with pytest.raises(PackError, match="is no regular file"):
        pack.write(sample(), there)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["mine", "there", "tree"]


def test_loading_a_pack_loads_nothing_but_the_standard_library(tmp_path: Path) -> None:
    pack.write(sample(), tmp_path / "p")
    program = (
        "import sys; from gpusim.snapshots.host import open_capture; open_capture(sys.argv[1]);"
        "print(*[m for m in ('yaml', 'msgspec', 'rich', 'hypothesis', 'grpc') if m in sys.modules])"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            str(tmp_path / "p"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "\n"
