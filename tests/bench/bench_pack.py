"""Loading a packed capture (performance.md, "Load a packed capture")."""

from __future__ import annotations

import json
from pathlib import Path

from gpusim import Machine, load
from gpusim.snapshots import pack
from gpusim.snapshots.host import open_capture
from gpusim.snapshots.record import record
from tests.bench.guards import Guard, best


def test_load_a_packed_capture_of_4000_files(guard: Guard, tmp_path: Path) -> None:
    recorded = record(Machine(load("mi308x/cpx-nps4")))
    files = {
        path: entry.content.decode() for path, entry in recorded.entries() if entry.kind is pack.Kind.FILE
    }
    assert len(files) > 4000
    size = pack.write(recorded, tmp_path / "node.gpusim")
    assert size <= 60_000
    flat = json.dumps(files)
    guard(
        lambda: open_capture(tmp_path / "node.gpusim").read("/sys/class/kfd/kfd/topology/generation_id"),
        floor=best(lambda: json.loads(flat)),
        limit=4,
        floor_name=f"json.loads of the texts of {len(files)} files",
    )
