"""Every command that README.md and docs/ show is run as printed, and prints what the page shows.

A page is a reader: one shell in an empty directory, a cluster of simulated nodes around it (`pages/`). What
cannot run here stands in two short tables with the reason, or with the test that runs it.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpusim import Machine, load
from gpusim.export.render import render

from .devplugin.daemon.rig import until
from .gpusim.private_mount import needs_fuse
from .pages.blocks import COMMANDS, OTHERS, PAGES, ROOT, Command, agrees, blocks, commands, whole
from .pages.cluster import Cluster
from .pages.programs import DAEMONS, environment, launch, lay
from .pages.shell import Shell

TESTS = Path(__file__).parent

AMD, NPU, PPU = "gpu-1", "npu-1", "ppu-1"
"""The nodes that the pages speak of."""
FIXTURES = {AMD: "mi355x/spx-6.14", NPU: "ascend/910b4", PPU: "ppu/zw810e-8"}


@dataclass(frozen=True)
class World:
    """What a page finds around it."""

    nodes: Mapping[str, str] = field(default_factory=lambda: FIXTURES)
    first: str = AMD
    """Where daemons work that name no node."""
    before: Callable[[Cluster, Path], None] = lambda cluster, place: None


def _readme(cluster: Cluster, place: Path) -> None:
    """The names that README leaves to the reader: a capture and its golden file."""
    render(Machine(load("mi355x/qpx-6.14")), place / "SNAPSHOT")
    words = [
        *launch("amd-device-plugin"),
        "-root",
        "SNAPSHOT",
        "-dry_run",
        "-expect",
        "golden.json",
        "-update",
    ]
    subprocess.run(words, cwd=place, check=True, capture_output=True)

    for node in (AMD, NPU):
        config = (ROOT / "deploy/examples/ascend-device-config.yaml").read_bytes()
        cluster.nodes[node].machine.put("/device-config.yaml", config)
        cluster.nodes[node].machine.put("/node-config.yaml", b"nodes: []\n")


def _trace(cluster: Cluster, place: Path) -> None:
    """What the page's Python wrote."""
    blocks_ = [block for block in blocks("docs/faults.md") if block.language == "python"]
    code = "\n".join("\n".join(block.lines) for block in blocks_)
    subprocess.run([sys.executable, "-c", code], cwd=place, check=True, capture_output=True)


def _helm_words(cluster: Cluster, place: Path, *lines: str) -> None:
    """What was installed before the page begins."""
    from .pages import helm

    for line in lines:
        helm.run(cluster, line.split(), place, "")


def _installed(cluster: Cluster, place: Path) -> None:
    """Older releases of all three, PPU's from a manifest."""
    for name, label in ((NPU, "ascend"), (PPU, "alibabappu")):
        cluster.store.patch("nodes", name, {"metadata": {"labels": {label: "on"}}})
    cluster.store.create("namespaces", {"metadata": {"name": "hami-system"}})
    soft = "--set config.create=true --set hamiVnpuCore.enabled=true"
    _helm_words(
        cluster,
        place,
        "install amd-gpu deploy/charts/amd-gpu -n kube-system --set dp.image.tag=0.1.0",
        f"install ascend deploy/charts/ascend-device-plugin -n kube-system --set image.tag=0.1.0 {soft}",
        "install ppu deploy/charts/ppu-vgpu-device-plugin -n hami-system",
    )
    old = cluster.daemon_sets[("hami-system", "ppu-vgpu-device-plugin")]
    release = cluster.releases.pop(("hami-system", "ppu"))
    for one in release["objects"]:
        if one["kind"] != "ConfigMap":
            cluster.remove(one)
    meta = {"name": "ppu-device-plugin", "namespace": "kube-system"}
    cluster.config_maps["kube-system", "ppu-vgpu-device-plugin-config"] = cluster.config_maps[
        "hami-system", "ppu-vgpu-device-plugin-config"
    ]
    cluster.apply({**old, "metadata": meta})
    for one in cluster.daemons:
        until(lambda one=one: cluster.ready(one), 120)


def _without_hook(cluster: Cluster, place: Path) -> None:
    line = "install amd-gpu deploy/charts/amd-gpu -n kube-system --set dp.hookInstaller.enabled=false"
    _helm_words(cluster, place, line)
    for one in cluster.daemons:
        until(lambda one=one: cluster.ready(one), 120)


WORLDS: Mapping[str, World] = {
    "README.md": World(before=_readme),
    "docs/ci.md": World({"gpu-node-1": "mi355x/qpx-6.14"}, "gpu-node-1"),
    "docs/faults.md": World({AMD: FIXTURES[AMD]}, before=_trace),
    "docs/property-tests.md": World({AMD: FIXTURES[AMD]}),
    "docs/troubleshooting.md": World({**FIXTURES, AMD: "mi355x/qpx-6.8"}, before=_without_hook),
    "docs/upgrade.md": World(before=_installed),
}
"""Page → what is special about it."""

ELSEWHERE = {
    "bin/test": "test_docs_commands.py::test_every_command_of_a_page_runs_as_printed",
    "bin/demo": "e2e/test_demo.py::test_a_vendors_node_is_discovered_registered_and_its_pods_are_allocated",
    "pytest -q --tb=short --hypothesis-seed=1": (
        "gpusim/testing/test_property_page.py::"
        "test_the_runs_print_what_the_page_shows_and_fail_where_it_says_so"
    ),
    "pip install 'gpusim[sim]' pytest": (
        "test_packaging.py::test_a_fifteen_line_test_finds_the_bug_of_a_wrong_allocator"
    ),
}
"""Command → the test that runs it or, for a package index that is not here, the like of it."""

SWITCH = (
    "bin/gpusim run mi355x/spx-6.14 -- sh -c 'echo cpx "
    ">/sys/bus/pci/devices/0000:75:00.0/current_compute_partition; ls /sys/class/kfd/kfd/topology/nodes'"
)
FUSE = {
    SWITCH: "test_docs_commands.py::test_a_partition_is_switched_under_run_as_readme_prints_it",
    "bin/gpusim mount mi355x/spx-6.14 DIR": "gpusim/test_fuse.py::test_a_signal_unmounts_and_leaves_nothing",
}
"""Command that needs FUSE and rights of its own → the test of it that asks for them, or skips."""

SHORTER = {
    "bin/fuzz": "bin/fuzz --seconds 2",
    "bin/fuzz annotation fixture --seconds 3600": "bin/fuzz annotation fixture --seconds 2",
}
"""Command that takes long → the same with less to do."""

ENDLESS = {
    "bin/amd-device-plugin -v": r"registered as",
    "bin/ascend-device-plugin --config_file /": r"registered as",
    "bin/vgpu-monitor -metrics": r"/metrics",
    "bin/node-labeller -vram -cu-count": r"label",
}
"""Part of a command that serves until it is interrupted → what it prints once it works."""


def reader(place: Path, world: World, cluster: Cluster) -> Path:
    """Lay the files a reader has: a checkout, the programs; and the node's, which are returned."""
    for name in ("deploy", "fixtures"):
        (place / name).symlink_to(ROOT / name)
    (place / "dist").mkdir()
    nodes = [cluster.nodes[world.first], *cluster.nodes.values()]
    flags = {
        name: {node.name: node.flags if "plugin" in name else node.flags[:2] for node in nodes}
        for name in DAEMONS
    }
    root = cluster.path / "root"
    render(nodes[0].machine, root)
    lay(place, flags, root, cluster.control)
    return root


def run_here(page: str) -> list[Command]:
    """The page's commands but for those of the two tables."""
    return [one for one in commands(page) if one.bare not in ELSEWHERE and one.bare not in FUSE]


@pytest.mark.skipif(shutil.which("jq") is None, reason="the pages look into JSON with jq, which is not here")
@pytest.mark.daemon
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page in PAGES if run_here(page)])
def test_every_command_of_a_page_runs_as_printed(page: str, tmp_path: Path) -> None:
    found = run_here(page)
    if any(re.search(r"\bhelm\b", one.text) for one in found) and not _helm():
        pytest.skip("no Helm engine: helm-python-sdk has a wheel for x86-64 Linux only")
    world = WORLDS.get(page, World())
    with Cluster(world.nodes) as cluster:
        place = cluster.path / "reader"  # short: sockets are made here
        place.mkdir()
        root = reader(place, world, cluster)
        world.before(cluster, place)
        with Shell(place, environment(place, cluster.kubeconfig, world.first)) as shell:
            for one in found:
                run(shell, one, root)


def run(shell: Shell, one: Command, root: Path) -> None:
    """As printed, but for what is this computer's: its ports, and /sys, for which the node's files stand."""
    text = SHORTER.get(one.bare, one.text)
    text = re.sub(r"""(?<=[\s"'>])/sys/""", f"{root}/sys/", text)
    text = re.sub(r"(?<= ):9\d\d\d\b", "127.0.0.1:0", text)
    there = Command(one.page, one.line, one.heading, text, one.shown)
    sign = next((sign for beginning, sign in ENDLESS.items() if beginning in one.text), None)
    if sign is not None:
        shell.serve(there, sign)
    else:
        shell.run(there)


@needs_fuse
def test_a_partition_is_switched_under_run_as_readme_prints_it() -> None:
    done = subprocess.run(["bash", "-c", SWITCH], cwd=ROOT, capture_output=True, text=True, check=True)
    before = Machine(load("mi355x/spx-6.14")).list("/sys/class/kfd/kfd/topology/nodes")
    assert len(done.stdout.split()) == len(before) + 7


def _helm() -> bool:
    return importlib.util.find_spec("helm_python") is not None


def test_every_block_says_what_it_is_so_that_no_command_hides() -> None:
    wrong = [
        f"{page}:{block.line}: {block.language or 'no language'}"
        for page in PAGES
        for block in blocks(page)
        if block.language not in (*COMMANDS, *OTHERS)
    ]
    assert wrong == []


def test_what_is_not_run_here_is_on_a_page_and_run_by_a_test_that_exists() -> None:
    shown = {one.bare for page in PAGES for one in commands(page)}
    for command, place in {**ELSEWHERE, **FUSE}.items():
        file, name = place.split("::")
        assert command in shown
        assert re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.MULTILINE), place
        assert command not in FUSE or "needs_fuse" in (TESTS / file).read_text()
    assert set(SHORTER) <= shown
    for part in ENDLESS:
        assert any(part in command for command in shown), part


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ((), ["anything"], True),
        (("80",), ["80"], True),
        (("80",), ["8"], False),
        (("80",), ["80", "more"], False),
        (("ok  a …", "…", "sum: …"), ["ok a b", "x", "y", "sum: 3"], True),
        (("ok  a …", "…", "sum: …"), ["ok a b", "sum: 3", "x"], False),
        (("a.c",), ["abc"], False),
    ],
)
def test_dots_stand_for_anything_and_everything_else_for_itself(
    shown: tuple[str, ...], printed: list[str], same: bool
) -> None:
    assert agrees(shown, printed) is same


@pytest.mark.parametrize(
    "text",
    ["false", "no-such-program", "echo 8", "bin/amd-device-plugin -no_such_flag", "true # exit status 3"],
)
def test_a_command_that_fails_or_prints_something_else_is_noticed(text: str, tmp_path: Path) -> None:
    one = Command("page.md", 1, "", text, ("80",) if text.startswith("echo") else ())
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    with Shell(tmp_path, env) as shell, pytest.raises(AssertionError, match=re.escape("page.md:1: ")):
        shell.run(one)


def test_a_shell_keeps_variables_jobs_and_directories(tmp_path: Path) -> None:
    lines = (
        "A=3",
        "mkdir d && cd d",
        'echo "$A" >f',
        "(echo ready; sleep 60) &",
        'test -n "$(jobs -p)"',
        "grep -q 3 ../d/f",
    )
    with Shell(tmp_path, {"PATH": "/usr/bin:/bin"}) as shell:
        for number, line in enumerate(lines):
            shell.run(Command("page.md", number, "", line))


def test_lines_that_belong_together_are_one_command() -> None:
    assert whole("a | b")
    assert not whole("a \\")
    assert not whole("cat <<'EOF'\nfor")
    assert whole("cat <<'EOF'\nfor\nEOF")
    assert not whole("for x in a; do")
