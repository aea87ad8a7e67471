"""Which C library an image has, told from its files: can the memory hook be loaded into its programs?

The hook is an audit library (``LD_AUDIT``) built against glibc 2.34: musl and static programs ignore it,
an older glibc ends the program at start (amd.md 8, 15). Nothing of the image is run, and no link leads out
of it: every path is walked here, name by name, below the directory where the image is mounted.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from io import BytesIO
from itertools import islice
from typing import Any

from devplugin.host import Host, words

NEEDED = (2, 34)
"""Lowest glibc the hook runs with (guide-amd.md, dmem)."""

GLIBC_LOADERS = frozenset(
    ["ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "ld-linux.so.2", "ld-linux-armhf.so.3"]
)
MUSL_LOADER = "ld-musl-"
LIBC = "libc.so.6"

_STANDARD = re.compile(r"(?:usr/)?lib(?:32|64)?(?:/[^/]*-linux-gnu[^/]*)?")
"""Directories the system's own loader and libc are in (amd.md 8)."""
_TRIPLE = "-linux-gnu"
_TOPS = tuple(f"{prefix}lib{bits}" for prefix in ("", "usr/") for bits in ("", "32", "64"))

_VERSION = re.compile(r"GLIBC_([0-9]{1,4})\.([0-9]{1,4})(?:\.[0-9]{1,4})*", re.ASCII)
_MAX_ENTRIES = 1_000_000
"""More files than any image has: such a tree is refused rather than walked for ever."""
_MAX_LINKS = 40
"""As the kernel's own path walk (MAXSYMLINKS)."""
_MAX_SECTIONS = 4096
_MAX_VERSIONS = 4096
"""Per version table; glibc 2.40 has about 40. A broken count must not keep us busy."""


class Verdict(Enum):
    """What an image is to the memory hook."""

    GLIBC = "glibc 2.34 or newer"
    OLD = "glibc older than 2.34"
    MUSL = "musl"
    STATIC = "statically linked or unknown"
    FAILED = "its C library could not be checked"
    ABSENT = "image is not on the node yet"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known of one image. The answer to the fact ``libc`` of that image."""

    image: str
    """As the runtime names it, or as the pod does when it cannot be named."""
    verdict: Verdict
    detail: str = ""
    """What says so: a file of the image and what is in it, or what went wrong."""

    @property
    def loads_hook(self) -> bool:
        """The hook, its limits and its mount may be given."""
        return self.verdict is Verdict.GLIBC

    @property
    def settled(self) -> bool:
        """Known not to load the hook: a slice whose VRAM dmem limits may start without (amd.md 8)."""
        return self.verdict in (Verdict.OLD, Verdict.MUSL, Verdict.STATIC)

    @property
    def pull(self) -> bool:
        """A pull is to be started; this pod is refused, a later one will find the image."""
        return self.verdict is Verdict.ABSENT

    @property
    def refusal(self) -> str:
        """Why a slice cannot start with this image, and what to do."""
        said = f"image {self.image}: {self.verdict.value}"
        if self.detail:
            said += f" ({self.detail})"
        if self.pull:
            return f"{said}; it is being pulled, create the pod again"
        if self.settled:
            return (
                f"{said}: the memory hook cannot be loaded; use an image with glibc 2.34 or newer, "
                "a whole GPU, or a node where dmem limits VRAM"
            )
        return said


class EscapeError(Exception):
    """A link of the image leads out of it."""


class VersionError(Exception):
    """A libc.so.6 does not say what version it is."""


def classify(host: Host, root: str, image: str) -> Finding:
    """What C library the image mounted at `root` has; blocking, never raises for what it holds.

    glibc's loader in a standard directory decides before any musl, that before a glibc loader elsewhere
    (amd.md 8): a glibc image may have musl tools, a musl image a glibc under /opt.
    """
    try:
        host.list(root)
        seen = _Seen()
        seen.take(_standard(host, root))
        if seen.loader is None or seen.libc is None:
            seen.take(_walk(host, root))
    except OSError as error:
        return Finding(image, Verdict.FAILED, f"{error.filename or root}: {words(error)}")
    if seen.loader is None and seen.musl is not None:
        return Finding(image, Verdict.MUSL, f"/{seen.musl}")
    if seen.loader is None and seen.other_loader is None:
        return Finding(image, Verdict.STATIC, "no known loader")
    libc = seen.libc or seen.other_libc
    if libc is None:
        return Finding(image, Verdict.FAILED, f"/{seen.loader or seen.other_loader}, but no {LIBC}")
    return _measured(host, root, image, libc)


def _measured(host: Host, root: str, image: str, libc: str) -> Finding:
    """The verdict by the version of one libc.so.6."""
    try:
        version = glibc_version(host.read(f"{root}/{resolve(host, root, libc)}"))
    except EscapeError as error:
        return Finding(image, Verdict.FAILED, f"/{libc} {error}")
    except VersionError as error:
        return Finding(image, Verdict.FAILED, f"/{libc}: {error}")
    except OSError as error:
        return Finding(image, Verdict.FAILED, f"/{libc}: {words(error)}")
    told = f"/{libc} has GLIBC_{version[0]}.{version[1]}"
    return Finding(image, Verdict.GLIBC if version >= NEEDED else Verdict.OLD, told)


class _Seen:
    """First loader and libc of each sort that a walk came by; paths relative to the image."""

    def __init__(self) -> None:
        self.loader: str | None = None
        self.libc: str | None = None
        self.musl: str | None = None
        self.other_loader: str | None = None
        self.other_libc: str | None = None

    def take(self, files: Iterator[tuple[str, str]]) -> None:
        """Note what is in (directory, name) pairs."""
        for directory, name in files:
            if name == LIBC or name in GLIBC_LOADERS:
                path = f"{directory}/{name}" if directory else name
                standard = _STANDARD.fullmatch(directory) is not None
                field = f"{'' if standard else 'other_'}{'libc' if name == LIBC else 'loader'}"
                if getattr(self, field) is None:
                    setattr(self, field, path)
            elif self.musl is None and name.startswith(MUSL_LOADER):
                self.musl = f"{directory}/{name}" if directory else name


def _standard(host: Host, root: str) -> Iterator[tuple[str, str]]:
    """Files of the standard directories alone: what decides for nearly every glibc image."""
    for top in _TOPS:
        # /lib of a merged-usr image is a link; what it leads to is seen under its own name.
        if all(_kind(host, f"{root}/{part}") == "DIRECTORY" for part in _prefixes(top)):
            yield from _walk(host, root, top, lambda path: _TRIPLE in path.rpartition("/")[2])


def _walk(
    host: Host, root: str, top: str = "", enter: Callable[[str], bool] | None = None
) -> Iterator[tuple[str, str]]:
    """(directory, name) of everything below `top` that is no directory, in sorted order, links unfollowed.

    Unreadable directories and entries are passed over.

    Args:
        host: whose files.
        root: where the image is mounted.
        top: where to start, relative to it.
        enter: which directories of `top` itself to go into, and no deeper; None: all, to the end.

    Raises:
        OSError: EFBIG, too many files.
    """
    count = 0
    todo = [top]
    while todo:
        directory = todo.pop()
        try:
            names = host.list(f"{root}/{directory}")
        except OSError:
            continue
        below: list[str] = []
        for name in names:
            count += 1
            path = f"{directory}/{name}" if directory else name
            kind = _kind(host, f"{root}/{path}")
            if kind == "DIRECTORY":
                if enter is None or (directory == top and enter(path)):
                    below.append(path)
            elif kind is not None:
                yield directory, name
        if count > _MAX_ENTRIES:
            raise OSError(errno.EFBIG, "too many files", root)
        todo += reversed(below)


def _prefixes(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts) + 1))


def _kind(host: Host, path: str) -> str | None:
    """What is at a path, itself, by the name of its `Kind`; None when that cannot be told."""
    try:
        return host.stat(path, follow=False).kind.name
    except OSError:
        return None


def resolve(host: Host, root: str, path: str) -> str:
    """Where a path of the image leads, relative to it; links followed inside, as its own root would.

    Raises:
        EscapeError: a link leads above the image's root, where a container would never look.
        OSError: ENOENT, ENOTDIR, ELOOP, and EISDIR or EINVAL for what is no plain file.
    """
    todo = _parts(path)[::-1]
    done: list[str] = []
    links = 0
    kind: str | None = None
    while todo:
        part = todo.pop()
        if part == "..":
            if not done:
                raise EscapeError("leads out of the image")
            done.pop()
            continue
        here = f"{root}/{'/'.join([*done, part])}"
        kind = host.stat(here, follow=False).kind.name
        if kind != "LINK":
            done.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, "too many links", path)
        target = host.readlink(here)
        if target.startswith("/"):
            done.clear()
        todo += _parts(target)[::-1]
    if kind != "FILE":
        raise OSError(errno.EISDIR if kind == "DIRECTORY" else errno.EINVAL, "no plain file", path)
    return "/".join(done)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def glibc_version(data: bytes) -> tuple[int, int]:
    """(major, minor): the highest ``GLIBC_<major>.<minor>`` among the versions a libc.so.6 defines or needs.

    A glibc defines one version for every release that added symbols, so the highest is its own release or
    the last before it that added any; 2.34 added hundreds.

    Raises:
        VersionError: no ELF file, or no such version in it.
    """
    from elftools.elf.elffile import ELFFile

    found: list[tuple[int, int]] = []
    try:
        elf = ELFFile(BytesIO(data))
        if elf.num_sections() > _MAX_SECTIONS:
            raise VersionError("no usable ELF file")
        for kind in ("SHT_GNU_verdef", "SHT_GNU_verneed"):
            for section in elf.iter_sections(kind):
                found += _versions(section)
    except VersionError:
        raise
    except Exception as error:  # a file of somebody else's making may break the reader anywhere
        raise VersionError(f"no usable ELF file: {type(error).__name__}") from error
    if not found:
        raise VersionError("no GLIBC version in it")
    return max(found)


def _versions(section: Any) -> Iterator[tuple[int, int]]:
    """The GLIBC versions one table names."""
    for _, auxiliaries in islice(section.iter_versions(), _MAX_VERSIONS):
        for auxiliary in islice(auxiliaries, _MAX_VERSIONS):
            if match := _VERSION.fullmatch(auxiliary.name):
                yield int(match[1]), int(match[2])
