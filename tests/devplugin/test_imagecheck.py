"""Mounting, asking and pulling through containerd's client, with a real program in its place (amd.md 8)."""

from __future__ import annotations

import os
import stat
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from devplugin import imagecheck
from devplugin.host import Completed
from devplugin.imagecheck import Ctr, PullImage, check, pull
from devplugin.libc import Verdict
from devplugin.linux import LinuxHost

from .small_elf import glibc

REFERENCE = "docker.io/library/app:1"


class Containerd:
    """A `ctr` of shell: images are directories, a mount is a copy; every call is a line of a journal."""

    def __init__(self, path: Path) -> None:
        self.images = path / "images"
        self.images.mkdir()
        self.journal = path / "journal"
        self.journal.touch()
        self.ctr = Ctr(str(path / "ctr"), str(path / "containerd.sock"))
        program = path / "ctr"
        program.write_text(
            textwrap.dedent(f"""\
            #!/bin/sh
            echo "$*" >> {self.journal}
            test "$1 $2 $3 $4 $5" = "--namespace k8s.io --address {self.ctr.socket} images" || exit 2
            shift 5
            store={self.images}
            name() {{ echo "$1" | tr / _; }}
            case "$1" in
            mount)
                test "$2" = -- || exit 2
                test -e "$store/slow" && exec sleep 30
                test -e "$store/broken" && {{ printf "ctr: unpacking\\nctr: no space left\\n" >&2; exit 1; }}
                test -d "$store/$(name "$3")" || {{ echo "ctr: image \\"$3\\": not found" >&2; exit 1; }}
                cp -a "$store/$(name "$3")/." "$4"
                ;;
            unmount) test "$2" = --rm && rm -rf "$3"/* ;;
            list)
                test -e "$store/deaf" && exit 1
                for image in "$store"/*_*; do
                    test "name==$(basename "$image" | tr _ /)" = "$3" && basename "$image" | tr _ /
                done
                exit 0
                ;;
            pull)
                test -e "$store/broken" && {{ echo "ctr: no such host" >&2; exit 1; }}
                mkdir -p "$store/$(name "$3")/lib" && touch "$store/$(name "$3")/lib/ld-musl-x86_64.so.1"
                ;;
            esac
            """)
        )
        program.chmod(0o755)

    def image(self, reference: str, files: dict[str, bytes]) -> None:
        for path, content in files.items():
            file = self.images / reference.replace("/", "_") / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    def told(self) -> list[list[str]]:
        """The words after ``images`` of every call."""
        return [line.split(" images ")[1].split() for line in self.journal.read_text().splitlines()]


@pytest.fixture
def containerd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Containerd:
    monkeypatch.setattr(imagecheck, "TEMPORARY", str(tmp_path))
    return Containerd(tmp_path)


def left(containerd: Containerd) -> list[str]:
    return [
        path.name for path in containerd.journal.parent.iterdir() if path.name.startswith("amd-dp-libcheck-")
    ]


def test_an_image_is_mounted_looked_at_and_let_go_of(containerd: Containerd, tmp_path: Path) -> None:
    containerd.image(REFERENCE, {"lib64/ld-linux-x86-64.so.2": b"", "lib64/libc.so.6": glibc(38)})
    found = check(LinuxHost(), containerd.ctr, "app:1", "7")
    assert (found.image, found.verdict) == (REFERENCE, Verdict.GLIBC)
    place = f"{tmp_path}/amd-dp-libcheck-7"
    assert containerd.told() == [["mount", "--", REFERENCE, place], ["unmount", "--rm", place]]
    assert left(containerd) == []


def test_the_command_line_of_a_mount_keeps_the_image_behind_the_end_of_flags() -> None:
    words = Ctr().mount("docker.io/library/alpine:latest", "/tmp/amd-dp-libcheck-1")
    assert words == [
        "/usr/local/bin/ctr",
        *("--namespace", "k8s.io", "--address", "/run/containerd/containerd.sock"),
        *("images", "mount", "--", "docker.io/library/alpine:latest", "/tmp/amd-dp-libcheck-1"),
    ]


def test_a_musl_image_is_told_as_such(containerd: Containerd) -> None:
    containerd.image(REFERENCE, {"lib/ld-musl-x86_64.so.1": b""})
    assert check(LinuxHost(), containerd.ctr, REFERENCE, "1").verdict is Verdict.MUSL


def test_an_image_that_is_not_here_is_pulled_and_found_by_the_next_pod(containerd: Containerd) -> None:
    first = check(LinuxHost(), containerd.ctr, "app:1", "1")
    assert (first.verdict, first.pull) == (Verdict.ABSENT, True)
    assert "image is not on the node yet" in first.refusal
    assert pull(LinuxHost(), containerd.ctr, PullImage(first.image)) is None
    assert containerd.told()[-1] == ["pull", "--", REFERENCE]
    assert check(LinuxHost(), containerd.ctr, "app:1", "2").verdict is Verdict.MUSL
    assert left(containerd) == []


def test_an_image_that_is_here_and_cannot_be_mounted_fails_closed(containerd: Containerd) -> None:
    containerd.image(REFERENCE, {"app": b""})
    (containerd.images / "broken").touch()
    found = check(LinuxHost(), containerd.ctr, REFERENCE, "1")
    assert (found.verdict, found.detail) == (Verdict.FAILED, "ctr: no space left")
    assert REFERENCE in found.refusal
    assert left(containerd) == []


def test_where_absence_cannot_be_asked_for_the_check_failed(containerd: Containerd) -> None:
    (containerd.images / "deaf").touch()
    found = check(LinuxHost(), containerd.ctr, REFERENCE, "1")
    assert (found.verdict, found.pull) == (Verdict.FAILED, False)


def test_a_pull_that_fails_says_the_last_line_of_why(containerd: Containerd) -> None:
    (containerd.images / "broken").touch()
    assert (
        pull(LinuxHost(), containerd.ctr, PullImage(REFERENCE)) == f"pulling {REFERENCE}: ctr: no such host"
    )


def test_a_client_that_is_not_there_fails_closed(containerd: Containerd) -> None:
    gone = Ctr("/nonexistent/ctr", containerd.ctr.socket)
    found = check(LinuxHost(), gone, REFERENCE, "1")
    assert (found.verdict, found.detail) == (Verdict.FAILED, "/nonexistent/ctr: ENOENT")
    assert pull(LinuxHost(), gone, PullImage(REFERENCE)) == f"pulling {REFERENCE}: /nonexistent/ctr: ENOENT"
    assert left(containerd) == []


def test_a_mount_that_takes_too_long_is_taken_back(
    containerd: Containerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imagecheck, "MOUNT_SECONDS", 0.3)
    (containerd.images / "slow").touch()
    found = check(LinuxHost(), containerd.ctr, REFERENCE, "1")
    assert (found.verdict, found.detail) == (Verdict.FAILED, f"{containerd.ctr.path}: no end within 0.3 s")
    assert [words[0] for words in containerd.told()] == ["mount", "unmount"]
    assert left(containerd) == []


@pytest.mark.parametrize("image", ["", "-x", "a b", "a;reboot", "name==x,"])
def test_a_name_that_is_none_runs_nothing(containerd: Containerd, image: str) -> None:
    found = check(LinuxHost(), containerd.ctr, image, "1")
    assert found.verdict is Verdict.FAILED
    assert "is no image reference" in found.refusal
    assert containerd.told() == []


def test_the_mount_point_is_nobody_elses_business(containerd: Containerd) -> None:
    class Watching(LinuxHost):
        modes: list[int] = []  # noqa: RUF012 - one instance

        def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Completed:
            if "mount" in argv:
                self.modes.append(stat.S_IMODE(os.stat(argv[-1]).st_mode))
            return super().run(argv, timeout=timeout, stdin=stdin)

    containerd.image(REFERENCE, {"app": b""})
    place = Watching()
    assert check(place, containerd.ctr, REFERENCE, "1").verdict is Verdict.STATIC
    assert place.modes == [0o700]
