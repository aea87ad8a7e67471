"""Writing a machine's tree out: what is kept, what is left out, and that nothing half-written stays."""

from __future__ import annotations

import errno
import os
import stat
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.export.render import MARK, RenderError, render
from gpusim.machine import View
from gpusim.tree import Attr, Caller, CharDev, Dir, File, Kind, Link, Node, Tree


def denied(caller: Caller) -> None:
    raise OSError(errno.EPERM, "in reset")


def example() -> Tree:
    gpu = Dir({"unique_id": Attr(lambda: "00c0\n"), "busy": Attr(lambda: "1\n", guard=denied)})
    return Tree(
        Dir(
            {
                "sys": Dir(
                    {
                        "devices": Dir({"gpu": gpu}),
                        "class": Dir({"card0": Link("../devices/gpu")}),
                        "absolute": Link("/sys/devices"),
                    }
                ),
                "dev": Dir({"kfd": CharDev(240, 0, 0o660)}, writable=True),
                "note": File("x" * 100_000, mode=0o666),
            }
        )
    )


def modes(directory: Path, *names: str) -> list[int]:
    return [stat.S_IMODE((directory / name).stat().st_mode) for name in names]


def test_files_links_and_modes_are_those_of_the_machine(tmp_path: Path) -> None:
    render(example(), tmp_path / "out")
    out = tmp_path / "out"
    assert (out / "sys/class/card0/unique_id").read_text() == "00c0\n"
    assert (out / "sys/class/card0").readlink() == Path("../devices/gpu")
    assert (out / "note").stat().st_size == 100_000
    assert modes(out, "note", "sys/devices/gpu/unique_id", "sys", "dev/kfd") == [0o666, 0o444, 0o755, 0o660]


def test_an_absolute_link_stays_inside_the_directory(tmp_path: Path) -> None:
    render(example(), tmp_path / "out")
    assert (tmp_path / "out/sys/absolute/gpu/unique_id").read_text() == "00c0\n"


def test_a_device_node_becomes_an_empty_file(tmp_path: Path) -> None:
    report = render(example(), tmp_path / "out")
    kfd = tmp_path / "out/dev/kfd"
    assert kfd.is_file()
    assert kfd.read_bytes() == b""
    assert report.devices == 1


def test_an_unreadable_attribute_is_left_out_and_reported(tmp_path: Path) -> None:
    report = render(example(), tmp_path / "out")
    assert report.skipped == [("/sys/devices/gpu/busy", "EPERM")]
    assert not (tmp_path / "out/sys/devices/gpu/busy").exists()
    assert (report.directories, report.files, report.links) == (5, 2, 2)


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        render(example(), tmp_path / "out")
    finally:
        os.umask(before)
    assert modes(tmp_path / "out", "note", "sys", "sys/devices/gpu/unique_id") == [0o666, 0o755, 0o444]


def test_parents_are_made_and_an_empty_directory_is_used(tmp_path: Path) -> None:
    render(example(), tmp_path / "a" / "b")
    (tmp_path / "empty").mkdir()
    render(example(), tmp_path / "empty")
    assert (tmp_path / "empty/note").exists()
    assert (tmp_path / "a/b/note").exists()


def test_a_directory_that_holds_something_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    for force in (False, True):
        with pytest.raises(RenderError, match=r"not empty \(it holds mine\); name another one"):
            render(example(), tmp_path, force=force)
    assert os.listdir(tmp_path) == ["mine"]
    with pytest.raises(RenderError, match="is a file"):
        render(example(), tmp_path / "mine")


def test_force_replaces_an_earlier_rendering(tmp_path: Path) -> None:
    out = tmp_path / "out"
    render(example(), out)
    (out / "sys/stale").write_text("x")
    with pytest.raises(RenderError, match="or force to replace it"):
        render(example(), out)
    render(example(), out, force=True)
    assert not (out / "sys/stale").exists()
    assert (out / "note").exists()


def test_force_never_replaces_what_was_not_rendered(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/mine").write_text("precious")
    with pytest.raises(RenderError, match="is not empty"):
        render(example(), tmp_path, force=True)
    assert (tmp_path / "sys/mine").read_text() == "precious"


def test_an_empty_name_is_refused_before_anything_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    for verb in ("makedirs", "unlink", "rmdir", "fwalk", "mkdir"):
        monkeypatch.setattr(os, verb, lambda *_, **__: pytest.fail("touched the disk"))
    for force in (False, True):
        with pytest.raises(RenderError, match="name is empty"):
            render(example(), "", force=force)


def test_a_directory_that_cannot_be_made_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(os, "makedirs", refused)
    monkeypatch.setattr(os, "unlink", lambda *_, **__: pytest.fail("removed something"))
    with pytest.raises(PermissionError):
        render(example(), tmp_path / "new")


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(errno.ENOSPC, "full"), RuntimeError("bug")])
@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize("reach", [Tree, View])
def test_nothing_half_written_is_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException | type[BaseException],
    existed: bool,
    reach: Callable[[Any], Any],
) -> None:
    out = tmp_path / "out"
    if existed:
        out.mkdir()

    # The very last file fails: everything else is on disk by then.
    tree = example()
    tree.root.add("zzz", Dir({"last": File(b"")}, mode=0o555))
    real = os.open

    def opened(path: str, *rest: int, **named: int) -> int:
        if path == "last":
            raise failure
        return real(path, *rest, **named)

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(failure if isinstance(failure, type) else type(failure)):
        render(tree if reach is Tree else View(tree), out)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == (["out"] if existed else [])
    assert not existed or os.listdir(out) == []


@pytest.mark.parametrize("name", ["../../escape", "..", ".", ""])
def test_a_name_that_leaves_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    tree = Tree(Dir({"sys": Dir({name: File(b"x")})}))
    for machine in (tree, View(tree)):
        with pytest.raises(RenderError, match="no file name"):
            render(machine, tmp_path / "out")
    assert os.listdir(tmp_path) == []


NAMES = st.text(string.ascii_letters + string.digits + "._-:", min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..")
)
MODES = st.sampled_from([0o444, 0o644, 0o600, 0o755])


def broken() -> str:
    raise OSError(errno.ENODEV, "gone")


ATTRIBUTES = st.builds(
    Attr,
    st.sampled_from(["text\n", b"bytes", "", None, "x" * 5000, lambda: "computed\n", broken]),
    guard=st.sampled_from([None, lambda caller: None, denied]),
    mode=st.sampled_from([0o444, 0o644, 0o200, 0o400]),
    sysfs=st.booleans(),
)
TREES = st.recursive(
    st.builds(lambda content, mode: File(content, mode=mode), st.binary(max_size=40), MODES)
    | ATTRIBUTES
    | st.builds(Link, st.sampled_from(["x", "../x", "a/b"]))
    | st.builds(CharDev, st.just(226), st.integers(0, 255), MODES),
    lambda inner: st.builds(Dir, st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=20,
)


def walk(tree: Tree, path: str = "/") -> Iterator[tuple[str, Node]]:
    for name in tree.list(path):
        inner = f"{path.rstrip('/')}/{name}"
        node = tree.node(inner, follow=False)
        yield inner, node
        if node.kind is Kind.DIRECTORY:
            yield from walk(tree, inner)


@given(st.dictionaries(NAMES, TREES, max_size=4), st.sampled_from([Tree, View]))
def test_what_is_rendered_is_what_the_machine_hands_out(
    tmp_path_factory: pytest.TempPathFactory, entries: dict[str, Node], reach: Callable[[Any], Any]
) -> None:
    """Both ways: by path, as from a served machine, and from the nodes of a machine of this process."""
    tree = Tree(Dir(entries))
    out = tmp_path_factory.mktemp("tree")
    report = render(tree if reach is Tree else View(tree), out)
    unreadable = {}
    for path, node in walk(tree):
        there = Path(f"{out}{path}")
        if node.kind is Kind.LINK:
            assert os.readlink(there) == tree.readlink(path)
            continue
        if node.kind is Kind.FILE:
            try:
                content = tree.read(path)
            except OSError as error:
                unreadable[path] = errno.errorcode[error.errno or 0]
                continue
            assert there.read_bytes() == content
        elif node.kind is Kind.CHARACTER:
            assert there.is_file()
            assert there.read_bytes() == b""
        assert stat.S_IMODE(there.stat().st_mode) == tree.stat(path).mode
    assert dict(report.skipped) == unreadable
    written = {"/" + str(path.relative_to(out)) for path in out.rglob("*")}
    assert written - {f"/{MARK}"} == {path for path, _ in walk(tree)} - unreadable.keys()
