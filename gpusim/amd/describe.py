"""The state of a node as plain values: what `gpusim show --json` prints and a served machine answers."""

from __future__ import annotations

from gpusim.amd.driver import Driver
from gpusim.amd.gpu import Gpu
from gpusim.amd.vram import Vram
from gpusim.process import Process


def describe(driver: Driver, vram: Vram) -> dict[str, object]:
    """Everything that matters of a node; ids of 64 bits are hexadecimal text."""
    spec = driver.spec
    gpu_nodes = [
        {
            "node": index,
            "gpu": node.facts.bdf,
            "partition": node.part,
            "gpu_id": node.gpu_id,
            "minor": node.minor,
        }
        for index, node in driver.topology.gpu_nodes()
    ]
    return {
        "name": spec.name,
        "kernel": spec.kernel,
        "driver": spec.driver,
        "loaded": driver.loaded,
        "kfd_partitions": spec.kfd_partitions,
        "kfd": {
            "major": driver.kfd_major,
            "generation": driver.topology.generation,
            "cpu_nodes": driver.topology.cpus,
            "gpu_nodes": gpu_nodes,
        },
        "cards": [
            {"bdf": c.spec.bdf, "driver": c.spec.driver, "card": c.nodes.card if c.nodes else None}
            for c in driver.cards
        ],
        "gpus": [_gpu(driver, gpu) for gpu in driver.gpus.values()],
        "processes": [_process(process, vram) for process in driver.processes],
    }


def _gpu(driver: Driver, gpu: Gpu) -> dict[str, object]:
    facts = gpu.facts
    return {
        "bdf": gpu.bdf,
        "product": gpu.product.name,
        "present": gpu.present,
        "driver": gpu.driver,
        "resetting": gpu.resetting,
        "hung": gpu.hung,
        "probe_fails": gpu.probe_fails,
        "numa": gpu.numa,
        "unique_id": f"{facts.unique_id:016x}",
        "hive_id": f"{facts.hive_id:016x}",
        "vram_bytes": facts.vram_bytes,
        "vram_used": gpu.vram_used if gpu.present else 0,
        "gtt_used": gpu.gtt_used,
        "mode": gpu.mode,
        "nps": gpu.nps,
        "requested_nps": driver.requested_nps.get(facts.hive_id or gpu.bdf),
        "partitions": [
            {
                "partition": partition,
                "valid": partition < gpu.partitions,
                "device": driver.drm_home(gpu, partition).rpartition("/")[2],
                "card": nodes.card,
                "render": nodes.render,
            }
            for partition, nodes in enumerate(gpu.drm)
        ],
    }


def _process(process: Process, vram: Vram) -> dict[str, object]:
    return {
        "pid": process.pid,
        "uid": process.uid,
        "cgroup": process.cgroup,
        "devices": None if process.devices is None else process.devices.lines(),
        "open": [{"handle": handle.number, "path": handle.path} for handle in process.files.values()],
        "allocations": [
            {"number": a.number, "gpu": a.bdf, "minor": a.minor, "bytes": a.bytes, "place": a.place}
            for a in vram.of(process)
        ],
    }
