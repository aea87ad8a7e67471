"""The HAMi protocol between scheduler and device plugin: codec, pending pod, node lock, bind phase.

Pure functions over `Pod` and `Node`, which hold just what the protocol looks at (ascend_ppu_hami.md D,
decisions 16, 17, 19, 40). How they compose with a vendor into one Allocate is `devplugin.plan`.
"""

from __future__ import annotations

from devplugin.hami.codec import CodecError, decode, encode, erase, filled, slots_left
from devplugin.hami.handshake import reported
from devplugin.hami.lock import (
    Lock,
    LockError,
    PhaseMark,
    Sweep,
    holder,
    lock_of,
    may_release,
    owner_of,
    owns,
    parse_lock,
    sweep,
)
from devplugin.hami.pending import NoClaim, claim, failure_patch, pod_patch, waits
from devplugin.hami.reading import readings
from devplugin.hami.values import (
    ALLOCATING,
    ASSIGNED_NODE,
    BIND_PHASE,
    BIND_TIME,
    FAILED,
    LOCK,
    SUCCESS,
    Claim,
    ContainerDevice,
    Node,
    Pod,
    Vocabulary,
)

__all__ = [
    "ALLOCATING",
    "ASSIGNED_NODE",
    "BIND_PHASE",
    "BIND_TIME",
    "FAILED",
    "LOCK",
    "SUCCESS",
    "Claim",
    "CodecError",
    "ContainerDevice",
    "Lock",
    "LockError",
    "NoClaim",
    "Node",
    "PhaseMark",
    "Pod",
    "Sweep",
    "Vocabulary",
    "claim",
    "decode",
    "encode",
    "erase",
    "failure_patch",
    "filled",
    "holder",
    "lock_of",
    "may_release",
    "owner_of",
    "owns",
    "parse_lock",
    "pod_patch",
    "readings",
    "reported",
    "slots_left",
    "sweep",
    "waits",
]
