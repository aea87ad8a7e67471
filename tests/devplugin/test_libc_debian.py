"""The C library check on real files: images unpacked from Debian's own packages.

The packages are fetched by the machine's `apt-get` and only unpacked, never installed; where there is none,
or it reaches no archive, these tests are skipped and say so. Everything else about the check is in
`test_libc.py`, on files made by hand.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from devplugin.libc import Verdict, classify
from devplugin.linux import LinuxHost

PACKAGES = ("libc6", "musl", "busybox-static")

Image = Callable[..., Path]


def _fetch(folder: Path) -> str | None:
    """Download the packages into a folder; why not, or None. Uses the machine's lists, else its own copy."""
    own = folder / "apt"
    (own / "lists").mkdir(parents=True)
    private = ["-o", f"Dir::State::Lists={own / 'lists'}", "-o", f"Dir::Cache={own}"]
    steps = [["download", *PACKAGES]], [[*private, "update"], [*private, "download", *PACKAGES]]
    said = ""
    for attempt in steps:
        for words in attempt:
            done = subprocess.run(
                ["apt-get", "-q", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=35
            )
            said = done.stderr.strip().rpartition("\n")[2]
        if all(list(folder.glob(f"{name}_*.deb")) for name in PACKAGES):
            return None
    return said or "no package came"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("not a Debian machine: no packages to unpack")
    folder = tmp_path_factory.mktemp("packages")
    try:
        why = _fetch(folder)
    except subprocess.TimeoutExpired:
        why = "apt-get takes too long"
    if why is not None:
        pytest.skip(f"Debian's packages cannot be fetched: {why}")
    return folder


@pytest.fixture
def image(packages: Path, tmp_path: Path) -> Image:
    """Unpack some of the packages as one image."""

    def unpacked(*names: str, usr_merged: bool = False) -> Path:
        root = tmp_path / "image"
        root.mkdir()
        if usr_merged:  # as Debian's images are: /lib leads to /usr/lib
            for name in ("lib", "lib64", "bin"):
                (root / "usr" / name).mkdir(parents=True, exist_ok=True)
                (root / name).symlink_to(f"usr/{name}")
        for name in names:
            (package,) = packages.glob(f"{name}_*.deb")
            with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as tar:
                subprocess.run(
                    ["tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", root],
                    stdin=tar.stdout,
                    check=True,
                    timeout=60,
                )
        return root

    return unpacked


def verdict(root: Path) -> tuple[Verdict, str]:
    found = classify(LinuxHost(), str(root), "docker.io/library/debian:12")
    return found.verdict, found.detail


@pytest.mark.parametrize("usr_merged", [False, True])
def test_debians_glibc_loads_the_hook(image: Image, usr_merged: bool) -> None:
    kind, detail = verdict(image("libc6", usr_merged=usr_merged))
    assert kind is Verdict.GLIBC
    assert "libc.so.6 has GLIBC_2." in detail


@pytest.mark.parametrize("usr_merged", [False, True])
def test_debians_musl_does_not(image: Image, usr_merged: bool) -> None:
    kind, detail = verdict(image("musl", usr_merged=usr_merged))
    assert kind is Verdict.MUSL
    assert "/ld-musl-" in detail


def test_a_static_program_alone_does_not(image: Image) -> None:
    root = image("busybox-static")
    assert list(root.glob("**/busybox")), "the program is there"
    assert verdict(root) == (Verdict.STATIC, "no known loader")


def test_a_glibc_image_with_the_musl_package_is_a_glibc_image(image: Image) -> None:
    assert verdict(image("libc6", "musl", "busybox-static"))[0] is Verdict.GLIBC


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to link an older libc.so.6 with")
def test_the_same_image_with_a_libc_that_ends_at_2_31_is_too_old(image: Image, tmp_path: Path) -> None:
    root = image("libc6")
    (libc,) = root.glob("**/libc.so.6")
    source, script = tmp_path / "libc.c", tmp_path / "versions"
    source.write_text("void a(void) {}\nvoid b(void) {}\n")
    script.write_text("GLIBC_2.2.5 { a; };\nGLIBC_2.31 { b; } GLIBC_2.2.5;\n")
    libc.unlink()
    command = ["gcc", "-shared", "-nostdlib", "-o", libc, source, f"-Wl,--version-script={script}"]
    subprocess.run(command, check=True, timeout=60)
    kind, detail = verdict(root)
    assert kind is Verdict.OLD
    assert detail.endswith("libc.so.6 has GLIBC_2.31")
