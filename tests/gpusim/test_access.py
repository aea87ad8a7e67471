"""Who asks decides: mode bits, sysfs's own rule, device cgroups, read-only mounts, guards, drivers."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.nodes import ROOT, Attr, Caller, CharDev, Dir, File, Kind, Link, Stat
from gpusim.process import DeviceRules
from gpusim.tree import Tree

USER = Caller(uid=1000, gids=(1000,))
RENDER = Caller(uid=1000, gids=(1000, 109))
CONTAINER = Caller(uid=0, devices=DeviceRules.only((226, 128)), readonly=("/sys",))


def refused(code: int, call: Callable[..., object], *args: object) -> None:
    with pytest.raises(OSError) as caught:
        call(*args)
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[code]


def unplugged(caller: Caller) -> None:
    raise OSError(errno.ENODEV, "No such device")


def blank_partition(caller: Caller) -> None:
    raise OSError(errno.ENOENT, "No such file or directory")


def visible(caller: Caller) -> None:
    if caller.devices is not None and not caller.devices.allows(226, 129, "rw"):
        raise OSError(errno.EPERM, "Operation not permitted")


@pytest.fixture
def closed() -> list[str]:
    return []


@pytest.fixture
def tree(closed: list[str]) -> Tree:
    def opener(caller: Caller) -> Callable[[], None]:
        return lambda: closed.append("renderD128")

    dri = Dir(
        {
            "renderD128": CharDev(226, 128, 0o660, opener, gid=109),
            "renderD129": CharDev(226, 129, 0o660, blank_partition, gid=109),
            "renderD130": CharDev(226, 130, 0o660, unplugged, gid=109),
            "renderD131": CharDev(226, 131, 0o660, gid=109),
        }
    )
    sys = Dir(
        {
            "read": Attr("r\n"),
            "both": Attr("b\n", lambda data, caller: None, mode=0o644),
            "write": Attr(None, lambda data, caller: None, mode=0o200),
            "root": Attr("secret\n", mode=0o400),
            "gpu_id": Attr("29047\n", guard=visible),
        }
    )
    home = Dir({"file": File("x", mode=0o640, gid=109)}, mode=0o750, writable=True, gid=109)
    out = Dir({"sys": Link("../sys"), "both": Link("/sys/both")})
    return Tree(
        Dir({"dev": Dir({"dri": dri}), "sys": sys, "home": home, "out": out, "etc": Dir({}, writable=True)})
    )


# Mode bits


def test_owner_group_and_others_have_their_own_bits(tree: Tree) -> None:
    refused(errno.EACCES, tree.read, "/home/file", USER)
    assert tree.read("/home/file", RENDER) == b"x"
    refused(errno.EACCES, tree.write, "/home/file", b"y", RENDER)
    assert tree.write("/home/file", b"y") == 1


def test_the_owner_is_bound_by_the_owner_bits_even_where_others_may() -> None:
    tree = Tree(Dir({"odd": File("x", mode=0o044, uid=1000)}))
    refused(errno.EACCES, tree.read, "/odd", USER)
    assert tree.read("/odd", Caller(uid=7)) == tree.read("/odd", ROOT) == b"x"


def test_a_closed_directory_hides_what_is_in_it_even_after_root_has_been_there(tree: Tree) -> None:
    assert tree.stat("/home/file").kind is Kind.FILE
    for call in (tree.stat, tree.read, tree.list, tree.readlink):
        refused(errno.EACCES, call, "/home/file", USER)
    refused(errno.EACCES, tree.stat, "/home/none", USER)
    refused(errno.EACCES, tree.stat, "/home/.", USER)
    refused(errno.EACCES, tree.list, "/home", USER)
    assert tree.list("/home", RENDER) == ["file"]


def test_a_link_through_a_closed_directory_opens_it_to_nobody(tree: Tree) -> None:
    tree.root.add("alias", Link("home/file"))
    assert tree.read("/alias", RENDER) == b"x"
    refused(errno.EACCES, tree.read, "/alias", USER)
    assert tree.readlink("/alias", USER) == "home/file"


def test_making_and_removing_names_needs_the_directory_not_the_file(tree: Tree) -> None:
    for call, args in (
        (tree.put, ("/etc/new", b"", 0o644)),
        (tree.mkdir, ("/etc/new", 0o755)),
        (tree.symlink, ("x", "/etc/new")),
    ):
        refused(errno.EACCES, call, *args, USER)
    tree.put("/etc/there", b"", 0o666)
    refused(errno.EACCES, tree.unlink, "/etc/there", USER)
    refused(errno.EACCES, tree.rename, "/etc/there", "/etc/away", USER)
    refused(errno.EEXIST, tree.mkdir, "/etc/there", 0o755, USER)
    assert tree.write("/etc/there", b"x", USER) == 1


def test_new_files_belong_to_their_maker(tree: Tree) -> None:
    tree.mkdir("/etc/open", 0o777)
    tree.put("/etc/open/mine", b"x", 0o600, USER)
    assert tree.read("/etc/open/mine", USER) == b"x"
    refused(errno.EACCES, tree.read, "/etc/open/mine", Caller(uid=1001))


# sysfs


def test_sysfs_refuses_even_root_where_the_mode_has_no_such_bit_at_all(tree: Tree) -> None:
    refused(errno.EACCES, tree.write, "/sys/read", b"x")
    refused(errno.EACCES, tree.probe, "/sys/read")
    refused(errno.EACCES, tree.read, "/sys/write")
    refused(errno.EACCES, tree.open, "/sys/write", ROOT, "r")
    assert tree.write("/sys/write", b"x") == 1
    assert tree.read("/sys/root") == b"secret\n"
    refused(errno.EACCES, tree.read, "/sys/root", USER)
    refused(errno.EACCES, tree.write, "/sys/both", b"x", USER)
    tree.probe("/sys/both")


def test_a_guarded_attribute_opens_and_then_refuses_to_be_read(tree: Tree) -> None:
    refused(errno.EPERM, tree.read, "/sys/gpu_id", CONTAINER)
    assert tree.open("/sys/gpu_id", CONTAINER, "r").path == "/sys/gpu_id"
    assert tree.list("/sys", CONTAINER) == tree.list("/sys")
    assert tree.read("/sys/gpu_id") == b"29047\n"


# Read-only mounts


def test_a_read_only_mount_answers_erofs_by_whatever_way_it_is_reached(tree: Tree) -> None:
    for path in ("/sys/both", "/out/both", "/out/sys/both", "/sys/../sys/both"):
        refused(errno.EROFS, tree.write, path, b"x", CONTAINER)
    assert tree.read("/sys/both", CONTAINER) == b"b\n"


def test_erofs_comes_after_the_mode_bits_and_before_sysfs_own_check(tree: Tree) -> None:
    user = Caller(uid=1000, readonly=("/sys/",))
    refused(errno.EACCES, tree.write, "/sys/both", b"x", user)
    refused(errno.EROFS, tree.write, "/sys/read", b"x", CONTAINER)


def test_names_cannot_be_changed_on_a_read_only_mount(tree: Tree) -> None:
    caller = Caller(readonly=("/etc",))
    tree.put("/etc/there", b"")
    refused(errno.EROFS, tree.put, "/etc/there", b"x", 0o644, caller)
    refused(errno.EROFS, tree.put, "/etc/new", b"x", 0o644, caller)
    refused(errno.EROFS, tree.mkdir, "/etc/new", 0o755, caller)
    refused(errno.EEXIST, tree.mkdir, "/etc/there", 0o755, caller)
    refused(errno.EROFS, tree.unlink, "/etc/none", caller)
    refused(errno.EROFS, tree.rename, "/etc/there", "/home/there", caller)
    refused(errno.EROFS, tree.rename, "/home/file", "/etc/file", caller)


def test_a_read_only_mount_covers_its_directory_and_no_neighbour_of_like_name() -> None:
    caller = Caller(readonly=("/sys",))
    assert caller.covers("/sys")
    assert caller.covers("/sys/a")
    assert not caller.covers("/system")
    assert Caller(readonly=("/",)).covers("/anything")


# Device nodes


def test_a_device_node_is_opened_with_its_number_and_released_once(tree: Tree, closed: list[str]) -> None:
    opened = tree.open("/dev/dri/renderD128", RENDER)
    assert (opened.path, opened.rdev) == ("/dev/dri/renderD128", (226, 128))
    assert opened.release is not None
    assert closed == []
    opened.release()
    tree.probe("/dev/dri/renderD128", CONTAINER)
    assert closed == ["renderD128"] * 2


def test_mode_bits_answer_before_the_device_cgroup_and_that_before_the_driver(tree: Tree) -> None:
    denied = DeviceRules()
    refused(errno.EACCES, tree.probe, "/dev/dri/renderD129", Caller(uid=1000, devices=denied))
    refused(errno.EPERM, tree.probe, "/dev/dri/renderD129", Caller(uid=1000, gids=(109,), devices=denied))
    refused(errno.ENOENT, tree.probe, "/dev/dri/renderD129", RENDER)


def test_the_driver_answers_for_blank_unplugged_and_missing_devices(tree: Tree) -> None:
    refused(errno.ENOENT, tree.probe, "/dev/dri/renderD129")
    refused(errno.ENODEV, tree.probe, "/dev/dri/renderD130")
    refused(errno.ENXIO, tree.probe, "/dev/dri/renderD131")
    refused(errno.ENOENT, tree.probe, "/dev/dri/renderD140")
    refused(errno.EISDIR, tree.probe, "/dev/dri")


def test_a_container_reaches_only_the_devices_it_was_given(tree: Tree) -> None:
    tree.probe("/dev/dri/renderD128", CONTAINER)
    refused(errno.EPERM, tree.probe, "/dev/dri/renderD130", CONTAINER)
    assert tree.stat("/dev/dri/renderD130", CONTAINER) == Stat(Kind.CHARACTER, 0o660, 0, (226, 130))


def test_the_device_cgroup_is_asked_for_the_access_of_this_open(tree: Tree) -> None:
    reader = Caller(devices=DeviceRules.parse("c 226:128 r"))
    tree.open("/dev/dri/renderD128", reader, "r")
    refused(errno.EPERM, tree.open, "/dev/dri/renderD128", reader, "rw")


def test_a_device_node_may_be_written_on_a_read_only_mount(tree: Tree) -> None:
    tree.probe("/dev/dri/renderD128", Caller(readonly=("/",)))


def test_a_plain_file_can_be_probed_where_a_tree_has_no_device_nodes(tree: Tree) -> None:
    tree.probe("/home/file")
    refused(errno.EACCES, tree.probe, "/home/file", RENDER)


@given(
    mode=st.integers(0, 0o777),
    uid=st.integers(0, 2),
    gids=st.lists(st.integers(0, 2), max_size=2),
    owner=st.integers(1, 2),
    group=st.integers(1, 2),
)
def test_read_and_write_are_allowed_exactly_by_the_three_bits_of_the_callers_class(
    mode: int, uid: int, gids: list[int], owner: int, group: int
) -> None:
    tree = Tree(Dir({"f": File("x", mode=mode, uid=owner, gid=group)}))
    caller = Caller(uid, tuple(gids))
    text = f"{mode:03o}"
    digit = int(text[0] if uid == owner else text[1] if group in gids else text[2])
    for call, bit in ((lambda: tree.read("/f", caller), 4), (lambda: tree.write("/f", b"x", caller), 2)):
        if uid == 0 or digit & bit:
            call()
        else:
            refused(errno.EACCES, call)
