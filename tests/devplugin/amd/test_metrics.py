"""What the monitor's values say: amd.md 11 and 14.9, decisions 10 and 35, B31, B50, B51."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from devplugin.amd import metrics
from devplugin.amd.discovery import discover
from devplugin.amd.metrics import samples
from devplugin.amd.registration import annotation
from devplugin.amd.settings import Settings
from devplugin.amd.taken import VOCABULARY
from devplugin.hami import Pod
from devplugin.metered import Measured, Watched
from gpusim.cluster.podcgroups import Layout, create, systemd_inside
from gpusim.fixture import load
from gpusim.machine import Machine
from gpusim.testing.machines import node

from ..dict_host import DictHost, Link, Tree, Value

NODE = "node-a"
CARD = "AMD Radeon RX 9070 XT"
GPU_06 = "33ff7590-0000-1000-8021-340866ba8c47"
GPU_0E = "44ff7590-0000-1000-8021-340866ba8c47"
UID = "a3e5b9dc-1111-4222-8333-444455556666"
ID = "c0ffee" * 10 + "abcd"
BURSTABLE = "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice"
SLICE = f"{BURSTABLE}/kubepods-burstable-pod{UID.replace('-', '_')}.slice"
GIB = 1 << 30
MIB = 1 << 20

Labels = Mapping[str, str]


def gpu(number: int, bdf: str, *, driver: str = "amdgpu", hwmon: Mapping[str, Value] | None = None) -> Tree:
    """One card as sysfs has it, seen through its `device` link."""
    home = f"/sys/devices/pci0000:00/0000:00:01.1/{bdf}"
    chip = {"temp1_input": "42000\n", "power1_average": "11000000\n"} if hwmon is None else hwmon
    return {
        f"/sys/class/drm/card{number}/device": Link(f"../../../devices/pci0000:00/0000:00:01.1/{bdf}"),
        f"{home}/uevent": f"DRIVER={driver}\nPCI_CLASS=30000\nPCI_SLOT_NAME={bdf}\n",
        f"{home}/mem_info_vram_used": "1251446784\n",
        f"{home}/mem_info_vram_total": "17095983104\n",
        f"{home}/gpu_busy_percent": "37\n",
        **{f"{home}/hwmon/hwmon4/{name}": text for name, text in chip.items()},
    }


def home(bdf: str) -> str:
    return f"/sys/devices/pci0000:00/0000:00:01.1/{bdf}"


def scope(
    current: str, maximum: str = "", *, name: str = f"cri-containerd-{ID}.scope", pod_maximum: str = ""
) -> Tree:
    return {
        f"{SLICE}/dmem.max": pod_maximum,
        f"{SLICE}/{name}/dmem.current": current,
        f"{SLICE}/{name}/dmem.max": maximum,
    }


def registered(*devices: Mapping[str, Any]) -> str:
    return json.dumps(list(devices))


def device(
    identifier: str = GPU_06, bdf: str = "0000:06:00.0", index: int = 1, **more: Any
) -> dict[str, Any]:
    entry = {
        "id": identifier,
        "index": index,
        "count": 2,
        "type": CARD,
        "custominfo": {"pciBDF": bdf},
        **more,
    }
    return {key: value for key, value in entry.items() if value}


def pod(
    asks: Mapping[str, str] | None = None,
    *,
    given: str | None = f"{GPU_06},{CARD},4096,0:;",
    container: str = "main",
    identifier: str = ID,
    **more: Any,
) -> Pod:
    fields: dict[str, Any] = {
        "namespace": "team",
        "name": "train",
        "uid": UID,
        "node": NODE,
        "phase": "Running",
        "annotations": {} if given is None else {VOCABULARY.allocated: given},
        "containers": (container,),
        "limits": {container: {"amd.com/gpu": "1"} if asks is None else asks},
        "container_ids": {identifier: container},
    }
    return Pod(**fields | more)


def watched(*pods: Pod, registration: str | None = registered(device()), **more: Any) -> Watched:
    return Watched(NODE, registration, pods, **more)


def look(tree: Tree, seen: Watched) -> Measured:
    return samples(DictHost(tree), seen)


def of(measured: Measured, name: str) -> list[tuple[Labels, float]]:
    return [
        (dict(zip(s.series.labels, s.labels, strict=True)), s.value)
        for s in measured.samples
        if s.series.name == name
    ]


def one(measured: Measured, name: str) -> float:
    ((_, value),) = of(measured, name)
    return value


def success(measured: Measured) -> float:
    value = one(measured, "hami_vgpumonitor_collect_success")
    assert (value == 1) is (not measured.problems)
    return value


# The text case


TEXT_TREE = {**gpu(1, "0000:06:00.0"), **gpu(0, "0000:0e:00.0"), **scope(f"drm/0000:06:00.0/vram {GIB}\n")}


def test_the_text_case_of_one_sliced_container() -> None:
    measured = look(TEXT_TREE, watched(pod({"amd.com/gpu": "1", "amd.com/gpumem": "4096"})))
    values = {s.series.name: s.value for s in measured.samples}
    assert values == {
        "hami_host_gpu_memory_used_bytes": 1.251446784e9,
        "hami_host_gpu_memory_total_bytes": 17095983104,
        "hami_host_gpu_utilization_ratio": 37,
        "hami_host_gpu_temperature_celsius": 42,
        "hami_host_gpu_power_usage_watts": 11,
        "hami_vgpu_memory_used_bytes": 1073741824,
        "hami_vgpu_memory_limit_bytes": 4294967296,
        "hami_vgpumonitor_collect_success": 1,
    }
    for name in [name for name in values if name.startswith("hami_host_")]:
        labels = {"node": NODE, "device_index": "1", "device_uuid": GPU_06, "device_type": CARD}
        assert [labels] == [found for found, _ in of(measured, name)]
    container = {"namespace": "team", "pod": "train", "container": "main", "vdevice_index": "0"}
    for name in ("hami_vgpu_memory_used_bytes", "hami_vgpu_memory_limit_bytes"):
        assert [{**container, "device_uuid": GPU_06}] == [found for found, _ in of(measured, name)]
    assert len({(s.series.name, s.labels) for s in measured.samples}) == len(measured.samples)


def test_names_and_labels_are_those_of_the_field() -> None:
    host = ("node", "device_index", "device_uuid", "device_type")
    container = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
    assert {series.name: series.labels for series in metrics.SERIES} == {
        "hami_host_gpu_memory_used_bytes": host,
        "hami_host_gpu_memory_total_bytes": host,
        "hami_host_gpu_utilization_ratio": host,
        "hami_host_gpu_temperature_celsius": host,
        "hami_host_gpu_power_usage_watts": host,
        "hami_vgpu_memory_used_bytes": container,
        "hami_vgpu_memory_limit_bytes": container,
        "hami_vgpumonitor_collect_success": ("node",),
    }


def test_an_unregistered_igpu_is_passed_over_in_silence() -> None:
    measured = look(TEXT_TREE, watched())
    assert [labels["device_uuid"] for labels, _ in of(measured, "hami_host_gpu_memory_used_bytes")] == [
        GPU_06
    ]
    assert success(measured) == 1


def test_without_hwmon_there_is_no_temperature_and_no_power_and_all_is_well() -> None:
    measured = look(gpu(1, "0000:06:00.0", hwmon={}), watched())
    assert of(measured, "hami_host_gpu_temperature_celsius") == []
    assert of(measured, "hami_host_gpu_power_usage_watts") == []
    assert success(measured) == 1


# Failures


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "{}", "7", '["x"]', '[{"id":"a"}]', "[" * 100_000],
    ids=lambda text: str(text)[:12],
)
def test_a_missing_or_bad_annotation_leaves_only_the_failure(text: str | None) -> None:
    measured = look(TEXT_TREE, watched(pod(), registration=text))
    assert success(measured) == 0
    assert len(measured.samples) == 1


def test_a_node_that_cannot_be_read_is_a_failure() -> None:
    measured = look(TEXT_TREE, watched(registration=None, problems=("node node-a: unreachable",)))
    assert success(measured) == 0
    assert len(measured.samples) == 1
    assert measured.problems[0] == "node node-a: unreachable"


def test_pods_that_cannot_be_listed_are_a_failure_and_gpus_are_still_told() -> None:
    measured = look(TEXT_TREE, watched(problems=("pods: unreachable",)))
    assert success(measured) == 0
    assert one(measured, "hami_host_gpu_memory_used_bytes") == 1.251446784e9


@pytest.mark.parametrize("name", ["mem_info_vram_used", "mem_info_vram_total", "gpu_busy_percent"])
@pytest.mark.parametrize("broken", [errno.EPERM, "no number\n", None], ids=["in reset", "garbled", "missing"])
def test_a_mandatory_file_that_cannot_be_read_is_a_failure_and_the_rest_is_told(
    name: str, broken: Value | None
) -> None:
    tree = dict(TEXT_TREE)
    path = f"{home('0000:06:00.0')}/{name}"
    if broken is None:
        del tree[path]
    else:
        tree[path] = broken
    measured = look(tree, watched(pod()))
    assert success(measured) == 0
    assert len(measured.samples) == len(look(TEXT_TREE, watched(pod())).samples) - 1
    assert name in measured.problems[0]


def test_a_gpu_unplugged_during_the_scrape_is_gone_and_no_failure() -> None:
    class Unplugging(DictHost):
        def read(self, path: str) -> bytes:
            if path.endswith("mem_info_vram_total"):
                self.tree = {p: v for p, v in self.tree.items() if "0000:06:00.0" not in p}
            return super().read(path)

    measured = samples(Unplugging(gpu(1, "0000:06:00.0")), watched())
    assert [s.series.name for s in measured.samples] == ["hami_vgpumonitor_collect_success"]
    assert success(measured) == 1


def test_memory_on_an_unregistered_card_is_a_failure() -> None:
    tree = {**TEXT_TREE, **scope(f"drm/0000:06:00.0/vram {GIB}\ndrm/0000:0e:00.0/vram 5\n")}
    measured = look(tree, watched(pod()))
    assert success(measured) == 0
    assert "team/train" in measured.problems[0]
    assert "0000:0e:00.0" in measured.problems[0]
    assert [value for _, value in of(measured, "hami_vgpu_memory_used_bytes")] == [GIB]


def test_a_region_without_use_on_an_unregistered_card_is_nothing() -> None:
    """dmem lists every region in every cgroup (kernel.md 4.2), an excluded GPU's too."""
    tree = {**TEXT_TREE, **scope(f"drm/0000:06:00.0/vram {GIB}\ndrm/0000:0e:00.0/vram 0\n")}
    measured = look(tree, watched(pod()))
    assert success(measured) == 1
    assert len(of(measured, "hami_vgpu_memory_used_bytes")) == 1


# Containers


def test_regions_are_numbered_in_the_order_of_their_names() -> None:
    text = registered(device(), device(GPU_0E, "0000:0e:00.0", 2))
    tree = scope("drm/0000:0e:00.0/vram 100\ndrm/0000:06:00.0/vram 200\n")
    given = f"{GPU_0E},{CARD},0,0:{GPU_06},{CARD},0,0:;"
    measured = look({"/sys/class/drm/version": "", **tree}, watched(pod(given=given), registration=text))
    assert [
        (labels["vdevice_index"], labels["device_uuid"], value)
        for labels, value in of(measured, "hami_vgpu_memory_used_bytes")
    ] == [("0", GPU_06, 200), ("1", GPU_0E, 100)]


def test_regions_of_other_forms_are_ignored_without_failing() -> None:
    text = "noslash 5\ndrm/onlytwo 6\nother/0000:06:00.0/vram 7\n\ndrm/0000:06:00.0/vram 8 9\n"
    measured = look({**TEXT_TREE, **scope(text)}, watched(pod()))
    assert of(measured, "hami_vgpu_memory_used_bytes") == []
    assert success(measured) == 1


@pytest.mark.parametrize("prefix", ["cri-containerd-", "crio-", "docker-", "cri-dockerd-"])
def test_every_runtimes_scope_is_found(prefix: str) -> None:
    tree = {**gpu(1, "0000:06:00.0"), **scope("drm/0000:06:00.0/vram 7\n", name=f"{prefix}{ID}.scope")}
    assert one(look(tree, watched(pod())), "hami_vgpu_memory_used_bytes") == 7


def test_guaranteed_pods_lie_in_the_upper_slice() -> None:
    slice_ = f"/sys/fs/cgroup/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
    tree = {
        **gpu(1, "0000:06:00.0"),
        f"{slice_}/crio-def456.scope/dmem.current": "drm/0000:06:00.0/vram 1024\n",
        f"{slice_}/crio-def456.scope/dmem.max": "drm/0000:06:00.0/vram max\n",
    }
    measured = look(tree, watched(pod(identifier="def456")))
    assert one(measured, "hami_vgpu_memory_used_bytes") == 1024
    assert of(measured, "hami_vgpu_memory_limit_bytes") == []  # never the word max, nor 0


def test_other_scopes_are_skipped() -> None:
    """Unknown runtimes, conmon, the sandbox, what lies outside pods or below a container's scope."""
    line = "drm/0000:06:00.0/vram 99\n"
    places = [
        f"{SLICE}/podman-{ID}.scope",
        f"{SLICE}/crio-conmon-{ID}.scope",
        f"{SLICE}/cri-containerd-{'ab' * 32}.scope",
        f"{SLICE}/{ID}",
        f"{SLICE}/other.slice/cri-containerd-{ID}.scope",
        f"/sys/fs/cgroup/system.slice/cri-containerd-{ID}.scope",
        f"/sys/fs/cgroup/kubepods.slice/cri-containerd-{ID}.scope",
        f"{SLICE}/cri-containerd-{ID}.scope/init.scope",
    ]
    tree = {**gpu(1, "0000:06:00.0"), **{f"{place}/dmem.current": line for place in places}}
    measured = look(tree, watched(pod()))
    assert of(measured, "hami_vgpu_memory_used_bytes") == []
    assert success(measured) == 1


@pytest.mark.parametrize("files", [{}, {f"{SLICE}/cri-containerd-{ID}.scope/cgroup.procs": ""}])
def test_no_kubepods_slice_or_no_dmem_is_no_error(files: Tree) -> None:
    measured = look({**gpu(1, "0000:06:00.0"), **files}, watched(pod()))
    assert of(measured, "hami_vgpu_memory_used_bytes") == []
    assert success(measured) == 1


def test_a_container_without_an_amd_limit_owns_nothing() -> None:
    measured = look(TEXT_TREE, watched(pod({"cpu": "4", "nvidia.com/gpu": "1"})))
    assert of(measured, "hami_vgpu_memory_used_bytes") == []


def test_a_cgroup_root_elsewhere_and_kubelets_own_cgroup_root_are_found() -> None:
    inside = f"/run/cg/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID.replace('-', '_')}.slice"
    tree = {**gpu(1, "0000:06:00.0"), f"{inside}/docker-{ID}.scope/dmem.current": "drm/0000:06:00.0/vram 3\n"}
    measured = look(tree, watched(pod(), cgroup_root="/run/cg/kubelet.slice"))
    assert one(measured, "hami_vgpu_memory_used_bytes") == 3


def test_a_static_pod_is_found_by_its_config_hash() -> None:
    config = "0123456789abcdef0123456789abcdef"
    static = f"/sys/fs/cgroup/kubepods.slice/kubepods-pod{config}.slice"
    tree = {**gpu(1, "0000:06:00.0"), f"{static}/docker-{ID}.scope/dmem.current": "drm/0000:06:00.0/vram 3\n"}
    mirror = pod(annotations={"kubernetes.io/config.hash": config})
    assert one(look(tree, watched(mirror)), "hami_vgpu_memory_used_bytes") == 3


# Limits


@pytest.mark.parametrize(
    ("own", "above", "asked", "limit"),
    [
        ("max", "max", None, None),
        ("max", "max", "4096", 4096 * MIB),
        ("max", str(2 * GIB), "4096", 2 * GIB),
        (str(GIB), str(2 * GIB), "4096", GIB),
        (str(8 * GIB), str(6 * GIB), "196k", 6 * GIB),
        ("max", "max", "196k", 196_000 * MIB),
        ("0", "max", "1Ki", GIB),
        ("0", "0", None, None),
        (None, None, None, None),
        ("max", "max", "many", None),
    ],
)
def test_the_limit_is_the_smallest_of_container_pod_and_request(
    own: str | None, above: str | None, asked: str | None, limit: int | None
) -> None:
    def line(value: str | None) -> str:
        return "" if value is None else f"drm/0000:06:00.0/vram {value}\n"

    tree = {**TEXT_TREE, **scope("drm/0000:06:00.0/vram 7\n", line(own), pod_maximum=line(above))}
    limits = {"amd.com/gpu": "1"} | ({} if asked is None else {"amd.com/gpumem": asked})
    measured = look(tree, watched(pod(limits)))
    assert [value for _, value in of(measured, "hami_vgpu_memory_limit_bytes")] == (
        [] if limit is None else [limit]
    )
    assert success(measured) == 1


def test_b50_an_untouched_slice_shows_zero_and_its_limit_and_a_whole_card_shows_no_limit() -> None:
    text = registered(device(index=0, bdf="0000:03:00.0"))
    untouched = scope("drm/0000:03:00.0/vram 0\n", "drm/0000:03:00.0/vram 17179869184\n")
    measured = look({**gpu(0, "0000:03:00.0"), **untouched}, watched(pod(), registration=text))
    assert one(measured, "hami_vgpu_memory_used_bytes") == 0
    assert one(measured, "hami_vgpu_memory_limit_bytes") == 17179869184
    whole = scope(f"drm/0000:03:00.0/vram {GIB}\n", "drm/0000:03:00.0/vram max\n")
    measured = look({**gpu(0, "0000:03:00.0"), **whole}, watched(pod(), registration=text))
    assert one(measured, "hami_vgpu_memory_used_bytes") == GIB
    assert of(measured, "hami_vgpu_memory_limit_bytes") == []


def test_a_pods_limit_shows_an_untouched_gpu_only_to_the_container_that_holds_it() -> None:
    text = registered(device(), device(GPU_0E, "0000:0e:00.0", 2))
    other = "beef" * 16
    regions = "drm/0000:06:00.0/vram 0\ndrm/0000:0e:00.0/vram 0\n"
    limits = f"drm/0000:06:00.0/vram {GIB}\ndrm/0000:0e:00.0/vram {2 * GIB}\n"
    tree = {
        "/sys/class/drm/version": "",
        **scope(regions, pod_maximum=limits),
        **scope(regions, name=f"cri-containerd-{other}.scope", pod_maximum=limits),
    }
    two = pod(
        given=f"{GPU_06},{CARD},1024,0:;{GPU_0E},{CARD},2048,0:;",
        containers=("a", "b"),
        limits={"a": {"amd.com/gpu": "1"}, "b": {"amd.com/gpu": "1"}},
        container_ids={ID: "a", other: "b"},
    )
    shown = of(look(tree, watched(two, registration=text)), "hami_vgpu_memory_limit_bytes")
    assert {(labels["container"], labels["device_uuid"], value) for labels, value in shown} == {
        ("a", GPU_06, GIB),
        ("b", GPU_0E, 2 * GIB),
    }
    unknown = pod(given=None, containers=("a",), limits={"a": {"amd.com/gpu": "1"}}, container_ids={ID: "a"})
    shown = of(look(tree, watched(unknown, registration=text)), "hami_vgpu_memory_limit_bytes")
    assert [labels["device_uuid"] for labels, _ in shown] == [GPU_06, GPU_0E]


# Whose device


def partitions(*numbers: int) -> list[dict[str, Any]]:
    return [device(f"33{n:02x}75a3-0000-1000-8021-340866ba8c47", index=n + 1, mode="cpx") for n in numbers]


WHOLE = "33ff75a3-0000-1000-8021-340866ba8c47"


def test_partitions_of_one_gpu_are_one_gpu_under_the_id_of_the_whole() -> None:
    measured = look(gpu(1, "0000:06:00.0"), watched(registration=registered(*partitions(0, 1, 2, 3))))
    ((labels, _),) = of(measured, "hami_host_gpu_memory_used_bytes")
    assert (labels["device_uuid"], labels["device_index"]) == (WHOLE, "1")


def test_b31_a_container_line_names_the_partition_its_pod_holds() -> None:
    """What counts is the scheduler's annotation, not kubelet's ids."""
    second = partitions(2)[0]["id"]
    measured = look(
        TEXT_TREE,
        watched(
            pod({"amd.com/gpu": "1", "amd.com/gpumem": "36864"}, given=f"{second},{CARD},36864,0:;"),
            registration=registered(*partitions(0, 1, 2, 3)),
        ),
    )
    ((labels, limit),) = of(measured, "hami_vgpu_memory_limit_bytes")
    assert (labels["device_uuid"], limit) == (second, 36864 * MIB)


def test_two_partitions_of_one_gpu_are_one_line_with_both_requests() -> None:
    first, second = (entry["id"] for entry in partitions(1, 2))
    given = f"{first}#cpx,{CARD},36864,0:{second},{CARD},36864,0:;"
    measured = look(
        TEXT_TREE,
        watched(
            pod({"amd.com/gpu": "2", "amd.com/gpumem": "36864"}, given=given),
            registration=registered(*partitions(0, 1, 2, 3)),
        ),
    )
    ((labels, limit),) = of(measured, "hami_vgpu_memory_limit_bytes")
    assert (labels["device_uuid"], limit) == (first, 2 * 36864 * MIB)


@pytest.mark.parametrize("given", [None, "", "garbage", f"unknown,{CARD},1,0:;"])
def test_memory_without_a_readable_record_is_the_whole_gpus(given: str | None) -> None:
    measured = look(TEXT_TREE, watched(pod(given=given), registration=registered(*partitions(0, 1))))
    ((labels, used),) = of(measured, "hami_vgpu_memory_used_bytes")
    assert (labels["device_uuid"], used) == (WHOLE, GIB)
    assert success(measured) == 1


def test_a_pod_from_before_a_mode_switch_keeps_its_line() -> None:
    measured = look(
        TEXT_TREE, watched(pod(given=f"{WHOLE},{CARD},1,0:;"), registration=registered(*partitions(0, 1)))
    )
    ((labels, _),) = of(measured, "hami_vgpu_memory_used_bytes")
    assert labels["device_uuid"] == WHOLE


@pytest.mark.parametrize("slots", [";{first};{second};", "{first};{second};"], ids=["padded", "short"])
def test_b51_sidecars_and_containers_after_plain_init_containers_have_their_own_lines(slots: str) -> None:
    """The pod-resources API is not needed: the pod's record names each container's devices."""
    first, second = (entry["id"] for entry in partitions(1, 2))
    other = "beef" * 16
    both: Sequence[str] = ("sidecar", "main")
    tree = {**TEXT_TREE, **scope("drm/0000:06:00.0/vram 5\n", name=f"cri-containerd-{other}.scope")}
    asks = {"amd.com/gpu": "1"}
    plain = ("setup",) if slots.startswith(";") else ()
    measured = look(
        tree,
        watched(
            pod(
                given=slots.format(first=f"{first},{CARD},1,0:", second=f"{second},{CARD},1,0:"),
                init_containers=(*plain, "sidecar"),
                containers=("main",),
                limits=dict.fromkeys(both, asks),
                container_ids={other: "sidecar", ID: "main"},
            ),
            registration=registered(*partitions(0, 1, 2, 3)),
        ),
    )
    found = {
        (labels["container"], labels["device_uuid"], value)
        for labels, value in of(measured, "hami_vgpu_memory_used_bytes")
    }
    assert found == {("sidecar", first, 5), ("main", second, GIB)}


def test_two_gpus_that_claim_one_id_or_one_address_are_no_registration() -> None:
    for text in (
        registered(device(), device(bdf="0000:0e:00.0")),
        registered(device(), device(GPU_0E)),
        registered(device(id="a\nb")),
        registered(device(id="\ud800")),
        registered(device(index=-1)),
    ):
        assert success(look(TEXT_TREE, watched(registration=text))) == 0


# Sensors


@pytest.mark.parametrize(
    ("chip", "celsius", "watts"),
    [
        ({"temp1_input": "42000", "temp2_label": "junction", "temp2_input": "50000"}, 42, None),
        ({"temp2_label": "junction\n", "temp2_input": "50000", "temp3_label": "mem"}, 50, None),
        ({"temp2_label": "mem\n", "temp2_input": "50000"}, None, None),
        ({"temp1_input": errno.EPERM, "temp2_label": "junction\n", "temp2_input": "50500"}, 50.5, None),
        ({"power1_average": "11000000", "power1_input": "12000000"}, None, 11),
        ({"power1_input": "12500000"}, None, 12.5),
        ({"temp1_input": errno.EPERM, "power1_average": errno.EPERM}, None, None),
    ],
)
def test_temperature_and_power_come_from_the_first_sensor_there_is(
    chip: Mapping[str, Value], celsius: float | None, watts: float | None
) -> None:
    measured = look(gpu(1, "0000:06:00.0", hwmon=chip), watched())
    temperature = [value for _, value in of(measured, "hami_host_gpu_temperature_celsius")]
    power = [value for _, value in of(measured, "hami_host_gpu_power_usage_watts")]
    assert temperature == ([] if celsius is None else [celsius])
    assert power == ([] if watts is None else [watts])
    assert success(measured) == 1


def test_cards_of_other_drivers_and_of_partitions_have_no_series() -> None:
    tree = {
        **gpu(1, "0000:06:00.0", driver="vfio-pci"),
        "/sys/class/drm/card2/device/uevent": "MODALIAS=platform:amdgpu_xcp_0\n",
        "/sys/class/drm/card0-VGA-1/device/uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:06:00.0\n",
        "/sys/class/drm/renderD128/device/uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:06:00.0\n",
    }
    measured = look(tree, watched())
    assert of(measured, "hami_host_gpu_memory_used_bytes") == []
    assert success(measured) == 1


# A simulated node


def seen_of(machine: Machine, *pods: Pod, **more: Any) -> Measured:
    settings = Settings(node_name=NODE)
    return samples(
        machine, watched(*pods, registration=annotation(discover(machine, settings), settings), **more)
    )


@pytest.mark.parametrize(
    ("layout", "root"),
    [
        (Layout(), "/sys/fs/cgroup"),
        (Layout(runtime="cri-o"), "/sys/fs/cgroup"),
        (Layout(runtime="cri-dockerd"), "/sys/fs/cgroup"),
        (Layout(cgroup_root="/kubelet"), "/sys/fs/cgroup/kubelet.slice"),
    ],
    ids=["containerd", "cri-o", "cri-dockerd", "cgroup root"],
)
def test_a_container_that_runs_systemd_is_one_container_and_sandbox_and_conmon_are_none(
    layout: Layout, root: str
) -> None:
    machine = Machine(node(count=2))
    made = create(
        machine, {"metadata": {"uid": UID}, "spec": {"containers": [{"name": "main"}]}}, layout=layout
    )
    for group in (*systemd_inside(machine, made.containers["main"], layout), made.containers["POD"]):
        process = machine.process(cgroup=group)
        machine.open("/dev/kfd", process)
        machine.allocate_vram(process, "0000:75:00.0", MIB)
    running = pod(given=None, identifier=made.ids["main"])
    measured = seen_of(machine, running, cgroup_root=root)
    assert one(measured, "hami_vgpu_memory_used_bytes") == 2 * MIB
    assert success(measured) == 1


@pytest.mark.parametrize("fixture", ["mi355x/qpx-6.8", "mi300a/spx-intree", "rdna4/rx9070-igpu"])
def test_without_the_controller_or_without_a_region_gpus_are_told_and_nothing_fails(fixture: str) -> None:
    machine = Machine(load(fixture))
    made = create(machine, {"metadata": {"uid": UID}, "spec": {"containers": [{"name": "main"}]}})
    measured = seen_of(machine, pod(given=None, identifier=made.ids["main"]))
    assert len(of(measured, "hami_host_gpu_memory_used_bytes")) == len(machine.driver.gpus)
    assert len(of(measured, "hami_host_gpu_temperature_celsius")) == len(machine.driver.gpus)
    assert of(measured, "hami_vgpu_memory_used_bytes") == []
    assert success(measured) == 1
