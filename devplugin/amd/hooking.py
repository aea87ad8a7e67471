"""Whether a slice gets the memory hook, and what its container needs for that.

The hook is an audit library of glibc 2.34: it must be on the host (decision 23) and, when that is to be
made sure of, the image must be able to load it (amd.md 8). A slice without it is served only where the
kernel limits its memory. guide-amd.md: musl fail-closed, dp.deviceMemoryScaling, dp.hipLogLevel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devplugin.amd.caps import limited_regions
from devplugin.amd.images import images
from devplugin.amd.inventory import Gpu, Inventory
from devplugin.amd.settings import Settings
from devplugin.answers import FactRequest, Mount, Refused
from devplugin.hami import Claim
from devplugin.imagecheck import FACT, PullImage
from devplugin.libc import Finding, Verdict

HOOK_IN_CONTAINER = "/usr/local/vgpu/libamvgpu.so"


@dataclass(frozen=True, slots=True)
class Hook:
    """The decision."""

    loaded: bool
    note: str = ""
    """Why not, for the log."""


def source(settings: Settings) -> str:
    """The hook library on the host: ``<HOST_HOOK_PATH>/vgpu/libamvgpu.so``."""
    return f"{settings.hook_path.rstrip('/')}/vgpu/libamvgpu.so"


def needs(settings: Settings, claim: Claim) -> tuple[FactRequest, ...]:
    """What must be known of a slice's host and image."""
    requests = [FactRequest("file", source(settings))]
    if settings.musl_fail_closed:
        requests += (FactRequest(FACT, image) for image in images(claim))
    return tuple(requests)


def decide(
    inventory: Inventory,
    settings: Settings,
    claim: Claim,
    gpus: Iterable[Gpu],
    facts: Mapping[FactRequest, Any],
) -> Hook:
    """Whether a slice gets the hook: always, unless it cannot and dmem does its work.

    dmem does it only where every soft device of the request has a region.

    Args:
        inventory: which GPUs have a region.
        settings: where the hook is, and whether images are looked at.
        claim: of which container.
        gpus: the GPUs of its soft devices.
        facts: answers to `needs`.

    Raises:
        Refused: memory would be unlimited, or the image is not known; the text says what to do. An image
            that is not on the node is to be pulled.
    """
    regions = limited_regions(inventory, settings)
    limited = all(gpu.bdf in regions for gpu in gpus)
    host = source(settings)
    if not facts.get(FactRequest("file", host)):
        # A container with the mount of a file that the host lacks does not start (decision 23).
        if limited:
            return Hook(False, f"{host} is not on the host")
        raise Refused(
            f"the memory hook {host} is not on the host and dmem does not limit the GPU, so a slice would be "
            "unlimited; install it (-install_hook) or ask for whole GPUs",
            why="limit",
        )
    if not settings.musl_fail_closed:
        return Hook(True)
    findings = (
        facts.get(FactRequest(FACT, image)) or Finding(image, Verdict.FAILED, "nobody looked")
        for image in images(claim)
    )
    return _by_image(claim, tuple(findings), limited)


def _by_image(claim: Claim, findings: Sequence[Finding], limited: bool) -> Hook:
    if not findings:
        raise Refused(
            f"pod {claim.pod}: its image is not known, so it cannot be checked; delete the pod", why="image"
        )
    unknown = [found for found in findings if not found.loads_hook and not found.settled]
    if unknown:
        raise Refused(
            "; ".join(found.refusal for found in unknown),
            after=[PullImage(found.image) for found in unknown if found.pull],
            why="image",
        )
    unable = [found for found in findings if not found.loads_hook]
    if not unable:
        return Hook(True)
    if limited:
        return Hook(False, "; ".join(f"image {found.image}: {found.verdict.value}" for found in unable))
    raise Refused("; ".join(found.refusal for found in unable), why="image")


def environment(settings: Settings) -> dict[str, str]:
    """What the hook reads in its container, besides the memory limits (amd.md 1.5)."""
    envs = {"LD_AUDIT": HOOK_IN_CONTAINER}
    if settings.memory_scaling > 1:
        envs["HIP_OVERSUBSCRIBE"] = "true"
    if settings.hip_log_level:
        envs["LIBHIP_LOG_LEVEL"] = str(settings.hip_log_level)
    return envs


def mounts(settings: Settings) -> tuple[Mount, ...]:
    """The library, read-only, always at the same place in the container."""
    return (Mount(HOOK_IN_CONTAINER, source(settings)),)
