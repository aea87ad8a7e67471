"""Looking into an image that is not running yet: mount it, tell its C library, let go of it.

kubelet asks for devices when it admits a pod, before it pulls the images: an image that is not on the node
is pulled in the background, and this pod refused (guide-amd.md, musl fail-closed). containerd is spoken to
through its own client, `ctr`, in the namespace of Kubernetes (amd.md 8).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from devplugin.host import Completed, Files, Host, Runner, words
from devplugin.imageref import ImageNameError, normalise
from devplugin.libc import Finding, Verdict, classify

FACT = "libc"
"""Kind of the `FactRequest` whose subject is a container's image and whose answer is a `Finding`."""

TEMPORARY = "/tmp"  # noqa: S108  a directory of ours with a name nobody else has, mode 0700
PREFIX = "amd-dp-libcheck-"

MOUNT_SECONDS = 10.0
ASK_SECONDS = 3.0
PULL_SECONDS = 1800.0
"""kubelet's patience with an Allocate is 30 s, ours 25 (decision 24); a pull has nobody waiting."""


class Place(Host, Files, Runner, Protocol):
    """Where `ctr` is run and its mounts are seen: the daemon's own mount namespace."""


@dataclass(frozen=True, slots=True)
class PullImage:
    """A deed for the background: have an image on the node. Doing it twice is harmless."""

    image: str
    """As `Finding.image` names it."""


@dataclass(frozen=True, slots=True)
class Ctr:
    """containerd's client and the socket it is to use."""

    path: str = "/usr/local/bin/ctr"
    socket: str = "/run/containerd/containerd.sock"

    def mount(self, reference: str, directory: str) -> list[str]:
        """Mount an image's files read-only."""
        return [*self._images(), "mount", "--", reference, directory]

    def unmount(self, directory: str) -> list[str]:
        """Take them away, and the snapshot and lease that the mount made with them."""
        return [*self._images(), "unmount", "--rm", directory]

    def find(self, reference: str) -> list[str]:
        """Print an image's name if it is on the node."""
        return [*self._images(), "list", "-q", f"name=={reference}"]

    def pull(self, reference: str) -> list[str]:
        """Fetch and unpack an image."""
        return [*self._images(), "pull", "--", reference]

    def _images(self) -> tuple[str, ...]:
        return (self.path, "--namespace", "k8s.io", "--address", self.socket, "images")


def check(place: Place, ctr: Ctr, image: str, name: str) -> Finding:
    """What C library a container's image has; blocking (usually well below a second), never raises OSError.

    Args:
        place: where `ctr` runs and its mounts appear.
        ctr: which client.
        image: as the pod spec says it.
        name: letters, digits and dashes that no other check of this node has used: containerd keeps
            leases under the mount's directory.
    """
    try:
        reference = normalise(image)
    except ImageNameError as error:
        return Finding(ascii(image[:80]), Verdict.FAILED, str(error))
    directory = f"{TEMPORARY}/{PREFIX}{name}"
    try:
        place.mkdir(directory, 0o700)
    except OSError as error:
        return Finding(reference, Verdict.FAILED, f"{directory}: {words(error)}")
    try:
        return _look(place, ctr, reference, directory)
    finally:
        with contextlib.suppress(OSError):
            place.rmdir(directory)


def _look(place: Place, ctr: Ctr, reference: str, directory: str) -> Finding:
    try:
        mounted = place.run(ctr.mount(reference, directory), timeout=MOUNT_SECONDS)
    except OSError as error:  # TimeoutError is one: it may be mounted by now
        _unmount(place, ctr, directory)
        return Finding(reference, Verdict.FAILED, f"{ctr.path}: {_why(error)}")
    if mounted.status != 0:
        return _unmounted(place, ctr, reference, mounted)
    try:
        return classify(place, directory, reference)
    finally:
        _unmount(place, ctr, directory)


def _unmounted(place: Place, ctr: Ctr, reference: str, mounted: Completed) -> Finding:
    """Why an image could not be mounted: it is not here, or something is wrong.

    Its absence is asked for, not read out of a message; where that cannot be told either, the check
    failed.
    """
    said = _last_line(mounted.stderr) or f"exit status {mounted.status}"
    try:
        listed = place.run(ctr.find(reference), timeout=ASK_SECONDS)
    except OSError:
        return Finding(reference, Verdict.FAILED, said)
    names = listed.stdout.decode("utf-8", "replace").split()
    if listed.status == 0 and reference not in names:
        return Finding(reference, Verdict.ABSENT)
    return Finding(reference, Verdict.FAILED, said)


def pull(place: Runner, ctr: Ctr, wanted: PullImage) -> str | None:
    """Fetch an image; blocking for minutes. None when it is there now, else why not."""
    try:
        done = place.run(ctr.pull(wanted.image), timeout=PULL_SECONDS)
    except OSError as error:
        return f"pulling {wanted.image}: {ctr.path}: {_why(error)}"
    if done.status == 0:
        return None
    return f"pulling {wanted.image}: {_last_line(done.stderr) or f'exit status {done.status}'}"


def _unmount(place: Place, ctr: Ctr, directory: str) -> None:
    """Best effort: what cannot be unmounted now is left to containerd (its lease ends after a day)."""
    with contextlib.suppress(OSError):
        place.run(ctr.unmount(directory), timeout=ASK_SECONDS)


def _why(error: OSError) -> str:
    return str(error.strerror or error) if isinstance(error, TimeoutError) else words(error)


def _last_line(text: bytes) -> str:
    """What a program said last: printable, at most 200 characters."""
    lines: Sequence[str] = text.decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return "".join(c if c.isprintable() else "?" for c in last)[:200]
