"""Small AMD inventories, claims and pods for the decision tests, in the words of amd.md 14."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from devplugin.amd.inventory import LINK_PCIE, LINK_XGMI, Gpu, Inventory, Partition
from devplugin.amd.settings import MODE_CU, MODE_PARTITION, Settings
from devplugin.amd.taken import VOCABULARY
from devplugin.hami import (
    ALLOCATING,
    ASSIGNED_NODE,
    BIND_PHASE,
    BIND_TIME,
    LOCK,
    Claim,
    Node,
    Pod,
    claim,
    decode,
)

NODE = "node-a"
CU = Settings(node_name=NODE, mode=MODE_CU, hook_path="/usr/local")
PARTITION = Settings(node_name=NODE, mode=MODE_PARTITION, hook_path="/usr/local")
MIB = 1 << 20


def soft_gpu(
    identifier: str,
    *,
    cus: int = 64,
    mib: int = 16304,
    render: int = 128,
    card: int | None = 0,
    rocr: str | None = None,
    node: int | None = None,
    bdf: str | None = None,
    numa: int = 0,
    gfx: int = 90402,
) -> Gpu:
    """A GPU without partition files: always shared as a whole."""
    bdf = bdf or f"0000:{render - 125:02x}:00.0"
    part = Partition(
        number=0,
        key=bdf,
        node=render - 127 if node is None else node,
        render_minor=render,
        card=card,
        cus=cus,
        xccs=None,
        bank_bytes=None,
        rocr_name=rocr,
    )
    return Gpu(
        bdf=bdf,
        id=identifier,
        device_id=0x7550,
        market_name="AMDGPU",
        vram_bytes=mib * MIB,
        compute="",
        memory="",
        changeable=False,
        numa=numa,
        gfx=gfx,
        compute_queues=0,
        total_xccs=None,
        partitions=(part,),
        whole=True,
        ids=(identifier,),
    )


def cut_gpu(
    identifier: str,
    *,
    compute: str,
    ways: int,
    listed: int | None = None,
    cus: int = 32,
    bdf: str = "0000:05:00.0",
    first_node: int = 1,
    first_render: int = 128,
    first_xcp: int = 0,
    numa: int = 0,
    gib: int = 288,
) -> Gpu:
    """A GPU cut into partitions (`cus` each) that share one serial, so ROCr has no name for them."""
    parts = tuple(
        Partition(
            number=p,
            key=bdf if p == 0 else f"amdgpu_xcp_{first_xcp + p - 1}",
            node=first_node + p,
            render_minor=first_render + p,
            card=first_render + p - 127,
            cus=cus,
            xccs=1,
            bank_bytes=None,
            rocr_name=None,
        )
        for p in range(ways if listed is None else listed)
    )
    return Gpu(
        bdf=bdf,
        id=identifier,
        device_id=0x75A3,
        market_name="AMD Instinct MI355X",
        vram_bytes=gib * 1024 * MIB - 16 * MIB,
        compute=compute,
        memory="nps1",
        changeable=True,
        numa=numa,
        gfx=90500,
        compute_queues=24,
        total_xccs=8,
        partitions=parts,
        whole=ways == 1,
        ids=(identifier,) if ways == 1 else tuple(f"{identifier}-p{p.number}" for p in parts),
        ways=ways,
    )


def inventory(*gpus: Gpu, links: Mapping[tuple[int, int], int] | None = None) -> Inventory:
    return Inventory(gpus=gpus, links=links or {})


def all_linked(gpus: Sequence[Gpu]) -> dict[tuple[int, int], int]:
    """XGMI between all nodes, also those of one GPU, as the CPX capture of an MI300X has it."""
    nodes = sorted(part.node for gpu in gpus for part in gpu.partitions)
    return {(a, b): LINK_XGMI for a in nodes for b in nodes if a < b}


def mi300_cpx() -> Inventory:
    """8 GPUs of 8 partitions, nodes 2-64: the last GPU has only 7 (amd.md 14.6)."""
    gpus = tuple(
        cut_gpu(
            f"gpu{i + 1}",
            compute="cpx",
            ways=8,
            listed=8 if i < 7 else 7,
            cus=38,
            bdf=f"0000:{i + 1:02x}:00.0",
            first_node=2 + 8 * i,
            first_render=128 + 8 * i,
            first_xcp=8 * i + 1,
            numa=i // 4,
            gib=192,
        )
        for i in range(8)
    )
    return inventory(*gpus, links=all_linked(gpus))


def mi308_cpx() -> Inventory:
    """4 NUMA-halved GPUs of 8 partitions, nodes 2-33 (amd.md 14.6)."""
    gpus = tuple(
        cut_gpu(
            f"gpu{i + 1}",
            compute="cpx",
            ways=8,
            bdf=f"0000:{i + 1:02x}:00.0",
            first_node=2 + 8 * i,
            first_render=128 + 8 * i,
            first_xcp=8 * i + 1,
            numa=i // 2,
        )
        for i in range(4)
    )
    return inventory(*gpus, links=all_linked(gpus))


def mi210() -> Inventory:
    """8 whole GPUs, nodes 2-9: XGMI and one NUMA node within each four, PCIe across (amd.md 14.6)."""
    gpus = tuple(
        soft_gpu(f"gpu{i + 1}", render=128 + i, node=2 + i, bdf=f"0000:{i + 1:02x}:00.0", numa=i // 4)
        for i in range(8)
    )
    links = {
        (a, b): LINK_XGMI if (a - 2) // 4 == (b - 2) // 4 else LINK_PCIE
        for a in range(2, 10)
        for b in range(a + 1, 10)
    }
    return inventory(*gpus, links=links)


def pod(
    text: str | None = None,
    *,
    name: str = "p",
    namespace: str = "default",
    uid: str | None = None,
    phase: str = "Pending",
    bind_phase: str | None = ALLOCATING,
    bind_time: str | None = "1700000000",
    assigned: str | None = NODE,
    node: str = NODE,
    deleting: bool = False,
    **more: str,
) -> Pod:
    """A pod as the scheduler leaves it after binding; keywords add annotations (``__`` is ``-``)."""
    annotations: dict[str, str] = {}
    if text is not None:
        annotations |= {VOCABULARY.to_allocate: text, VOCABULARY.allocated: text}
    for key, value in ((BIND_PHASE, bind_phase), (BIND_TIME, bind_time), (ASSIGNED_NODE, assigned)):
        if value is not None:
            annotations[key] = value
    annotations |= {f"hami.io/{key.replace('__', '-')}": value for key, value in more.items()}
    return Pod(
        namespace=namespace,
        name=name,
        uid=uid or f"uid-{namespace}-{name}",
        node=node,
        phase=phase,
        annotations=annotations,
        deleting=deleting,
    )


def node(lock: str | None = None, name: str = NODE) -> Node:
    return Node(name=name, uid=f"uid-{name}", annotations={} if lock is None else {LOCK: lock})


def locked_by(owner: Pod) -> Node:
    return node(f"2026-11-30T10:00:00Z,{owner.namespace},{owner.name}")


def claimed(owner: Pod, *others: Pod) -> Claim:
    """The claim of a request as large as the first filled slot of `owner`, which holds the lock."""
    size = next(len(slot) for slot in decode(owner.annotations[VOCABULARY.to_allocate]) if slot)
    return claim(locked_by(owner), (owner, *others), VOCABULARY, [f"any#{i}" for i in range(size)])


def ended(original: Pod, phase: str) -> Pod:
    return replace(original, phase=phase)
