"""What the protocol's annotations say, decoded, one line each: for ``-v 5`` (guide-amd.md, dp.logVerbosity).

Only what was parsed is shown, and names quoted and bounded
(decision 25).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from devplugin.hami.codec import CodecError, clip, decode
from devplugin.hami.lock import LockError, lock_of
from devplugin.hami.values import ContainerDevice, Node, Pod, Vocabulary


def readings(node: Node, pods: Sequence[Pod], vocabulary: Vocabulary) -> Iterator[str]:
    """The node's lock, and of each pod what it was given and what is left to allocate."""
    try:
        lock = lock_of(node)
    except LockError as error:
        yield f"node {node.name}: lock: {error}"
    else:
        owner = "nobody" if lock is None else f"{lock.namespace}/{lock.name} since {lock.time}"
        yield f"node {node.name}: locked by {owner}"
    for pod in pods:
        for key in (vocabulary.to_allocate, vocabulary.allocated):
            if key not in pod.annotations:
                continue
            try:
                slots = decode(pod.annotations[key])
            except CodecError as error:
                yield f"pod {pod}: {key}: {error}"
                continue
            for index, slot in enumerate(slots):
                devices = ", ".join(map(_device, slot)) or "nothing"
                yield f"pod {pod}: {key}: slot {index}: {devices}"


def _device(entry: ContainerDevice) -> str:
    return f"{clip(entry.id)} ({clip(entry.type)}) {entry.memory_mib} MiB, {entry.cores} cores"
