"""The kubelet's memory across restarts: who holds which devices, and which resources were registered.

File name and manner of writing are the original's (a dotted temporary file beside it, synced and renamed,
which plugins that watch the directory notice), the format is our own: the original's checksum is over Go's
dump format and we do not pretend to it (kubelet.md 2, *Checkpoint file*).
"""

from __future__ import annotations

import os
import tempfile
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gpusim.errors import GpusimError

FILE = "kubelet_internal_checkpoint"
_FORMAT = 1


class CheckpointError(GpusimError):
    """The file is there and is none of ours, or damaged."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one container holds of one resource."""

    uid: str
    container: str
    resource: str
    ids: tuple[str, ...]
    response: bytes
    """The serialized ContainerAllocateResponse."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything that survives the kubelet."""

    holdings: tuple[Holding, ...] = ()
    registered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Resource → healthy ids when it was written."""
    running: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Pod uid → containers the runtime runs. The original asks the runtime, which we do not have."""


def write(directory: Path, checkpoint: Checkpoint) -> None:
    """Replace the file atomically and durably."""
    data = {
        "holdings": [
            {
                "uid": h.uid,
                "container": h.container,
                "resource": h.resource,
                "ids": list(h.ids),
                "response": b64encode(h.response).decode(),
            }
            for h in checkpoint.holdings
        ],
        "registered": {k: sorted(v) for k, v in checkpoint.registered.items()},
        "running": {k: sorted(v) for k, v in checkpoint.running.items()},
    }
    body = msgspec.json.encode(data, order="deterministic")
    raw = msgspec.json.encode({"gpusim": _FORMAT, "checksum": zlib.crc32(body), "data": msgspec.Raw(body)})
    with tempfile.NamedTemporaryFile(dir=directory, prefix=f".{FILE}", delete=False) as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(directory / FILE)


def read(directory: Path) -> Checkpoint | None:
    """The checkpoint; None when there is no file (to the original that means: a new node).

    Raises:
        CheckpointError: unreadable, foreign or damaged.
    """
    try:
        raw = (directory / FILE).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{directory / FILE}: {error.strerror}") from error
    try:
        outer = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        body = bytes(outer["data"])
        if msgspec.json.decode(outer["gpusim"]) != _FORMAT:
            raise CheckpointError(f"{directory / FILE}: another format version")
        if msgspec.json.decode(outer["checksum"]) != zlib.crc32(body):
            raise CheckpointError(f"{directory / FILE}: checksum differs, the file is damaged")
        return _checkpoint(msgspec.json.decode(body))
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{directory / FILE}: not a checkpoint of this kubelet: {error}") from error


def _checkpoint(data: dict[str, Any]) -> Checkpoint:
    return Checkpoint(
        tuple(
            Holding(h["uid"], h["container"], h["resource"], tuple(h["ids"]), b64decode(h["response"]))
            for h in data["holdings"]
        ),
        {k: tuple(v) for k, v in data["registered"].items()},
        {k: tuple(v) for k, v in data["running"].items()},
    )
