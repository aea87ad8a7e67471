"""No slice without a memory limit, no hook where it cannot be loaded: whatever is known of host and image.

amd.md 8, decisions 22 and 23; guide-amd.md, musl fail-closed.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from devplugin.amd.allocation import allocate, needs
from devplugin.answers import ContainerEdits, FactRequest, Refused
from devplugin.dmem import Usable
from devplugin.hami import Pod
from devplugin.imagecheck import FACT
from devplugin.libc import Finding, Verdict

from ..devplugin.amd.builders import CU, claimed, inventory, pod, soft_gpu

BUSES = {"a": "03", "b": "04", "c": "05"}
GPUS = inventory(*(soft_gpu(name, render=128 + i) for i, name in enumerate(BUSES)))


@st.composite
def nodes(draw: st.DrawFn) -> tuple[frozenset[str], bool, bool]:
    """(GPUs dmem limits, whether the hook is on the host, whether images are looked at)."""
    return draw(st.frozensets(st.sampled_from(sorted(BUSES)))), draw(st.booleans()), draw(st.booleans())


@st.composite
def requests(draw: st.DrawFn) -> tuple[Pod, dict[str, bool], dict[str, Verdict]]:
    """A pod of one container or two, which of its first container's GPUs are sliced, and what images are."""
    names = draw(st.lists(st.sampled_from(sorted(BUSES)), min_size=1, max_size=3, unique=True))
    sliced = {name: draw(st.booleans()) for name in names}
    slot = "".join(f"{name},AMD,{1024 if cut else 0},{8 if cut else 0}:" for name, cut in sliced.items())
    more = draw(st.integers(0, 1))
    containers = tuple(f"c{i}" for i in range(1 + more))
    owner = replace(
        pod(f"{slot};" * (1 + more)),
        containers=containers,
        images={name: f"{name}:1" for name in containers},
        limits={
            name: {"amd.com/gpu": str(len(names))} for name in draw(st.sets(st.sampled_from(containers)))
        },
    )
    return owner, sliced, {f"{name}:1": draw(st.sampled_from(Verdict)) for name in containers}


@given(nodes(), requests(), st.floats(0.1, 3.0), st.integers(0, 4))
def test_a_container_is_limited_by_hook_or_kernel_or_refused(
    node: tuple[frozenset[str], bool, bool],
    request: tuple[Pod, dict[str, bool], dict[str, Verdict]],
    factor: float,
    level: int,
) -> None:
    limited, there, looked = node
    owner, sliced, verdicts = request
    of = replace(
        GPUS,
        dmem=Usable(True, ""),
        dmem_regions=tuple(f"drm/0000:{BUSES[name]}:00.0/vram" for name in sorted(limited)),
    )
    settings = replace(CU, musl_fail_closed=looked, memory_scaling=factor, hip_log_level=level)
    claim = claimed(owner)
    asked = needs(of, settings, claim)
    facts = {one: Finding(one.subject, verdicts[one.subject]) if one.kind == FACT else there for one in asked}
    try:
        edits = allocate(of, settings, claim, [owner], facts).edits
    except Refused as refused:
        assert any(sliced.values()), refused
        return
    check(edits, sliced, limited, [one for one in asked if one.kind == FACT], verdicts, there)


def check(
    edits: ContainerEdits,
    sliced: dict[str, bool],
    limited: frozenset[str],
    looked_at: list[FactRequest],
    verdicts: dict[str, Verdict],
    there: bool,
) -> None:
    hook = "LD_AUDIT" in edits.envs
    assert hook is bool(edits.mounts)
    limits = [name for name in edits.envs if name.startswith("HIP_DEVICE_MEMORY_LIMIT_")]
    assert len(limits) == (len(sliced) if hook else 0)
    if not hook:
        assert not {"HIP_OVERSUBSCRIBE", "LIBHIP_LOG_LEVEL"} & set(edits.envs)
        assert not any(sliced.values()) or set(sliced) <= limited
    else:
        assert any(sliced.values())
        assert there
        assert all(verdicts[one.subject] is Verdict.GLIBC for one in looked_at)
