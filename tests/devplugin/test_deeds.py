"""Deeds on the simulated node and on a real directory: done once or twice, they end in the same node."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from devplugin.deeds import (
    Deed,
    DeedError,
    Ground,
    InstallFile,
    MakeDir,
    MoveAside,
    RemoveDir,
    RunTool,
    WriteFile,
    carry_out,
)
from devplugin.host import Completed, Kind
from devplugin.linux import LinuxHost
from gpusim.fixture import load
from gpusim.machine import Machine

AT = "/srv/vnpu"
"""Where all of it happens; its parent is there."""


@pytest.fixture(params=["machine", "directory"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    """A node, and the tree of one below a directory; the umask takes bits away in both."""
    if request.param == "machine":
        host = cast("Ground", Machine(load("ascend/910b4")))
        host.mkdir("/srv")
        yield host
        return
    (tmp_path / "srv").mkdir()
    before = os.umask(0o027)
    try:
        yield LinuxHost(str(tmp_path))
    finally:
        os.umask(before)


def mode(host: Ground, path: str) -> int:
    return host.stat(path, follow=False).mode


def is_there(host: Ground, path: str) -> bool:
    try:
        host.stat(path, follow=False)
    except FileNotFoundError:
        return False
    return True


# ------------------------------------------------------------------ directories


def test_a_directory_is_made_with_exactly_its_mode_whatever_the_umask(ground: Ground) -> None:
    assert carry_out(ground, MakeDir(AT, 0o777)) == f"{AT}: directory, mode 0777"
    assert mode(ground, AT) == 0o777
    assert carry_out(ground, MakeDir(AT, 0o777)) == ""


def test_parents_are_made_for_everybody_to_pass_and_for_nobody_else_to_write(ground: Ground) -> None:
    carry_out(ground, MakeDir(f"{AT}/containers/uid_main", 0o777))
    assert [mode(ground, path) for path in (AT, f"{AT}/containers")] == [0o755, 0o755]
    assert mode(ground, f"{AT}/containers/uid_main") == 0o777


def test_a_directory_that_is_there_gets_the_mode_and_keeps_what_is_in_it(ground: Ground) -> None:
    ground.mkdir(AT, 0o700)
    ground.chmod(AT, 0o700)
    ground.put(f"{AT}/file", b"1")
    assert carry_out(ground, MakeDir(AT, 0o777)) == f"{AT}: directory, mode 0777"
    assert (mode(ground, AT), ground.read(f"{AT}/file")) == (0o777, b"1")


def test_parents_that_are_there_keep_their_mode(ground: Ground) -> None:
    ground.mkdir(AT, 0o700)
    ground.chmod(AT, 0o700)
    carry_out(ground, MakeDir(f"{AT}/a", 0o755))
    assert mode(ground, AT) == 0o700


def test_a_file_in_the_way_of_a_directory_is_an_error_and_stays_as_it_is(ground: Ground) -> None:
    ground.put(AT, b"1", 0o640)
    with pytest.raises(DeedError, match=AT):
        carry_out(ground, MakeDir(AT, 0o777))
    assert (ground.read(AT), mode(ground, AT)) == (b"1", 0o640)


# ------------------------------------------------------------------ moving aside, removing


def test_what_was_there_keeps_its_content_under_another_name(ground: Ground) -> None:
    ground.mkdir(AT)
    ground.put(f"{AT}/ledger", b"old")
    assert carry_out(ground, MoveAside(AT)) == f"{AT}: moved aside to {AT}.stale-1"
    assert not is_there(ground, AT)
    assert ground.read(f"{AT}.stale-1/ledger") == b"old"


def test_every_move_aside_gets_a_number_of_its_own(ground: Ground) -> None:
    for number in (1, 2, 3):
        ground.mkdir(AT)
        ground.put(f"{AT}/ledger", str(number).encode())
        carry_out(ground, MoveAside(AT))
    assert [ground.read(f"{AT}.stale-{n}/ledger") for n in (1, 2, 3)] == [b"1", b"2", b"3"]


def test_nothing_there_is_nothing_to_move_or_remove(ground: Ground) -> None:
    assert carry_out(ground, MoveAside(AT)) == ""
    assert carry_out(ground, RemoveDir(AT)) == ""
    assert carry_out(ground, MoveAside(f"{AT}/below/nothing")) == ""


def test_a_directory_goes_with_all_that_is_in_it(ground: Ground) -> None:
    ground.mkdir(f"{AT}/a/b")
    ground.put(f"{AT}/a/b/file", b"1")
    ground.put(f"{AT}/file", b"1")
    assert carry_out(ground, RemoveDir(AT)) == f"{AT}: removed"
    assert not is_there(ground, AT)
    assert carry_out(ground, RemoveDir(AT)) == ""


def nest(directory: Path, depth: int) -> None:
    """Directories in each other, each with a file and an empty neighbour; no path to the last need exist."""
    here = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        for name in ("0" * 60, "1"):
            os.mkdir(name, dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        below = os.open("0" * 60, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_levels_that_are_named_alike_go_all(ground: Ground) -> None:
    for path in ("0/0/0", "0/1/0", "1/0/1", "2"):
        ground.mkdir(f"{AT}/{path}")
        ground.put(f"{AT}/{path}/file", b"1")
    ground.put("/srv/file", b"1")
    carry_out(ground, RemoveDir(AT))
    assert ground.list("/srv") == ["file"]


def test_a_directory_goes_though_it_is_nested_deeper_than_a_path_or_a_stack_reaches() -> None:
    """A container may nest what it likes in the directory it was given; others' must go all the same."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # thousands of steps, and no disk takes part
    with tempfile.TemporaryDirectory(dir=memory) as made:
        ground = LinuxHost(made)
        Path(made, "dir").mkdir()
        Path(made, "kept").touch()
        nest(Path(made, "dir"), 1100)
        with pytest.raises(DeedError, match=r"^/dir: ENOTEMPTY"):  # so many levels are enough for one turn
            carry_out(ground, RemoveDir("/dir"))
        carry_out(ground, RemoveDir("/dir"))
        assert os.listdir(made) == ["kept"]


def test_links_below_are_removed_and_never_followed(tmp_path: Path) -> None:
    """A container can put any link into the directory it was given."""
    ground = LinuxHost(str(tmp_path))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("1")
    (tmp_path / "srv" / "dir").mkdir(parents=True)
    (tmp_path / "srv" / "dir" / "link").symlink_to("/kept")
    (tmp_path / "srv" / "dir" / "file").symlink_to("/kept/file")
    carry_out(ground, RemoveDir("/srv/dir"))
    assert not (tmp_path / "srv" / "dir").exists()
    assert (tmp_path / "kept" / "file").read_text() == "1"


def test_a_link_in_a_directorys_place_is_itself_removed(tmp_path: Path) -> None:
    ground = LinuxHost(str(tmp_path))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("1")
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv" / "dir").symlink_to("/kept")
    carry_out(ground, RemoveDir("/srv/dir"))
    assert not (tmp_path / "srv" / "dir").is_symlink()
    assert (tmp_path / "kept" / "file").read_text() == "1"


def test_a_link_in_a_directorys_place_is_moved_aside_itself(tmp_path: Path) -> None:
    ground = LinuxHost(str(tmp_path))
    (tmp_path / "kept").mkdir()
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv" / "dir").symlink_to("/kept")
    carry_out(ground, MoveAside("/srv/dir"))
    assert (tmp_path / "srv" / "dir.stale-1").is_symlink()
    assert (tmp_path / "kept").is_dir()


def test_a_link_that_leads_to_nothing_is_moved_aside_and_removed_too(tmp_path: Path) -> None:
    ground = LinuxHost(str(tmp_path))
    for name in ("one", "two"):
        (tmp_path / name).symlink_to("/nowhere")
    carry_out(ground, MoveAside("/one"))
    carry_out(ground, RemoveDir("/two"))
    assert [path.name for path in tmp_path.iterdir()] == ["one.stale-1"]


# ------------------------------------------------------------------ files


def test_a_file_is_installed_with_its_bytes_and_mode(ground: Ground) -> None:
    """P33: an existing target is overwritten, the mode is the wanted one."""
    ground.mkdir(AT)
    ground.put(f"{AT}/source", b"new", 0o755)
    ground.put(f"{AT}/target", b"old", 0o600)
    deed = InstallFile(f"{AT}/source", f"{AT}/target", 0o755)
    assert carry_out(ground, deed) == f"{AT}/target: installed from {AT}/source"
    assert (ground.read(f"{AT}/target"), mode(ground, f"{AT}/target")) == (b"new", 0o755)
    assert carry_out(ground, deed) == ""


def test_a_file_with_the_same_bytes_and_another_mode_is_installed_again(ground: Ground) -> None:
    ground.mkdir(AT)
    ground.put(f"{AT}/source", b"same", 0o755)
    ground.put(f"{AT}/target", b"same", 0o600)
    carry_out(ground, InstallFile(f"{AT}/source", f"{AT}/target", 0o755))
    assert mode(ground, f"{AT}/target") == 0o755


def test_a_file_with_the_same_mode_and_other_bytes_is_installed_again(ground: Ground) -> None:
    ground.mkdir(AT)
    ground.put(f"{AT}/source", b"new", 0o644)
    ground.put(f"{AT}/target", b"old", 0o644)
    carry_out(ground, InstallFile(f"{AT}/source", f"{AT}/target"))
    assert ground.read(f"{AT}/target") == b"new"


@pytest.mark.parametrize("missing", ["source", "directory"])
def test_a_missing_source_or_directory_is_an_error_that_names_the_target(
    ground: Ground, missing: str
) -> None:
    """P33."""
    ground.mkdir(AT)
    if missing == "directory":
        ground.put(f"{AT}/source", b"1")
    target = f"{AT}/target" if missing == "source" else f"{AT}/none/target"
    with pytest.raises(DeedError, match=rf"^{target}: ENOENT$"):
        carry_out(ground, InstallFile(f"{AT}/source", target))


def test_a_directory_in_the_targets_place_is_an_error(ground: Ground) -> None:
    ground.mkdir(f"{AT}/target")
    ground.put(f"{AT}/source", b"1")
    with pytest.raises(DeedError, match=f"^{AT}/target: E"):
        carry_out(ground, InstallFile(f"{AT}/source", f"{AT}/target"))


def test_whoever_holds_the_old_file_keeps_it(tmp_path: Path) -> None:
    """By rename: what is mapped is never written to, so no half of a library is ever loaded."""
    ground = LinuxHost(str(tmp_path))
    (tmp_path / "source").write_bytes(b"new")
    (tmp_path / "target").write_bytes(b"old")
    with (tmp_path / "target").open("rb") as held:
        carry_out(ground, InstallFile("/source", "/target"))
        assert held.read() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_a_written_file_replaces_what_was_there(ground: Ground) -> None:
    ground.mkdir(AT)
    for data in (b"one", b"two"):
        assert carry_out(ground, WriteFile(f"{AT}/file", data, 0o640)) == f"{AT}/file: 3 bytes"
        assert (ground.read(f"{AT}/file"), mode(ground, f"{AT}/file")) == (data, 0o640)
    with pytest.raises(DeedError, match=f"^{AT}/none/file: ENOENT$"):
        carry_out(ground, WriteFile(f"{AT}/none/file", b"1"))


# ------------------------------------------------------------------ tools


class Tool(LinuxHost):
    """A node with one tool that says what it is told to."""

    def __init__(self, status: int = 0, stdout: bytes = b"", stderr: bytes = b"", fails: int = 0) -> None:
        super().__init__()
        self.done, self.fails = Completed(status, stdout, stderr), fails
        self.asked: list[tuple[tuple[str, ...], bytes]] = []

    def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Completed:
        self.asked.append((tuple(argv), stdin))
        if self.fails:
            raise OSError(self.fails, os.strerror(self.fails))
        return self.done


def test_a_tool_is_run_once_with_its_answers_on_stdin() -> None:
    tool = Tool(stdout=b"\tStatus                         : OK\n")
    assert carry_out(tool, RunTool(("smi", "set"), b"Y\n", "Status : OK")) == "smi set: done"
    assert tool.asked == [(("smi", "set"), b"Y\n")]


@pytest.mark.parametrize("status", [0, 1, 200])
def test_a_tools_status_proves_nothing_when_words_are_wanted(status: int) -> None:
    """Decision 42."""
    with pytest.raises(DeedError, match=rf"^smi set: {status}: 'Status : Fail no such chip'$"):
        carry_out(
            Tool(status, b"Status  :  Fail\n", b"no such chip\n"),
            RunTool(("smi", "set"), wanted="Status : OK"),
        )
    assert carry_out(Tool(status, b"Status : OK"), RunTool(("smi",), wanted="Status : OK")) == "smi: done"


def test_without_wanted_words_the_status_decides() -> None:
    assert carry_out(Tool(0, b"whatever"), RunTool(("smi",))) == "smi: done"
    with pytest.raises(DeedError, match=r"^smi: 3: 'whatever'$"):
        carry_out(Tool(3, b"whatever"), RunTool(("smi",)))


def test_what_a_tool_prints_reaches_a_message_escaped_and_cut() -> None:
    with pytest.raises(DeedError) as said:
        carry_out(Tool(1, b"\x1b[31m\xff" + b"x" * 10_000), RunTool(("smi",)))
    assert str(said.value).isascii()
    assert "\x1b" not in str(said.value)
    assert len(str(said.value)) < 300


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.ETIMEDOUT])
def test_a_tool_that_cannot_be_run_is_an_error_with_its_command(number: int) -> None:
    with pytest.raises(DeedError, match=rf"^smi set -d 1: {errno.errorcode[number]}$"):
        carry_out(Tool(fails=number), RunTool(("smi", "set", "-d", "1")))


# ------------------------------------------------------------------ every one

ALL: list[Deed] = [
    MakeDir(AT, 0o777),
    MakeDir(f"{AT}/a/b", 0o755),
    WriteFile(f"{AT}/file", b"1", 0o600),
    InstallFile(f"{AT}/file", f"{AT}/copy", 0o755),
    MoveAside(f"{AT}/a"),
    RemoveDir(f"{AT}/a.stale-1"),
]


def picture(host: Ground, path: str) -> Any:
    found = host.stat(path, follow=False)
    if found.kind.name == Kind.DIRECTORY.name:
        return {name: picture(host, f"{path}/{name}") for name in host.list(path)}, found.mode
    return host.read(path), found.mode


def test_what_is_not_said_of_a_deed_is_what_one_expects() -> None:
    assert (MakeDir("/d").mode, InstallFile("/a", "/b").mode, WriteFile("/a", b"").mode) == (
        0o755,
        0o644,
        0o644,
    )
    assert (RunTool(("x",)).stdin, RunTool(("x",)).wanted) == (b"", "")


def test_every_deed_done_twice_ends_in_the_same_node(ground: Ground) -> None:
    for deed in ALL:
        carry_out(ground, deed)
        once = picture(ground, "/srv")
        carry_out(ground, deed)
        assert picture(ground, "/srv") == once, deed
    assert [mode(ground, f"{AT}/{name}") for name in ("file", "copy")] == [0o600, 0o755]


def test_a_failure_keeps_the_error_it_came_from(ground: Ground) -> None:
    """Who asks whether a file was busy finds the number there."""
    with pytest.raises(DeedError) as said:
        carry_out(ground, WriteFile(f"{AT}/none/file", b"1"))
    cause = said.value.__cause__
    assert isinstance(cause, OSError)
    assert cause.errno == errno.ENOENT
