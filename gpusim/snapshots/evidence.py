"""What in a capture tells its kernel and driver: one `Trace` per thing seen, for `releases.choose`.

A file that is missing counts only where the recorder would have kept it: in a directory that was recorded as
a whole. Sources of what each release does: the rows of `gpusim.kernel_rows` and `gpusim.kernel_rows_pci`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpusim.amd.partition import listed, memory_modes
from gpusim.kernel import Behaviour
from gpusim.snapshots.board import Board
from gpusim.snapshots.reading import Capture, Kfd, Xcp, first
from gpusim.snapshots.releases import Trace, key

_ROOT_GROUP = "/sys/fs/cgroup"
_DECISIVE = 10
"""What no configuration can change outweighs what a distribution may have ported back."""
_PCIE, _XGMI = 2, 11
_ONE_HOP = 15
_QUEUE_RESET = 1 << 31


def traces(capture: Capture, kfd: Kfd, boards: Sequence[Board], xcps: Sequence[Xcp]) -> list[Trace]:
    """Everything seen that depends on the release."""
    found = list(_nodes(kfd, boards))
    for board in boards:
        found += _links(kfd, board)
        found += _caches(kfd, board)
        found += _device(capture, board)
    if xcps:
        separator = xcps[0].separator
        found.append(
            Trace(
                f"platform devices are named amdgpu_xcp{separator}N",
                lambda rules: rules.xcp_separator == separator,
                _DECISIVE,
            )
        )
        if capture.has(f"{xcps[0].path}/modalias") and capture.has(f"{xcps[0].path}/driver_override"):
            found.append(_has(capture, xcps[0].path, "xcp", lambda rules: rules.xcp_directory))
    found += _cgroups(capture)
    return list({trace.what: trace for trace in found}.values())


def _nodes(kfd: Kfd, boards: Sequence[Board]) -> Iterator[Trace]:
    for board in boards:
        if not board.nodes:
            continue
        values = board.nodes[0].values
        modern = "gfx_target_version" in values
        yield key("properties have gfx_target_version", modern, lambda rules: not rules.kfd_legacy, _DECISIVE)
        if modern:
            yield key("properties have capability2", "capability2" in values, lambda r: r.kfd_capability2)
            yield key("properties have cwsr_size", "cwsr_size" in values, lambda r: r.kfd_cwsr)
            gfx9 = 90000 <= board.product.gfx < 100000
            if gfx9 and not board.product.vf and (capability := values.get("capability")) is not None:
                seen = bool(capability & _QUEUE_RESET)
                yield key("capability bit 31 on gfx9", seen, lambda rules: rules.kfd_queue_reset)
        if kfd.bank(board.nodes[0]):
            seen = kfd.capture.has(f"{board.nodes[0].path}/mem_banks/0/used_memory")
            yield key("memory banks have used_memory", seen, lambda rules: rules.kfd_used_memory, _DECISIVE)
        yield from _ids(kfd, board)
        if board.product.gfx // 100 == 905:
            yield Trace("a gfx950 is bound", lambda rules: rules.gfx950, _DECISIVE)


def _ids(kfd: Kfd, board: Board) -> Iterator[Trace]:
    """What KFD prints as unique_id: the GPU's, or that of a die (kernel.md 1.5)."""
    own = board.file_id(kfd.capture)
    printed = [node.values.get("unique_id", 0) for node in board.nodes]
    if not board.product.partitionable or not all(printed):
        return
    if board.parts == 1:
        if own:
            same = own == printed[0]
            what = "KFD's unique_id of a whole GPU is the PCI file's"
            yield key(what, same, lambda rules: rules.kfd_unique_id != "xcd")
    elif own or len(printed) > 1:
        shared = len({own, *printed} - {None}) == 1
        what = "partitions have their GPU's unique_id"
        yield key(what, shared, lambda rules: rules.kfd_unique_id == "shared", _DECISIVE)


def _links(kfd: Kfd, board: Board) -> Iterator[Trace]:
    for node in board.nodes[:1]:
        for link in kfd.links(node):
            if link.get("type") == _PCIE and "gfx_target_version" in node.values:
                least = link.get("min_bandwidth", 0)
                yield Trace(
                    f"PCIe links have min_bandwidth {least}",
                    lambda rules, least=least: rules.kfd_pcie_minimum == least,  # type: ignore[misc]
                )
            mask = "recommended_sdma_engine_id_mask" in link
            yield key("links have recommended_sdma_engine_id_mask", mask, lambda r: r.kfd_sdma_mask)
            gfx94 = board.product.gfx // 100 in (904, 905)
            if gfx94 and link.get("type") == _XGMI and link.get("weight") == _ONE_HOP:
                speed = link.get("max_bandwidth", 0)
                yield Trace(
                    f"one xGMI link has {speed} MB/s",
                    lambda rules, speed=speed: rules.kfd_xgmi_mbps == speed,  # type: ignore[misc]
                )
                return


def _caches(kfd: Kfd, board: Board) -> Iterator[Trace]:
    gfx = board.product.gfx
    for node in board.nodes[:1]:
        if gfx == 90402:
            for cache in kfd.caches(node):
                seen = bool(cache.get("cache_line_size"))
                yield key("caches of gfx942 have line sizes", seen, lambda r: r.kfd_gfx942_lines)
                break
        elif gfx == 90500 and board.nps > 1:
            sizes = [cache["size"] for cache in kfd.caches(node) if cache.get("level") == 3]
            if sizes:
                whole = next(kind.kib for kind in board.product.caches if kind.level == 3)
                seen = sizes[0] != whole
                yield key("the L3 of gfx950 is divided by NPS", seen, lambda r: r.kfd_gfx950_l3_by_nps)


def _device(capture: Capture, board: Board) -> Iterator[Trace]:
    """Files of the PCI directory."""
    device, product = board.pci, board.product
    if device is None or device.driver != "amdgpu":
        return
    if product.gfx // 100 == 905:
        yield Trace("a gfx950 is bound", lambda rules: rules.gfx950, _DECISIVE)
    modes = first(capture, device, "available_compute_partition")
    if modes is not None:
        nps = board.nps
        yield Trace(
            f"available_compute_partition is {modes!r} in NPS{nps}",
            lambda rules: listed(product, nps, rules) == modes,
        )
    if product.partitionable and first(capture, device, "current_memory_partition") is not None:
        text = first(capture, device, "available_memory_partition")

        def offers(rules: Behaviour) -> bool:
            modes = memory_modes(product, rules)
            return (", ".join(f"NPS{n}" for n in modes) if len(modes) > 1 else None) == text

        yield Trace(f"available_memory_partition is {text!r}", offers)
    if device.card is not None and device.drm_names:
        seen = any(name.startswith("controlD") for name in device.drm_names)
        yield key("drm/ lists controlD links", seen, lambda rules: rules.control_links)
    if (path := whole(capture, board)) is None:
        return
    yield _has(capture, path, "enforce_isolation", lambda rules: rules.enforce_isolation)
    if product.partitionable:
        yield _has(capture, path, "compute_partition_config", lambda rules: rules.partition_config)
        yield _has(capture, path, "xcp", lambda rules: rules.xcp_directory)
    if product.apu and not product.cpu_xgmi:
        yield _has(capture, path, "gfx_reset_mask", lambda rules: rules.reset_masks)
    if not (product.product_name or product.vf or product.apu):
        yield _has(capture, path, "product_name", lambda rules: rules.fru_without_eeprom)


def whole(capture: Capture, board: Board) -> str | None:
    """The board's PCI directory, when it was recorded with all its small files."""
    paths = board.pci.paths if board.pci else []
    marks = ("modalias", "irq", "local_cpus", "power_state")
    return next((path for path in paths if all(capture.has(f"{path}/{mark}") for mark in marks)), None)


def _has(capture: Capture, directory: str, name: str, fits: object) -> Trace:
    assert callable(fits)
    return key(f"{name} is in the device's directory", capture.has(f"{directory}/{name}"), fits)


def _cgroups(capture: Capture) -> Iterator[Trace]:
    controllers = capture.text(f"{_ROOT_GROUP}/cgroup.controllers")
    if controllers is None:
        return
    seen = "dmem" in controllers.split()
    yield key("the dmem controller is there", seen, lambda rules: rules.dmem_controller, _DECISIVE)
    if not seen:
        return
    groups = [n for n in capture.names(_ROOT_GROUP) if capture.has(f"{_ROOT_GROUP}/{n}/dmem.max")]
    for group in groups[:1]:
        peak = capture.has(f"{_ROOT_GROUP}/{group}/dmem.peak")
        yield key("dmem.peak is in a cgroup", peak, lambda rules: rules.dmem_peak)
