"""The kubeconfig file of a simulated API server: written and taken away with it, never anybody else's.

People keep the only copy of real credentials under names like this one, so a file that this module did not
write is neither replaced nor removed. Ours begin with a comment that says so.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from gpusim.errors import GpusimError

MARK = "# gpusim apiserver wrote this file and removes it when it ends."
"""First line of every file of ours."""

_TEXT = """\
{mark}
apiVersion: v1
kind: Config
clusters:
- name: gpusim
  cluster:
    server: {url}
users:
- name: gpusim
  user: {{}}
contexts:
- name: gpusim
  context:
    cluster: gpusim
    user: gpusim
current-context: gpusim
"""


def write(path: Path, url: str) -> Path:
    """Write a kubeconfig under a temporary name, mode 0600, and rename it into place.

    Raises:
        GpusimError: something else stands there, or the directory cannot be written; nothing is left behind.
    """
    _check(path)
    try:
        number, temporary = tempfile.mkstemp(dir=path.parent, prefix=".kubeconfig-")
    except OSError as error:
        raise GpusimError(
            f"kubeconfig {path}: {path.parent}: {error.strerror}; name a file in a directory that is there"
        ) from error
    try:
        with os.fdopen(number, "w") as file:
            file.write(_text(url))
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise GpusimError(f"kubeconfig {path}: cannot be written: {error.strerror}") from error
    return path


def remove(path: Path, url: str) -> None:
    """Remove the file if it still is what `write` made for this server; best effort."""
    with contextlib.suppress(OSError):
        if _content(path) == _text(url):
            path.unlink()


def _check(path: Path) -> None:
    """Only nothing, or an earlier file of ours, may stand at `path`."""
    other = f"kubeconfig {path}: is there and was not written by gpusim: remove it, or choose another name"
    try:
        if path.is_dir():
            raise GpusimError(f"kubeconfig {path}: is a directory: name a file in it")
        found = _content(path)
    except FileNotFoundError:
        if path.is_symlink():
            raise GpusimError(other) from None
        return
    except OSError as error:
        raise GpusimError(f"kubeconfig {path}: {error.strerror}; choose another name") from error
    if not found.startswith(MARK + "\n"):
        raise GpusimError(other)


def _content(path: Path) -> str:
    """What a regular file says; nothing for what is none (opening a pipe could wait for ever)."""
    return path.read_text("utf-8", "replace") if stat.S_ISREG(path.stat().st_mode) else ""


def _text(url: str) -> str:
    return _TEXT.format(mark=MARK, url=url)
