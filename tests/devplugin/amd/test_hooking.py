"""Which slices get the memory hook, and what it reads: guide-amd.md, amd.md 1.5, 8 and 14.9, decision 23."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from devplugin.amd.allocation import allocate, needs
from devplugin.amd.inventory import Inventory
from devplugin.amd.settings import Settings
from devplugin.answers import Allocation, FactRequest, Refused
from devplugin.dmem import Usable
from devplugin.hami import Pod
from devplugin.imagecheck import FACT, PullImage
from devplugin.libc import Finding, Verdict

from .builders import CU, PARTITION, claimed, cut_gpu, inventory, pod, soft_gpu

IMAGE = "alpine:3.20"
NAME = "docker.io/library/alpine:3.20"
HOOK = FactRequest("file", "/usr/local/vgpu/libamvgpu.so")
LIBC = FactRequest(FACT, IMAGE)
CHECKED = replace(CU, musl_fail_closed=True)

BARE = inventory(soft_gpu("a", cus=64, render=128), soft_gpu("b", cus=64, render=130))
LIMITED = replace(
    BARE, dmem=Usable(True, ""), dmem_regions=("drm/0000:03:00.0/vram", "drm/0000:05:00.0/vram")
)
HALF_LIMITED = replace(LIMITED, dmem_regions=("drm/0000:03:00.0/vram",))

UNABLE = [Verdict.MUSL, Verdict.STATIC, Verdict.OLD]
UNKNOWN = [Verdict.FAILED, Verdict.ABSENT]


def slice_of(text: str = "a,AMD,1024,8:;", images: Mapping[str, str] | None = None) -> Pod:
    return replace(pod(text), containers=("c0",), images={"c0": IMAGE} if images is None else images)


def give(
    of: Inventory,
    verdict: Verdict | None = Verdict.GLIBC,
    *,
    settings: Settings = CHECKED,
    owner: Pod | None = None,
    hook: bool = True,
) -> Allocation:
    owner = owner or slice_of()
    facts: dict[FactRequest, Any] = {HOOK: hook}
    if verdict is not None:
        facts[LIBC] = Finding(NAME, verdict)
    return allocate(of, settings, claimed(owner), [owner], facts)


# ------------------------------------------------------------------ what is asked


def test_the_image_of_a_slice_is_looked_at_only_when_that_is_switched_on() -> None:
    assert needs(BARE, CHECKED, claimed(slice_of())) == (HOOK, LIBC)
    assert needs(BARE, CU, claimed(slice_of())) == (HOOK,)


def test_whole_and_hard_devices_need_no_image() -> None:
    assert needs(BARE, CHECKED, claimed(slice_of("a,AMD,16304,64:;"))) == ()
    hard = inventory(cut_gpu("g", compute="qpx", ways=4))
    settings = replace(PARTITION, musl_fail_closed=True)
    assert needs(hard, settings, claimed(slice_of("g-p1,AMD,0,0:;"))) == ()


# ------------------------------------------------------------------ what follows


def test_an_image_with_a_new_glibc_loads_the_hook() -> None:
    assert give(BARE).edits.envs["LD_AUDIT"] == "/usr/local/vgpu/libamvgpu.so"
    assert give(BARE).edits.mounts


@pytest.mark.parametrize("verdict", UNABLE)
def test_an_image_that_cannot_load_it_is_refused_naming_image_and_libc(verdict: Verdict) -> None:
    with pytest.raises(Refused, match=rf"image {NAME}: {verdict.value}") as refused:
        give(BARE, verdict)
    assert refused.value.after == ()


@pytest.mark.parametrize("verdict", UNABLE)
def test_where_dmem_limits_every_device_it_is_admitted_without_hook_limit_and_mount(
    verdict: Verdict,
) -> None:
    result = give(LIMITED, verdict, settings=replace(CHECKED, memory_scaling=2.0, hip_log_level=3))
    assert set(result.edits.envs) == {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "HSA_CU_MASK"}
    assert result.edits.mounts == ()
    assert any(f"image {NAME}: {verdict.value}" in note for note in result.notes)


def test_one_device_without_a_region_is_one_too_few() -> None:
    owner = slice_of("a,AMD,1024,8:b,AMD,1024,8:;")
    assert not give(LIMITED, Verdict.MUSL, owner=owner).edits.mounts
    with pytest.raises(Refused, match="musl"):
        give(HALF_LIMITED, Verdict.MUSL, owner=owner)


@pytest.mark.parametrize("verdict", UNKNOWN)
def test_what_is_not_known_is_refused_even_where_dmem_limits(verdict: Verdict) -> None:
    with pytest.raises(Refused, match=verdict.value):
        give(LIMITED, verdict)


def test_an_image_that_is_not_on_the_node_is_refused_with_the_guides_words_and_pulled() -> None:
    with pytest.raises(Refused, match="image is not on the node yet") as refused:
        give(BARE, Verdict.ABSENT)
    assert refused.value.after == (PullImage(NAME),)


def test_a_check_that_failed_pulls_nothing() -> None:
    with pytest.raises(Refused) as refused:
        give(BARE, Verdict.FAILED)
    assert refused.value.after == ()


def test_a_pod_that_names_no_image_is_refused() -> None:
    with pytest.raises(Refused, match="its image is not known"):
        give(BARE, None, owner=slice_of(images={}))


def test_an_image_nobody_looked_at_is_refused() -> None:
    with pytest.raises(Refused, match="could not be checked"):
        give(BARE, None)


def test_without_the_hook_on_the_host_the_image_does_not_matter() -> None:
    assert give(LIMITED, Verdict.ABSENT, hook=False).edits.mounts == ()
    with pytest.raises(Refused, match="is not on the host"):
        give(BARE, Verdict.GLIBC, hook=False)


# ------------------------------------------------------------------ its log level


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_the_log_level_reaches_pods_that_load_the_hook(level: int) -> None:
    settings = replace(CU, hip_log_level=level)
    assert give(BARE, settings=settings).edits.envs["LIBHIP_LOG_LEVEL"] == str(level)
    assert "LIBHIP_LOG_LEVEL" not in give(LIMITED, settings=settings, hook=False).edits.envs
    whole = give(BARE, settings=settings, owner=slice_of("a,AMD,16304,64:;"))
    assert "LIBHIP_LOG_LEVEL" not in whole.edits.envs


def test_level_0_keeps_the_librarys_own() -> None:
    assert "LIBHIP_LOG_LEVEL" not in give(BARE, settings=CU).edits.envs
