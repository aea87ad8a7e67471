"""Installing the hook library: once, whole, and never an empty one (amd.md 1.3)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from devplugin.hook import HookError, HookPaths, install, parse
from devplugin.linux import LinuxHost
from gpusim.fixture import load
from gpusim.machine import Machine

SOURCE = "/opt/hami/lib/amd/libamvgpu.so"
TARGET = "/usr/local/vgpu/libamvgpu.so"
LIBRARY = b"\x7fELF one"


@pytest.fixture
def place(tmp_path: Path) -> LinuxHost:
    source = tmp_path / SOURCE[1:]
    source.parent.mkdir(parents=True)
    source.write_bytes(LIBRARY)
    return LinuxHost(str(tmp_path))


def file(place: LinuxHost, path: str = TARGET) -> Path:
    return Path(place.root + path)


def test_the_library_is_put_there_with_its_directory_and_mode(place: LinuxHost) -> None:
    done = install(place, parse(f"{SOURCE}:{TARGET}"))
    assert done.changed
    assert done.sha256 == hashlib.sha256(LIBRARY).hexdigest()
    assert file(place).read_bytes() == LIBRARY
    assert file(place).stat().st_mode & 0o777 == 0o555
    assert [path.name for path in file(place).parent.iterdir()] == ["libamvgpu.so"], "no temporary name stays"
    assert str(done) == f"{TARGET}: installed, sha256 {done.sha256}"


def test_a_second_time_touches_nothing(place: LinuxHost) -> None:
    paths = HookPaths(SOURCE, TARGET)
    install(place, paths)
    before = file(place).stat()
    done = install(place, paths)
    assert not done.changed
    assert str(done).startswith(f"{TARGET}: up to date")
    after = file(place).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_another_version_is_renamed_over_it_and_whoever_has_it_open_keeps_the_old_one(
    place: LinuxHost,
) -> None:
    install(place, HookPaths(SOURCE, TARGET))
    file(place, SOURCE).write_bytes(b"\x7fELF two")
    with file(place).open("rb") as mapped:
        assert install(place, HookPaths(SOURCE, TARGET)).changed
        assert mapped.read() == LIBRARY
    assert file(place).read_bytes() == b"\x7fELF two"


@pytest.mark.parametrize("mode", [0o644, 0o755, 0o000])
def test_the_right_bytes_with_another_mode_are_put_right(place: LinuxHost, mode: int) -> None:
    install(place, HookPaths(SOURCE, TARGET))
    file(place).chmod(mode)
    assert install(place, HookPaths(SOURCE, TARGET)).changed
    assert file(place).stat().st_mode & 0o777 == 0o555


@pytest.mark.parametrize("target", ["/usr/local/vgpu/", "/usr/local/vgpu"])
def test_a_directory_gets_the_file_under_its_own_name(place: LinuxHost, target: str) -> None:
    if not target.endswith("/"):
        file(place, target).mkdir(parents=True)
    assert install(place, HookPaths(SOURCE, target)).target == TARGET
    assert file(place).read_bytes() == LIBRARY


def test_a_link_at_the_target_is_replaced_and_not_written_through(place: LinuxHost) -> None:
    other = file(place, "/usr/local/other.so")
    other.parent.mkdir(parents=True)
    other.write_bytes(LIBRARY)
    file(place).parent.mkdir()
    file(place).symlink_to("/usr/local/other.so")
    file(place, SOURCE).write_bytes(b"new")
    install(place, HookPaths(SOURCE, TARGET))
    assert not file(place).is_symlink()
    assert other.read_bytes() == LIBRARY


def test_an_empty_or_missing_source_is_refused_and_the_old_library_stays(place: LinuxHost) -> None:
    install(place, HookPaths(SOURCE, TARGET))
    file(place, SOURCE).write_bytes(b"")
    with pytest.raises(HookError, match=rf"^{SOURCE}: empty: "):
        install(place, HookPaths(SOURCE, TARGET))
    file(place, SOURCE).unlink()
    with pytest.raises(HookError, match=rf"^{SOURCE}: ENOENT: "):
        install(place, HookPaths(SOURCE, TARGET))
    assert file(place).read_bytes() == LIBRARY


def test_a_target_that_cannot_be_written_is_told_by_its_path(place: LinuxHost) -> None:
    file(place, "/usr").write_text("a file where a directory should be")
    with pytest.raises(HookError, match="ENOTDIR: the hook cannot be installed there"):
        install(place, HookPaths(SOURCE, TARGET))


@pytest.mark.parametrize(
    "text", ["", "/a", "/a:", ":/b", "/a:b", "a:/b", "/a:/b:/c", "/:/b", "/a:/../b", "/a\n:/b"]
)
def test_what_is_not_two_absolute_paths_is_refused(text: str) -> None:
    with pytest.raises(HookError, match="use SRC:DST"):
        parse(text)


def test_a_simulated_node_takes_the_hook_as_a_real_one_does() -> None:
    machine = Machine(load("rdna4/rx9070-igpu"))
    machine.mkdir("/opt/hami/lib/amd")
    machine.put(SOURCE, LIBRARY)
    assert install(machine, HookPaths(SOURCE, TARGET)).changed
    assert not install(machine, HookPaths(SOURCE, TARGET)).changed
    assert machine.read(TARGET) == LIBRARY
    assert machine.stat(TARGET).mode == 0o555
