"""The simulated tree answers as Linux does when everything is allowed: walks, reads, writes, names."""

from __future__ import annotations

import errno
import timeit
from collections.abc import Callable

import pytest

from gpusim.nodes import Attr, CharDev, Dir, File, Kind, Link, Node, Stat
from gpusim.tree import Tree


def refused(code: int, call: Callable[..., object], *args: object) -> OSError:
    with pytest.raises(OSError) as caught:
        call(*args)
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[code]
    return caught.value


@pytest.fixture
def tree() -> Tree:
    return Tree(
        Dir(
            {
                "sys": Dir(
                    {
                        "class": Dir({"kfd": Dir({"kfd": Link("../../devices/virtual/kfd/kfd")})}),
                        "devices": Dir(
                            {"virtual": Dir({"kfd": Dir({"kfd": Dir({"dev": Attr("234:0\n")})})})},
                        ),
                        "here": Link("/sys/class"),
                    }
                ),
                "etc": Dir({"hostname": File("node\n")}, writable=True),
                "tmp": Dir({}, writable=True, mode=0o1777),
            }
        )
    )


# Walking


def test_relative_and_absolute_links_lead_inside_the_simulated_root(tree: Tree) -> None:
    assert tree.read("/sys/class/kfd/kfd/dev") == b"234:0\n"
    assert tree.read("/sys/here/kfd/kfd/dev") == b"234:0\n"


def test_dot_dot_behind_a_link_goes_to_the_real_parent(tree: Tree) -> None:
    assert tree.list("/sys/class/kfd/kfd/..") == ["kfd"]
    assert tree.resolve("/sys/class/kfd/kfd/../../..") == "/sys/devices"


def test_dot_dot_above_the_root_stays_at_the_root(tree: Tree) -> None:
    assert tree.list("/../../..") == ["etc", "sys", "tmp"]


def test_doubled_and_trailing_slashes_and_dots_change_nothing(tree: Tree) -> None:
    assert tree.read("//sys/./class//kfd/kfd/dev") == b"234:0\n"
    assert tree.list("/sys/class/") == ["kfd"]


def test_a_relative_path_starts_at_the_root(tree: Tree) -> None:
    assert tree.read("etc/hostname") == tree.read("etc/hostname") == b"node\n"


def test_a_missing_name_is_enoent_and_the_error_names_the_path_as_asked(tree: Tree) -> None:
    assert refused(errno.ENOENT, tree.read, "/sys/class/nvidia/x").filename == "/sys/class/nvidia/x"
    refused(errno.ENOENT, tree.read, "")


def test_a_file_used_as_directory_is_enotdir(tree: Tree) -> None:
    for path in ("/etc/hostname/x", "/etc/hostname/", "/etc/hostname/.", "/etc/hostname/.."):
        refused(errno.ENOTDIR, tree.read, path)
    refused(errno.ENOTDIR, tree.list, "/etc/hostname")


def test_forty_links_are_followed_and_the_forty_first_is_eloop(tree: Tree) -> None:
    tree.symlink("/etc/hostname", "/tmp/0")
    for n in range(1, 42):
        tree.symlink(str(n - 1), f"/tmp/{n}")
    assert tree.read("/tmp/39") == b"node\n"
    refused(errno.ELOOP, tree.read, "/tmp/40")
    tree.symlink("self", "/tmp/self")
    refused(errno.ELOOP, tree.stat, "/tmp/self")
    assert tree.stat("/tmp/self", follow=False).kind is Kind.LINK


def test_links_count_over_the_whole_walk_even_when_its_beginning_is_remembered(tree: Tree) -> None:
    tree.symlink(".", "/tmp/l")
    tree.put("/tmp/x", b"x")
    assert tree.read("/tmp" + "/l" * 40 + "/x") == b"x"
    refused(errno.ELOOP, tree.read, "/tmp" + "/l" * 41 + "/x")
    refused(errno.ELOOP, tree.readlink, "/tmp" + "/l" * 41 + "/l")


def test_names_over_255_bytes_are_enametoolong_except_on_sysfs(tree: Tree) -> None:
    refused(errno.ENAMETOOLONG, tree.read, "/etc/" + "é" * 128)
    refused(errno.ENAMETOOLONG, tree.put, "/etc/" + "a" * 256, b"")
    refused(errno.ENOENT, tree.read, "/sys/" + "a" * 256)
    refused(errno.ENAMETOOLONG, tree.read, "/" * 4096)
    assert tree.list("/" * 4095) == ["etc", "sys", "tmp"]


def test_a_nul_in_a_path_is_a_programming_error_as_in_os_open(tree: Tree) -> None:
    with pytest.raises(ValueError, match="null byte"):
        tree.read("/etc/host\0name")


# Reading


def test_attributes_are_computed_at_each_read(tree: Tree) -> None:
    state = ["SPX"]
    tree.root.add("mode", Attr(lambda: state[0] + "\n"))
    assert tree.read("/mode") == b"SPX\n"
    state[0] = "CPX"
    assert tree.read("/mode") == b"CPX\n"


def test_a_sysfs_attribute_gives_a_page_less_its_nul_and_a_cgroup_file_everything(tree: Tree) -> None:
    tree.root.add("sysfs", Attr("x" * 5000))
    tree.root.add("cgroup", Attr(lambda: b"x" * 5000, sysfs=False))
    assert len(tree.read("/sysfs")) == 4095
    assert len(tree.read("/cgroup")) == 5000
    assert (tree.stat("/sysfs").size, tree.stat("/cgroup").size) == (4096, 0)


def test_an_attribute_without_show_is_eio(tree: Tree) -> None:
    tree.root.add("odd", Attr(None, mode=0o644))
    refused(errno.EIO, tree.read, "/odd")


def test_reading_a_directory_is_eisdir_and_a_device_without_read_method_einval(tree: Tree) -> None:
    tree.root.add("kfd", CharDev(234, 0, opener=lambda caller: None))
    refused(errno.EISDIR, tree.read, "/etc")
    refused(errno.EINVAL, tree.read, "/kfd")
    refused(errno.EINVAL, tree.write, "/kfd", b"x")


def test_an_error_of_a_view_is_given_the_path_it_was_asked_for(tree: Tree) -> None:
    def in_reset() -> bytes:
        raise OSError(errno.EPERM, "GPU in reset")

    tree.root.add("busy", Attr(in_reset))
    error = refused(errno.EPERM, tree.read, "/sys/../busy")
    assert (error.filename, error.strerror) == ("/sys/../busy", "GPU in reset")


def test_stat_tells_kind_mode_size_and_device_number(tree: Tree) -> None:
    tree.root.add("null", CharDev(1, 3, 0o666))
    assert tree.stat("/null") == Stat(Kind.CHARACTER, 0o666, 0, (1, 3))
    assert tree.stat("/etc/hostname") == Stat(Kind.FILE, 0o644, 5)
    assert tree.stat("/sys/here").kind is Kind.DIRECTORY
    assert tree.stat("/sys/here", follow=False) == Stat(Kind.LINK, 0o777, len("/sys/class"))
    assert tree.stat("/sys/here/", follow=False).kind is Kind.DIRECTORY
    assert tree.stat("/tmp").mode == 0o1777


def test_readlink_gives_the_text_and_einval_for_what_is_no_link(tree: Tree) -> None:
    assert tree.readlink("/sys/class/kfd/kfd") == "../../devices/virtual/kfd/kfd"
    assert tree.readlink("/sys/here") == "/sys/class"
    for path in ("/etc/hostname", "/sys/here/", "/sys/here/kfd", "/"):
        refused(errno.EINVAL, tree.readlink, path)
    refused(errno.ENOENT, tree.readlink, "/sys/there")


# Writing


def test_a_store_receives_one_write_and_its_refusal_is_the_answer(tree: Tree) -> None:
    seen: list[bytes] = []

    def store(data: bytes, caller: object) -> None:
        if data.startswith(b"bad"):
            raise OSError(errno.EINVAL, "Invalid argument")
        seen.append(data)

    tree.root.add("attr", Attr("SPX\n", store, mode=0o644))
    assert tree.write("/attr", b"CPX\n") == 4
    refused(errno.EINVAL, tree.write, "/attr", b"bad")
    assert tree.write("/attr", b"") == 0
    assert tree.write("/attr", b"y" * 5000) == 4096
    assert seen == [b"CPX\n", b"y" * 4096]


def test_writing_without_store_is_eio_on_sysfs_and_einval_on_cgroup(tree: Tree) -> None:
    tree.root.add("sysfs", Attr("x", mode=0o644))
    tree.root.add("cgroup", Attr("x", mode=0o444, sysfs=False))
    refused(errno.EIO, tree.write, "/sysfs", b"1")
    assert tree.write("/sysfs", b"") == 0
    refused(errno.EINVAL, tree.write, "/cgroup", b"1")


def test_write_to_an_ordinary_file_overwrites_from_the_start_and_keeps_the_rest(tree: Tree) -> None:
    assert tree.write("/etc/hostname", b"N") == 1
    assert tree.read("/etc/hostname") == b"Node\n"
    refused(errno.EISDIR, tree.write, "/etc", b"x")
    refused(errno.ENOENT, tree.write, "/etc/new", b"x")


# Names


def test_put_replaces_a_file_or_a_link_whole(tree: Tree) -> None:
    tree.put("/etc/hostname", b"other", mode=0o600)
    assert (tree.read("/etc/hostname"), tree.stat("/etc/hostname").mode) == (b"other", 0o600)
    tree.symlink("hostname", "/etc/alias")
    tree.put("/etc/alias", b"own")
    assert tree.read("/etc/hostname") == b"other"
    assert tree.stat("/etc/alias", follow=False).kind is Kind.FILE


def test_put_refuses_what_rename_refuses(tree: Tree) -> None:
    tree.mkdir("/etc/d")
    refused(errno.EISDIR, tree.put, "/etc/d", b"x")
    refused(errno.ENOTDIR, tree.put, "/etc/d/", b"x")
    refused(errno.EBUSY, tree.put, "/etc/.", b"x")
    refused(errno.ENOENT, tree.put, "/etc/none/x", b"x")
    refused(errno.ENOTDIR, tree.put, "/etc/hostname/x", b"x")


def test_sysfs_directories_make_no_names(tree: Tree) -> None:
    refused(errno.EACCES, tree.put, "/sys/class/new", b"")
    refused(errno.EPERM, tree.mkdir, "/sys/class/new")
    refused(errno.EEXIST, tree.mkdir, "/sys/class/kfd")
    refused(errno.EPERM, tree.symlink, "x", "/sys/class/new")
    refused(errno.EPERM, tree.unlink, "/sys/here")
    refused(errno.EISDIR, tree.unlink, "/sys/class")
    refused(errno.ENOENT, tree.unlink, "/sys/none")
    refused(errno.EPERM, tree.rename, "/sys/here", "/sys/there")
    refused(errno.EPERM, tree.rename, "/etc/hostname", "/sys/there")


def test_makedirs_makes_parents_and_accepts_what_is_there(tree: Tree) -> None:
    tree.makedirs("/tmp/a/b/c/", mode=0o700)
    tree.makedirs("/tmp/a/b/c")
    tree.makedirs("/sys/class")
    tree.makedirs("/")
    assert tree.stat("/tmp/a/b/c") == Stat(Kind.DIRECTORY, 0o700)
    refused(errno.EEXIST, tree.makedirs, "/etc/hostname")
    refused(errno.ENOTDIR, tree.makedirs, "/etc/hostname/x/y")
    refused(errno.EPERM, tree.makedirs, "/sys/class/x/y")


def test_rename_moves_files_and_directories_and_refuses_loops(tree: Tree) -> None:
    tree.makedirs("/tmp/a/b")
    tree.put("/tmp/f", b"f")
    tree.rename("/tmp/f", "/tmp/a/f")
    assert tree.read("/tmp/a/f") == b"f"
    refused(errno.ENOENT, tree.read, "/tmp/f")
    refused(errno.EINVAL, tree.rename, "/tmp/a", "/tmp/a/b/c")
    refused(errno.ENOTEMPTY, tree.rename, "/tmp/a/b", "/tmp/a")
    refused(errno.EISDIR, tree.rename, "/tmp/a/f", "/tmp/a/b")
    refused(errno.ENOTDIR, tree.rename, "/tmp/a/b", "/tmp/a/f")
    tree.rename("/tmp/a/b", "/tmp/moved/")
    assert tree.list("/tmp") == ["a", "moved"]
    assert tree.list("/tmp/a") == ["f"]


def test_a_removed_name_is_gone_even_where_its_path_was_remembered(tree: Tree) -> None:
    assert tree.read("/etc/hostname") == b"node\n"
    tree.unlink("/etc/hostname")
    refused(errno.ENOENT, tree.read, "/etc/hostname")


# Lazy directories


def test_a_lazy_directory_is_made_at_the_first_visit_and_kept_until_invalidated() -> None:
    visits: list[int] = []

    def entries() -> dict[str, Node]:
        visits.append(1)
        return {"n": Attr(f"{len(visits)}\n")}

    lazy = Dir(entries)
    tree = Tree(Dir({"lazy": lazy, "other": Attr("x")}))
    tree.read("/other")
    assert tree.stat("/lazy").kind is Kind.DIRECTORY
    assert visits == []
    assert tree.read("/lazy/n") == tree.read("/lazy/n") == b"1\n"
    lazy.invalidate()
    assert tree.read("/lazy/n") == b"2\n"


def test_every_file_visits_each_node_once_sorted_and_follows_no_link(tree: Tree) -> None:
    paths = [path for path, _ in tree.every_file()]
    assert paths == sorted(set(paths), key=lambda path: path.split("/"))
    assert "/sys/class/kfd/kfd" in paths
    assert not [path for path in paths if path.startswith("/sys/class/kfd/kfd/")]
    assert "/sys/devices/virtual/kfd/kfd/dev" in paths


def test_reading_through_the_tree_costs_at_most_five_dictionary_walks(tree: Tree) -> None:
    path = "/sys/class/kfd/kfd/dev"
    nested = {"sys": {"class": {"kfd": {"kfd": {"dev": b"234:0\n"}}}}}

    def plain() -> object:
        found: object = nested
        for name in path.strip("/").split("/"):
            found = found[name]  # type: ignore[index]
        return found

    def best(call: Callable[[], object]) -> float:
        return min(timeit.repeat(call, number=2000, repeat=7))

    tree.read(path)
    assert best(lambda: tree.read(path)) <= 5 * best(plain)
