"""Which C library an image has: loaders, versions, links, and what a broken image says (amd.md 8, 14.9)."""

from __future__ import annotations

import errno
import platform
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin import libc
from devplugin.libc import Finding, Verdict, VersionError, classify, glibc_version
from devplugin.linux import LinuxHost

from .dict_host import DictHost, Link, Tree, directory
from .small_elf import elf, glibc

IMAGE = "docker.io/library/thing:1"
ROOT = "/mnt/image"
X86 = "ld-linux-x86-64.so.2"
NEW, OLD = glibc(38), glibc(31)


def look(files: Tree) -> Finding:
    """The finding for an image of these files, beside a host whose own files must not matter."""
    outside: Tree = {
        "/lib/x86_64-linux-gnu/libc.so.6": NEW,
        "/lib64/ld-linux-x86-64.so.2": "loader",
        "/etc/libc.so.6": NEW,
        ROOT: directory(),
    }
    return classify(
        DictHost(outside | {f"{ROOT}/{path}": value for path, value in files.items()}), ROOT, IMAGE
    )


# ------------------------------------------------------------------ loaders


@pytest.mark.parametrize(
    ("files", "verdict"),
    [
        ({"lib/ld-musl-x86_64.so.1": "loader"}, Verdict.MUSL),
        ({f"lib/x86_64-linux-gnu/{X86}": "", "lib/x86_64-linux-gnu/libc.so.6": NEW}, Verdict.GLIBC),
        ({f"usr/lib64/{X86}": "", "usr/lib64/libc.so.6": NEW}, Verdict.GLIBC),
        ({"lib/ld-linux-aarch64.so.1": "", "lib/aarch64-linux-gnu/libc.so.6": NEW}, Verdict.GLIBC),
        ({"lib32/ld-linux.so.2": "", "lib32/libc.so.6": NEW}, Verdict.GLIBC),
        ({"lib/ld-linux-armhf.so.3": "", "usr/lib/arm-linux-gnueabihf/libc.so.6": NEW}, Verdict.GLIBC),
        ({"app": "a static program"}, Verdict.STATIC),
        ({}, Verdict.STATIC),
        # A glibc image with a musl package, a musl image with a glibc of its own elsewhere.
        (
            {
                f"usr/lib64/{X86}": "",
                "usr/lib/x86_64-linux-gnu/libc.so.6": NEW,
                "lib/ld-musl-x86_64.so.1": "",
            },
            Verdict.GLIBC,
        ),
        (
            {"lib/ld-musl-x86_64.so.1": "", f"opt/glibc/lib/{X86}": "", "opt/glibc/lib/libc.so.6": NEW},
            Verdict.MUSL,
        ),
        ({f"opt/glibc/lib/{X86}": "", "opt/glibc/lib/libc.so.6": NEW}, Verdict.GLIBC),
        ({f"opt/glibc/lib/{X86}": "", "opt/glibc/lib/libc.so.6": OLD}, Verdict.OLD),
        ({"opt/rootfs/lib/ld-musl-aarch64.so.1": ""}, Verdict.MUSL),
        # A directory is no loader; neither is what is only called like one.
        ({f"lib64/{X86}/file": ""}, Verdict.STATIC),
        ({f"lib64/{X86}.old": "", "lib/xld-musl-x86_64.so.1": ""}, Verdict.STATIC),
        ({"srv/lib/x86_64-linux-gnu/deeper/ld-linux.so.2": ""}, Verdict.FAILED),
    ],
)
def test_the_loader_tells_the_library(files: Tree, verdict: Verdict) -> None:
    assert look(files).verdict is verdict


def test_loaders_and_libc_behind_links_of_a_merged_usr_are_found_under_their_own_names() -> None:
    found = look(
        {
            "lib": Link("usr/lib"),
            "lib64": Link("usr/lib64"),
            f"usr/lib64/{X86}": Link(f"../lib/x86_64-linux-gnu/{X86}"),
            f"usr/lib/x86_64-linux-gnu/{X86}": "",
            "usr/lib/x86_64-linux-gnu/libc.so.6": NEW,
        }
    )
    assert found == Finding(IMAGE, Verdict.GLIBC, "/usr/lib/x86_64-linux-gnu/libc.so.6 has GLIBC_2.38")


def test_an_image_that_is_not_there_cannot_be_checked() -> None:
    found = classify(DictHost({}), "/mnt/none", IMAGE)
    assert (found.verdict, found.detail) == (Verdict.FAILED, "/mnt/none: ENOENT")


def test_what_cannot_be_read_is_passed_over() -> None:
    host = DictHost({f"{ROOT}/a": "", f"{ROOT}/lib/ld-musl-x86_64.so.1": "", f"{ROOT}/secret/x": ""})
    plain = host.list

    def listing(path: str) -> list[str]:
        if path.endswith("/secret"):
            raise PermissionError(errno.EACCES, "", path)
        return list(plain(path))

    host.list = listing  # type: ignore[method-assign]
    assert classify(host, ROOT, IMAGE).verdict is Verdict.MUSL


def test_a_glibc_image_is_told_without_walking_all_of_it() -> None:
    host = DictHost(
        {
            f"{ROOT}/lib64/{X86}": "",
            f"{ROOT}/lib/x86_64-linux-gnu/libc.so.6": NEW,
            f"{ROOT}/opt/python/site-packages/x": "",
        }
    )
    assert classify(host, ROOT, IMAGE).verdict is Verdict.GLIBC
    assert not [path for _, path in host.asked if "site-packages" in path]


def test_a_tree_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "_MAX_ENTRIES", 50)
    found = look({f"d{n}/f": "" for n in range(100)})
    assert (found.verdict, found.detail) == (Verdict.FAILED, f"{ROOT}: EFBIG")


# ------------------------------------------------------------------ versions


@pytest.mark.parametrize(
    ("minor", "verdict"), [(38, Verdict.GLIBC), (34, Verdict.GLIBC), (33, Verdict.OLD), (31, Verdict.OLD)]
)
def test_2_34_is_the_first_that_loads_the_hook(minor: int, verdict: Verdict) -> None:
    found = look({f"lib64/{X86}": "", "lib64/libc.so.6": glibc(minor)})
    assert (found.verdict, found.detail) == (verdict, f"/lib64/libc.so.6 has GLIBC_2.{minor}")


def test_a_standard_directory_beats_another() -> None:
    standard = {f"lib64/{X86}": "", "usr/lib64/libc.so.6": glibc(38), "opt/a/libc.so.6": glibc(17)}
    assert look(standard).verdict is Verdict.GLIBC
    only_other = {f"lib64/{X86}": "", "opt/a/libc.so.6": glibc(17)}
    assert look(only_other) == Finding(IMAGE, Verdict.OLD, "/opt/a/libc.so.6 has GLIBC_2.17")


def test_a_loader_without_libc_cannot_be_judged() -> None:
    found = look({f"lib64/{X86}": ""})
    assert (found.verdict, found.detail) == (Verdict.FAILED, f"/lib64/{X86}, but no libc.so.6")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no usable ELF file"),
        (b"#!/bin/sh\n", "no usable ELF file"),
        (b"\x7fELF", "no usable ELF file"),
        (NEW[:200], "no usable ELF file"),
        (elf(), "no GLIBC version in it"),
        (elf(["libc.so.6", "GLIBC_PRIVATE", "GLIBCXX_3.4.30", "GCC_3.0"]), "no GLIBC version in it"),
        (b"GLIBC_2.38\0" * 100, "no usable ELF file"),
    ],
)
def test_a_libc_that_does_not_say_its_version_is_no_glibc_we_trust(content: bytes, why: str) -> None:
    with pytest.raises(VersionError, match=why):
        glibc_version(content)
    assert look({f"lib64/{X86}": "", "lib64/libc.so.6": content}).verdict is Verdict.FAILED


def test_versions_are_numbers_and_not_texts() -> None:
    assert glibc_version(elf(["GLIBC_2.4", "GLIBC_2.31", "GLIBC_2.9", "GLIBC_2.3.4"])) == (2, 31)
    assert glibc_version(elf(["GLIBC_2.2.5"], ["GLIBC_2.35", "GLIBC_2.4"])) == (2, 35)
    assert glibc_version(glibc(36, machine="aarch64")) == (2, 36)


def test_a_table_that_never_ends_keeps_nobody_busy() -> None:
    before = time.monotonic()
    assert glibc_version(elf(["GLIBC_2.17", "GLIBC_2.38"], count=2**32 - 1, stuck=True)) == (2, 17)
    assert time.monotonic() - before < 5


@given(st.integers(0, len(NEW) - 1), st.integers(0, 255))
def test_a_damaged_libc_gives_a_version_or_an_error_and_nothing_else(at: int, byte: int) -> None:
    damaged = NEW[:at] + bytes([byte]) + NEW[at + 1 :]
    try:
        major, _ = glibc_version(damaged)
    except VersionError:
        return
    assert 0 <= major <= 9999


# ------------------------------------------------------------------ links


def test_an_absolute_link_leads_inside_the_image() -> None:
    found = look(
        {
            f"lib64/{X86}": "",
            "lib/x86_64-linux-gnu/libc.so.6": Link("/lib/x86_64-linux-gnu/libc-2.31.so"),
            "lib/x86_64-linux-gnu/libc-2.31.so": OLD,
        }
    )
    assert found.verdict is Verdict.OLD


@pytest.mark.parametrize(
    "target",
    ["../../../../etc/libc.so.6", "/../etc/libc.so.6", "/lib64/../../lib/x86_64-linux-gnu/libc.so.6"],
)
def test_a_link_out_of_the_image_is_refused(target: str) -> None:
    found = look({f"lib64/{X86}": "", "lib64/libc.so.6": Link(target)})
    assert (found.verdict, found.detail) == (Verdict.FAILED, "/lib64/libc.so.6 leads out of the image")


def test_links_of_directories_and_chains_are_followed() -> None:
    files: Tree = {
        f"lib64/{X86}": "",
        "lib64/libc.so.6": Link("../alias/libc.so.6"),
        "alias": Link("/real/./dir"),
        "real/dir/libc.so.6": Link("next"),
        "real/dir/next": Link("../../store/libc-2.38.so"),
        "store/libc-2.38.so": NEW,
    }
    assert look(files).verdict is Verdict.GLIBC


@pytest.mark.parametrize(
    ("target", "why"),
    [("libc.so.6", "ELOOP"), ("gone", "ENOENT"), ("/etc", "EISDIR"), ("/bin/x/y", "ENOTDIR")],
)
def test_a_link_to_nothing_useful_is_told(target: str, why: str) -> None:
    found = look({f"lib64/{X86}": "", "lib64/libc.so.6": Link(target), "etc": directory(), "bin/x": "a file"})
    assert (found.verdict, found.detail) in {
        (Verdict.FAILED, f"/lib64/libc.so.6: {why}"),
        (Verdict.FAILED, "/lib64/libc.so.6: ENOENT"),  # below a file: DictHost knows no ENOTDIR
    }


# ------------------------------------------------------------------ what it says


@pytest.mark.parametrize(
    ("verdict", "loads", "settled", "pull", "words"),
    [
        (Verdict.GLIBC, True, False, False, ()),
        (Verdict.OLD, False, True, False, ("glibc older than 2.34", "cannot be loaded")),
        (Verdict.MUSL, False, True, False, ("musl", "cannot be loaded")),
        (Verdict.STATIC, False, True, False, ("statically linked", "cannot be loaded")),
        (Verdict.FAILED, False, False, False, ("could not be checked", "why")),
        (Verdict.ABSENT, False, False, True, ("image is not on the node yet", "again")),
    ],
)
def test_a_refusal_names_image_and_kind(
    verdict: Verdict, loads: bool, settled: bool, pull: bool, words: tuple[str, ...]
) -> None:
    found = Finding(IMAGE, verdict, "why")
    assert (found.loads_hook, found.settled, found.pull) == (loads, settled, pull)
    assert found.refusal.startswith(f"image {IMAGE}: ")
    assert all(word in found.refusal for word in words)


# ------------------------------------------------------------------ real files


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this machine has no glibc of its own")
def test_this_machines_own_libc_says_its_version() -> None:
    own = next(path for path in ("/lib", "/lib64", "/usr/lib") for path in Path(path).glob("**/libc.so.6"))
    major, minor = (int(part) for part in platform.libc_ver()[1].split(".")[:2])
    told = glibc_version(own.read_bytes())
    assert (2, 17) < told <= (major, minor)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to link a libc.so.6 with")
@pytest.mark.parametrize(("last", "verdict"), [(31, Verdict.OLD), (34, Verdict.GLIBC)])
def test_a_libc_linked_with_a_version_script_is_read_on_a_real_file_system(
    tmp_path: Path, last: int, verdict: Verdict
) -> None:
    script, source = tmp_path / "versions", tmp_path / "libc.c"
    versions = ["GLIBC_2.2.5", *(f"GLIBC_2.{n}" for n in range(3, last + 1))]
    source.write_text("".join(f"void f{n}(void) {{}}\n" for n in range(len(versions))))
    script.write_text("".join(f"{name} {{ f{n}; }};\n" for n, name in enumerate(versions)))
    image = tmp_path / "image"
    (image / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (image / "usr/lib64").mkdir()
    (image / "lib64").symlink_to("usr/lib64")
    (image / "usr/lib64" / X86).symlink_to("../lib/x86_64-linux-gnu/nothing")
    real = image / "usr/lib/x86_64-linux-gnu" / f"libc-2.{last}.so"
    (real.parent / "libc.so.6").symlink_to(real.name)
    command = ["gcc", "-shared", "-nostdlib", "-o", real, source, f"-Wl,--version-script={script}"]
    subprocess.run([*command, "-Wl,-soname,libc.so.6"], check=True, timeout=60)
    found = classify(LinuxHost(), str(image), IMAGE)
    assert found == Finding(IMAGE, verdict, f"/usr/lib/x86_64-linux-gnu/libc.so.6 has GLIBC_2.{last}")
