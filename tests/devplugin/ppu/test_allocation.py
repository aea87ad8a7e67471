"""What a container gets of its PPUs, and what is refused: decisions 17, 50 and 53."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from devplugin.answers import Allocation, DeviceNode, FactRequest, Mount, Refused
from devplugin.deeds import MakeDir, MoveAside
from devplugin.hami import Claim, ContainerDevice
from devplugin.ppu import words
from devplugin.ppu.allocation import allocate, needs
from devplugin.ppu.inventory import Inventory, Library, Ppu
from gpusim.ppu import environment
from gpusim.ppu.inside import inside

from .nodes import claim, device, install, look, node, pod

HERE = look(node())
SHIFTED = look(node("zw810e-minor-shift"))
A, B, C = (ppu.uuid for ppu in HERE.ppus[:3])


def served(wanted: Claim, inventory: Inventory = HERE, **missing: Any) -> Allocation:
    facts = dict.fromkeys(needs(inventory, wanted), True)
    return allocate(inventory, wanted, {**facts, **{FactRequest("file", path): False for path in missing}})


def refused(wanted: Claim, inventory: Inventory = HERE) -> Refused:
    with pytest.raises(Refused) as caught:
        served(wanted, inventory)
    return caught.value


def test_a_slice_gets_decision_53s_environment_nodes_and_mounts() -> None:
    given = served(claim([[device(A, 8192, 30)]]))
    assert given.edits.envs == {
        "HGGC_DEVICE_MEMORY_LIMIT_0": "8192",
        "HGGC_DEVICE_SM_LIMIT": "30",
        "HGGC_LEDGER_PATH": "/ppu-hami-shmem/ledger",
    }
    assert given.edits.devices == tuple(
        DeviceNode(path, "rwm")
        for path in ("/dev/alixpu", "/dev/alixpu_ctl", "/dev/alixpu_sep", "/dev/alixpu_ppu0")
    )
    directory = "/usr/local/ppu-hami-core/containers/0000-uid_c0"
    assert given.edits.mounts == (
        Mount("/ppu-hami-core", "/usr/local/ppu-hami-core"),
        Mount("/etc/ld.so.preload", "/usr/local/ppu-hami-core/ld.so.preload"),
        Mount("/ppu-hami-shmem", directory, read_only=False),
    )
    assert given.before == (MoveAside(directory), MakeDir(directory, 0o777))
    assert (given.annotations, given.after, given.edits.cdi, given.edits.annotations) == ({}, (), (), {})
    assert given.notes == (f"pod ns/p, slot 0: {A} (minor 0) 8192 MiB, cores 30",)


def test_a_whole_card_is_limited_to_what_it_registers() -> None:
    envs = served(claim([[device(A, 98304, 100)]])).edits.envs
    assert envs["HGGC_DEVICE_MEMORY_LIMIT_0"] == "98304"
    assert envs["HGGC_DEVICE_SM_LIMIT"] == "100"


@pytest.mark.parametrize(("cores", "limit"), [(0, "0"), (1, "1"), (100, "100"), (150, "100")])
def test_the_sm_limit_is_always_set_and_a_percentage(cores: int, limit: str) -> None:
    assert served(claim([[device(A, 1, cores)]])).edits.envs["HGGC_DEVICE_SM_LIMIT"] == limit


def test_indices_are_the_containers_own_in_the_order_of_its_device_nodes() -> None:
    # ppu-smi counts 2, 3, 0, 1 by minor: index 0 is minor 2
    first, second, third, _ = (ppu.uuid for ppu in SHIFTED.ppus)
    slot = [device(third, 300), device(first, 100), device(second, 200)]
    edits = served(claim([slot]), SHIFTED).edits
    assert [edits.envs[f"HGGC_DEVICE_MEMORY_LIMIT_{i}"] for i in range(3)] == ["100", "200", "300"]
    assert [node.path for node in edits.devices[3:]] == [f"/dev/alixpu_ppu{minor}" for minor in (2, 3, 0)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_limits_hold_for_the_cards_that_the_containers_ppu_smi_counts(order: tuple[int, ...]) -> None:
    machine = node("zw810e-minor-shift")
    asked = {SHIFTED.ppus[i].uuid: 1000 * (i + 1) for i in order}
    edits = served(claim([[device(uuid, mib) for uuid, mib in asked.items()]]), SHIFTED).edits
    seen = inside(machine.ppus, [one.path for one in edits.devices]).devices
    quotas = environment.quotas(edits.envs, len(seen))
    assert {ppu.uuid: quota // environment.MIB for ppu, quota in zip(seen, quotas, strict=True)} == asked


@each(st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True), st.data())
def test_whatever_is_asked_for_each_card_gets_its_own_limit(order: list[int], data: st.DataObject) -> None:
    asked = {HERE.ppus[i].uuid: data.draw(st.integers(1, 98304)) for i in order}
    cores = data.draw(st.integers(0, 100))
    edits = served(claim([[device(uuid, mib, cores) for uuid, mib in asked.items()]])).edits
    minors = [int(one.path.removeprefix("/dev/alixpu_ppu")) for one in edits.devices[3:]]
    quotas = environment.quotas(edits.envs, len(minors))
    by_minor = {ppu.minor: ppu.uuid for ppu in HERE.ppus}
    assert {by_minor[m]: q // environment.MIB for m, q in zip(minors, quotas, strict=True)} == asked
    assert environment.sm_limits(edits.envs, len(minors)) == (cores,) * len(minors)


def test_each_container_of_a_pod_has_a_directory_of_its_own_init_containers_first() -> None:
    slots = [[device(A, 1)], [], [device(B, 2)]]
    fields = {"init_containers": ("setup",), "containers": ("side", "main")}
    names = [served(claim(slots, slot, **fields)).edits.mounts[2].host_path for slot in (0, 2)]
    assert [name.rpartition("/")[2] for name in names] == ["0000-uid_setup", "0000-uid_main"]


def test_a_pod_nobody_waits_for_is_refused_and_kubelets_ids_are_not_believed() -> None:
    no = refused(Claim((f"{A}-0",), None, None, (), ("pod ns/q: 2 devices",)))
    assert no.why == "pod"
    assert "pod ns/q: 2 devices" in str(no)


@pytest.mark.parametrize(
    ("slot", "why", "text"),
    [
        ([device("GPU-none", 1)], "device", "unknown uuid: GPU-none in hami.io/ppu-devices-to-allocate"),
        ([device(A, 1), device(A, 1)], "device", "is named twice for one container"),
        ([device(A, 0, 10)], "limit", f"0 MiB of {A} in hami.io/ppu-devices-to-allocate would be no limit"),
        ([device(A, -5)], "limit", "-5 MiB"),
        ([device(A, 1, 10), device(B, 1, 20)], "record", "unequal or impossible cores"),
        ([device(A, 1, -1)], "record", "unequal or impossible cores"),
    ],
)
def test_what_cannot_be_given_is_refused_with_reason_and_remedy(
    slot: list[ContainerDevice], why: str, text: str
) -> None:
    no = refused(replace(claim([[device(A, 1)]]), devices=tuple(slot)))
    assert no.why == why
    assert text in str(no)
    assert str(no).startswith("pod ns/p: ")


@pytest.mark.parametrize(
    "fields",
    [
        {"containers": ("",)},
        {"containers": ()},
        {"uid": ""},
        {"uid": "../../etc"},
        {"containers": ("../up",)},
        {"containers": ("a/b",)},
    ],
)
def test_an_empty_or_impossible_name_never_becomes_a_path(fields: dict[str, Any]) -> None:
    assert refused(claim([[device(A, 1)]], **fields)).why == "record"


def test_a_slot_beyond_the_pods_containers_is_refused() -> None:
    wanted = replace(claim([[device(A, 1)]]), slot=3)
    assert refused(wanted).why == "record"


def test_without_the_library_on_the_host_every_slice_is_refused_and_the_remedy_named() -> None:
    bare = look(node(hook=False))
    no = refused(claim([[device(A, 1)]]), bare)
    assert no.why == "limit"
    assert (
        "/usr/local/ppu-hami-core/ld.so.preload: ENOENT: nothing would limit the container's memory"
        in str(no)
    )
    assert "put PPU-HAMi-core into /usr/local/ppu-hami-core of the node" in str(no)


@pytest.mark.parametrize(
    ("preload", "text"),
    [
        (b"", "names no library below /ppu-hami-core"),
        (b"# /ppu-hami-core/libppu-hami-core.so\n", "names no library below /ppu-hami-core"),
        (b"/usr/lib/other.so\n", "names no library below /ppu-hami-core"),
        (b"/ppu-hami-core/../../etc/passwd\n", "names no library below /ppu-hami-core"),
        (b"/ppu-hami-core/gone.so\n", "/usr/local/ppu-hami-core/gone.so: ENOENT"),
        (
            b"/ppu-hami-core/libppu-hami-core.so:/ppu-hami-core/gone.so",
            "/usr/local/ppu-hami-core/gone.so: ENOENT",
        ),
    ],
)
def test_a_preload_list_that_would_load_nothing_is_refused(preload: bytes, text: str) -> None:
    machine = node()
    install(machine, preload=preload)
    no = refused(claim([[device(A, 1)]]), look(machine))
    assert (no.why, text in str(no)) == ("limit", True)


def test_a_library_that_went_since_the_last_look_is_noticed() -> None:
    wanted = claim([[device(A, 1)]])
    asked = needs(HERE, wanted)
    assert [fact.subject for fact in asked] == [
        "/usr/local/ppu-hami-core/ld.so.preload",
        "/usr/local/ppu-hami-core/libppu-hami-core.so",
    ]
    for gone in asked:
        with pytest.raises(Refused, match="not on this node: nothing would limit"):
            allocate(HERE, wanted, {fact: fact != gone for fact in asked})


@each(
    st.text(max_size=20) | st.just("GPU-1"),
    st.text(max_size=20),
    st.integers(-(1 << 31), 1 << 31),
    st.integers(-(1 << 31), 1 << 31),
)
def test_nothing_of_an_annotation_reaches_edits_but_numbers(
    uuid: str, kind: str, memory: int, cores: int
) -> None:
    here = Inventory((Ppu("GPU-1", 0, 5, "PPU", "", 100),), tool="x", library=Library(("/f",)))
    slot = (ContainerDevice(uuid, kind, memory, cores), ContainerDevice("GPU-1", kind, memory, cores))
    for devices in (slot[:1], slot[1:], slot):
        wanted = Claim(("x",) * len(devices), pod([[]]), 0, devices)
        if [one.id for one in devices] != ["GPU-1"] or memory <= 0 or cores < 0:
            refused(wanted, here)
            continue
        assert served(wanted, here).edits.envs == {
            "HGGC_DEVICE_MEMORY_LIMIT_0": str(memory),
            "HGGC_DEVICE_SM_LIMIT": str(min(cores, 100)),
            "HGGC_LEDGER_PATH": "/ppu-hami-shmem/ledger",
        }


def test_the_table_of_names_is_decision_52s_and_53s() -> None:
    assert words.VOCABULARY.register == "hami.io/node-register-ppu"
    assert words.VOCABULARY.handshake == "hami.io/node-handshake-ppu"
    assert words.VOCABULARY.to_allocate == "hami.io/ppu-devices-to-allocate"
    assert words.VOCABULARY.allocated == "hami.io/ppu-devices-allocated"
    assert environment.PATH == words.LEDGER_PATH
    assert f"{environment.MEMORY}_" == words.MEMORY_LIMIT
    assert environment.SM == words.SM_LIMIT
