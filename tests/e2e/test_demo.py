"""bin/demo, as a newcomer runs it: every vendor's main job from end to end, on real sockets."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "bin" / "demo"


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [DEMO, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "CI": "1"},
    )


@pytest.mark.parametrize(
    ("fixture", "pods", "shown"),
    [
        (
            "fixtures/mi355x/qpx-6.14.yaml",
            ("slice", "whole"),
            (
                "HSA_CU_MASK",
                "plugin: operating mode: cu",
                "operating mode: partition",
                "hami.io/node-amd-register",
            ),
        ),
        (
            "fixtures/ascend/910b4.yaml",
            ("soft", "template"),
            ("NPU_MEM_QUOTA", "ASCEND_VNPU_SPECS", "hami.io/node-register-Ascend910B4", "vir05_1c_8g"),
        ),
        (
            "fixtures/ppu/zw810e-8.yaml",
            ("slice", "whole"),
            ("HGGC_DEVICE_MEMORY_LIMIT_0", "HGGC_DEVICE_SM_LIMIT", "hami.io/node-register-ppu"),
        ),
        # Of its two cards one is not offered, so there is none left that is whole.
        ("fixtures/ppu/zw810e-hung.yaml", ("slice",), ("HGGC_DEVICE_MEMORY_LIMIT_0",)),
    ],
)
def test_a_vendors_node_is_discovered_registered_and_its_pods_are_allocated(
    fixture: str, pods: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    done = demo(str(DEMO.parents[1] / fixture))
    assert done.returncode == 0, done.stdout + done.stderr
    for pod in pods:
        assert f"pod {pod}" in done.stdout
    for word in shown:
        assert word in done.stdout
    assert done.stdout.count("hami.io/bind-phase") == len(pods)
    assert done.stdout.rstrip().rstrip("─").rstrip().endswith("done")


def test_a_fixture_that_is_none_is_told_in_one_line() -> None:
    done = demo("no/such-node")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("bin/demo: ")
    assert len(done.stderr.splitlines()) == 1


def test_help_says_what_is_shown_for_each_vendor() -> None:
    done = demo("--help")
    assert done.returncode == 0
    for word in ("AMD", "Ascend", "PPU", "FIXTURE"):
        assert word in done.stdout
