"""The pytest plugin as a stranger's run of pytest sees it: most tests run pytest in an empty directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpusim.amd.products import PRODUCTS
from gpusim.machine import Machine
from gpusim.testing import witness
from gpusim.testing.build import node
from gpusim.testing.picture import picture, words
from gpusim.testing.trace import replay
from gpusim.testing.used import make

ROOT = Path(__file__).resolve().parents[3]
FIRST = "0000:75:00.0"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run pytest on these tests, with our plugin and no others than named."""

    def run(code: str, *words: str, plugins: tuple[str, ...] = (), conftest: str = "") -> Any:
        (tmp_path / "test_it.py").write_text("import pytest\n" + textwrap.dedent(code))
        (tmp_path / "conftest.py").write_text(conftest)
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p no:cacheprovider\n")
        loaded = [word for name in ("gpusim.testing.pytest_plugin", *plugins) for word in ("-p", name)]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *loaded, *words, "."],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTEST_ADDOPTS": "",
                "PYTHONPATH": str(ROOT),
                "TMPDIR": str(tmp_path),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )

    return run


def outcome(done: subprocess.CompletedProcess[str], **counts: int) -> None:
    """The last line tells these numbers, and no others."""
    last = done.stdout.rstrip().splitlines()[-1]
    found = dict(zip(last.split()[2::2], last.split()[1::2], strict=False))
    plain = {k.rstrip(",").replace("errors", "error"): int(v) for k, v in found.items() if v.isdigit()}
    assert plain == counts, done.stdout


def test_it_loads_with_plain_pytest_and_imports_neither_hypothesis_nor_grpc(run: Run) -> None:
    done = run(
        """
        import sys

        def test_nothing_is_loaded():
            ours = {name for name in sys.modules if name.partition(".")[0] in ("gpusim", "devplugin")}
            assert ours == {
                "gpusim", "gpusim.testing", "gpusim.testing.pytest_plugin", "gpusim.testing.witness"
            }
            assert not {"hypothesis", "grpc", "yaml", "kubernetes", "pyfakefs"} & sys.modules.keys()
        """
    )
    outcome(done, passed=1)


def test_a_test_with_a_node_imports_neither_of_them_either(run: Run) -> None:
    done = run(
        """
        import sys

        def test_it(machine):
            assert machine.list("/sys/class/drm")
            assert not {"hypothesis", "grpc", "kubernetes"} & sys.modules.keys()
        """
    )
    outcome(done, passed=1)


def test_the_marker_names_the_node(run: Run) -> None:
    done = run(
        """
        import errno
        from pathlib import Path
        from gpusim.testing.machines import node
        from gpusim.testing.faults import Fault, Plan

        FIRST = "0000:75:00.0"
        MODE = f"/sys/bus/pci/devices/{FIRST}/current_compute_partition"

        @pytest.mark.machine("mi355x/qpx-6.14")
        def test_name(machine):
            assert machine.read(MODE) == b"QPX\\n"

        @pytest.mark.machine(node(count=2, gpu={"mode": "DPX"}))
        def test_spec(machine):
            assert machine.read(MODE) == b"DPX\\n"
            assert len(machine.spec.gpus) == 2

        @pytest.mark.machine(node(count=1), faults=Plan((Fault("eio", path="*partition"),)))
        def test_faults(machine):
            with pytest.raises(OSError) as refused:
                machine.read(MODE)
            assert refused.value.errno == errno.EIO
            assert machine.read(MODE) == b"SPX\\n"

        @pytest.mark.parametrize("machine", ["mi355x/spx-6.14", "mi355x/cpx-6.14"], indirect=True)
        def test_parameter(machine):
            assert machine.read(MODE) in (b"SPX\\n", b"CPX\\n")

        def test_path(make_machine, tmp_path):
            here = tmp_path / "mine.yaml"
            for mode in ("SPX", "QPX"):
                here.write_text(
                    f"kernel: '6.14'\\ngpus: {{product: MI355X, bdf: '{FIRST}', mode: {mode}}}\\n"
                )
                assert make_machine(here).read(MODE) == mode.encode() + b"\\n"

        class TestClosest:
            pytestmark = pytest.mark.machine("mi355x/dpx-6.14")

            def test_class(self, machine):
                assert machine.read(MODE) == b"DPX\\n"

            @pytest.mark.machine("mi355x/cpx-6.14")
            def test_method(self, machine):
                assert machine.read(MODE) == b"CPX\\n"

        def test_default(machine):
            assert machine.read(MODE) == b"SPX\\n"
            machine.switch(FIRST, "CPX")

        def test_each_test_has_its_own(machine):
            assert machine.read(MODE) == b"SPX\\n"
        """
    )
    outcome(done, passed=10)


def test_a_marker_that_names_no_node_is_an_error_with_a_remedy(run: Run) -> None:
    done = run(
        """
        @pytest.mark.machine("mi355x/qpx-6.15")
        def test_unknown(machine): ...

        @pytest.mark.machine("mi355x/qpx-6.14", fault=1)
        def test_keyword(machine): ...
        """
    )
    outcome(done, error=2)
    assert "no fixture of that name; near: mi355x/qpx-6.14" in done.stdout
    assert "@pytest.mark.machine: " in done.stdout
    assert "unexpected keyword argument 'fault'" in done.stdout


def test_a_failure_shows_the_node_and_a_trace_that_can_be_replayed(run: Run, tmp_path: Path) -> None:
    done = run(
        """
        @pytest.mark.machine("mi355x/qpx-6.14")
        def test_busy(machine):
            holder = machine.process()
            machine.open("/dev/kfd", holder)
            machine.switch("0000:75:00.0", "CPX")

        def test_fine(machine):
            machine.switch("0000:75:00.0", "CPX")
        """
    )
    outcome(done, failed=1, passed=1)
    assert "gpu 0  0000:75:00.0  MI355X  QPX/NPS1  [8|9|10|11]" in done.stdout
    assert "process 1000 (uid 0) holds /dev/kfd" in done.stdout
    assert "  switch '0000:75:00.0' 'CPX' → EBUSY" in done.stdout
    (trace,) = tmp_path.glob("gpusim-traces-*/*.jsonl")
    assert f"again: gpusim replay {trace}" in done.stdout
    assert replay(trace.read_text()).same
    again = subprocess.run(
        [sys.executable, "-m", "gpusim.cli", "replay", "--show", str(trace)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (again.returncode, again.stdout.count("EBUSY")) == (0, 1), again.stderr


def test_a_property_shows_the_nodes_of_its_shrunk_example_only(run: Run) -> None:
    done = run(
        """
        from hypothesis import given, settings, strategies as st
        from gpusim.testing.machines import node

        @settings(database=None, deadline=None)
        @given(count=st.integers(1, 8))
        def test_property(make_machine, count):
            one, other = make_machine(node(count=1)), make_machine(node(count=count))
            assert len(other.list("/sys/class/kfd/kfd/topology/nodes")) < 8 + 3
        """
    )
    outcome(done, failed=1)
    shown = done.stdout.split("simulated node")[1:]
    assert len(shown) == 2
    assert [section.count("gpu ") for section in shown] == [1, 3]
    assert "count=3" in done.stdout


def test_several_nodes_are_shown_and_only_the_last_of_many_calls(run: Run, tmp_path: Path) -> None:
    done = run(
        """
        def test_many(make_machine):
            for name in ("mi355x/spx-6.14", "mi300a/spx-intree", "rdna4/rx9070", "mi300x/vf"):
                machine = make_machine(name)
                for _ in range(20):
                    machine.list("/sys/class")
            assert False
        """
    )
    outcome(done, failed=1)
    assert done.stdout.count("the last of 20 calls:") == 3
    assert done.stdout.count("  list '/sys/class' → ") == 3 * 12
    assert "mi355x/spx-6.14: kernel" not in done.stdout
    assert len(list(tmp_path.glob("gpusim-traces-*/*.jsonl"))) == 3


def test_a_test_that_passes_leaves_nothing_behind(run: Run, tmp_path: Path) -> None:
    done = run("def test_it(machine):\n    machine.list('/sys')\n")
    outcome(done, passed=1)
    assert "simulated node" not in done.stdout
    assert not list(tmp_path.glob("gpusim-traces-*"))


def test_the_workers_of_xdist_do_not_get_in_each_others_way(run: Run, tmp_path: Path) -> None:
    done = run(
        """
        @pytest.mark.parametrize("bus", ["75", "05", "65", "15", "f5", "85"])
        def test_it(machine, bus):
            machine.remove(f"0000:{bus}:00.0")
            assert False
        """,
        "-n",
        "2",
        "--gpusim-traces",
        str(tmp_path / "kept" / "here"),
        plugins=("xdist.plugin",),
    )
    outcome(done, failed=6)
    traces = sorted((tmp_path / "kept" / "here").iterdir())
    assert len(traces) == 6
    removed = [json.loads(trace.read_text().splitlines()[1])["args"][0] for trace in traces]
    assert sorted(removed) == sorted(f"0000:{bus}:00.0" for bus in ("75", "05", "65", "15", "f5", "85"))
    assert all(replay(trace.read_text()).same for trace in traces)
    assert done.stdout.count("simulated node") == 6


def test_a_directory_that_takes_no_trace_hides_no_picture(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    for named in ("a-file", "a-file/below"):
        done = run("def test_it(machine):\n    assert False\n", "--gpusim-traces", named)
        outcome(done, failed=1)
        assert "mi355x/spx-6.14: kernel" in done.stdout
        assert "the trace cannot be kept: [Errno" in done.stdout


def test_a_marker_that_makes_no_sense_is_told_in_words(run: Run) -> None:
    done = run(
        """
        @pytest.mark.machine("mi355x/spx-6.14", faults="eio")
        def test_faults(machine): ...

        @pytest.mark.machine(b"mi355x/spx-6.14")
        def test_bytes(machine): ...

        @pytest.mark.machine(7)
        def test_number(machine): ...

        @pytest.mark.machine("")
        def test_empty(machine): ...
        """
    )
    outcome(done, error=4)
    for why in (
        "faults are a Plan, not str",
        "a node is a name, a path or a NodeSpec, not bytes",
        "a node is a name, a path or a NodeSpec, not int",
        "a node is a name, a path or a NodeSpec, and the name is empty; 'mi355x/spx-6.14' is one",
    ):
        assert f"@pytest.mark.machine: {why}" in done.stdout


def test_it_works_beside_pyfakefs_in_either_order(run: Run, tmp_path: Path) -> None:
    done = run(
        """
        import os
        from pathlib import Path

        def see(machine):
            assert not os.path.exists("/sys/class")
            Path("/own").write_text("a fake file")
            assert machine.list("/sys/class/kfd/kfd/topology/nodes")
            assert "own" not in machine.list("/")

        def test_after(fs, machine):
            see(machine)

        def test_before(machine, fs):
            see(machine)

        def test_late(fs, make_machine):
            see(make_machine("mi300a/spx-intree"))
            assert False
        """,
        plugins=("pyfakefs.pytest_plugin",),
    )
    outcome(done, failed=1, passed=2)
    assert "mi300a/spx-intree: kernel" in done.stdout
    assert len(list(tmp_path.glob("gpusim-traces-*/*.jsonl"))) == 1
    assert not Path("/own").exists()


@pytest.mark.daemon
def test_pods_get_devices_from_a_plugin_process_on_the_machine(run: Run) -> None:
    done = run(
        """
        import json, time
        from gpusim.cluster.pods import Placed, container, place, pod

        @pytest.mark.machine("mi355x/qpx-6.14")
        def test_it(machine, apiserver, kubelet, plugin_process):
            plugin = plugin_process(env={"OPERATING_MODE": "partition"})
            kubelet.wait_for(lambda k: k.allocatable("amd.com/gpu") == 32, 30)
            key = "hami.io/node-amd-register"
            for _ in range(100):
                notes = apiserver.store.get("nodes", "node-1")["metadata"].get("annotations", {})
                if key in notes:
                    break
                time.sleep(0.1)
            last = json.loads(notes[key])[-1]
            apiserver.store.create("pods", pod("p", [container("c", {"amd.com/gpu": 1})]))
            place(
                apiserver.store, "p", "node-1",
                [[Placed(last["id"], last["type"], last["devmem"], last["devcore"])]], word="amd",
            )
            uid = apiserver.store.get("pods", "p")["metadata"]["uid"]
            kubelet.wait_for(lambda k: uid in k.admissions, 30)
            devices = kubelet.admissions[uid].containers["c"].devices
            assert "/dev/kfd" in [one.host_path for one in devices]
            assert any(p["cgroup"].startswith("/kubepods.slice") for p in machine.describe()["processes"])
            assert plugin.running
            assert plugin.end() == 0

        def test_its_log_is_shown(plugin_process):
            plugin = plugin_process(command=("sh", "-c", "test -S {socket} && echo {socket} $NODE_NAME"))
            plugin.process.wait()
            assert False
        """
    )
    outcome(done, failed=1, passed=1)
    assert "plugin process" in done.stdout
    assert "machine.sock node-1" in done.stdout


@pytest.mark.daemon
def test_without_the_extra_the_fixture_says_what_to_install(run: Run) -> None:
    done = run(
        """
        def test_kubelet(kubelet): ...
        def test_process(plugin_process): ...
        def test_server(apiserver):
            assert apiserver.store.get("nodes", "node-1")
        """,
        conftest="import sys\nsys.modules['grpc'] = None\n",
    )
    outcome(done, passed=1, error=2)
    assert "the fixture kubelet needs grpc: pip install 'gpusim[daemon]'" in done.stdout


def test_without_yaml_the_machine_says_what_to_install(run: Run) -> None:
    done = run(
        "def test_it(machine): ...\ndef test_other(): ...\n",
        conftest="import sys\nsys.modules['yaml'] = None\n",
    )
    outcome(done, passed=1, error=1)
    assert "needs yaml: pip install 'gpusim[sim]'" in done.stdout


# Its parts


def test_calls_from_several_threads_are_written_down_one_after_the_other() -> None:
    used = make(node(count=1))
    threads = [
        threading.Thread(target=lambda: [used.switch(FIRST, mode) for mode in ("CPX", "SPX") * 20])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(used) == 160
    assert replay(used.text()).same


def test_outside_of_a_property_every_node_is_kept_until_the_next_test() -> None:
    kept = witness.nodes()
    witness.forget()
    try:
        assert [witness.note("a"), witness.note("b")] == witness.nodes() == ["a", "b"]
    finally:
        witness.forget()
        for one in kept:
            witness.note(one)


@pytest.mark.parametrize("product", sorted(PRODUCTS))
def test_every_product_has_a_picture_of_one_line_a_gpu(product: str) -> None:
    machine = Machine(node(product, 2))
    machine.remove("0000:05:00.0")
    lines = picture(machine.describe()).splitlines()
    assert len(lines) == 3
    assert product in lines[1]
    assert "removed" in lines[2]


def test_a_partition_without_a_kfd_node_is_a_dash() -> None:
    state = Machine(node(count=1, gpu={"mode": "QPX"}, kfd_partitions="truncated")).describe()
    assert "|-]" in picture(state)


def test_a_hung_gpu_and_an_unloaded_driver_are_seen() -> None:
    machine = Machine(node(count=1))
    machine.hang(FIRST)
    assert "hung" in picture(machine.describe())
    machine.recover(FIRST)
    machine.unload()
    assert "(not loaded)" in picture(machine.describe())
    assert picture(Machine(node(count=0)).describe()).endswith("no GPU")


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"do": "read", "args": ["/a"], "answer": {"bytes": "x\n"}}, "read '/a' → 'x\\n'"),
        ({"do": "list", "args": ["/"], "answer": {"length": 9, "sha256": "0"}}, "list '/' → (9 characters)"),
        ({"do": "use", "args": [{"process": 7}], "error": {"errno": "EIO"}}, "use process 7 → EIO"),
        ({"do": "stat", "args": ["/a"], "named": {"follow": False}}, "stat '/a' follow=False"),
        ({"do": "remove", "args": ["x"], "error": {"type": "E", "why": "no GPU"}}, "remove 'x' → no GPU"),
    ],
)  # fmt: skip
def test_a_call_is_told_in_words(entry: dict[str, Any], text: str) -> None:
    assert words(entry) == text
