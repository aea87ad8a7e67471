"""The labeller's passes against a node that is a dict: when it asks, what it patches, how it fails."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from devplugin.amd.labelfacts import Agent, LabelFacts, read_label_facts
from devplugin.amd.labels import labels
from devplugin.kube import Unavailable
from devplugin.labeller import RECONCILE_EVERY, Labeller
from devplugin.launch import node_labeller
from gpusim.fixture import load
from gpusim.machine import Machine

from .small_nodes import machine as small

MI300X = Agent(gfx=90402, device_id=0x74A1, simds=1216, cus=304, bank_bytes=206141652992)
ONE = LabelFacts(agents=(MI300X,))
TWO = LabelFacts(agents=(MI300X, MI300X))


class NodeApi:
    """One node's labels, and what was asked of it."""

    def __init__(self, **have: str) -> None:
        self.have = {name.replace("__", "/").replace("_", "."): value for name, value in have.items()}
        self.asked: list[str] = []
        self.failing: Callable[[str], bool] = lambda verb: False

    async def node_labels(self, name: str) -> Mapping[str, str]:
        self._ask("get", name)
        return dict(self.have)

    async def patch_node_labels(self, name: str, labels: Mapping[str, str | None]) -> None:
        self._ask("patch", name)
        for label, value in labels.items():
            if value is None:
                self.have.pop(label, None)
            else:
                self.have[label] = value

    def _ask(self, verb: str, name: str) -> None:
        assert name == "node-a"
        self.asked.append(verb)
        if self.failing(verb):
            raise Unavailable(f"{verb} nodes: no answer")


class Bench:
    """A labeller whose node is what `facts` says."""

    def __init__(self, api: NodeApi, facts: LabelFacts = ONE) -> None:
        self.api, self.facts = api, facts
        self.labeller = Labeller(api, "node-a", ["vram", "cu-count"], lambda: self.facts)

    def step(self) -> bool:
        return asyncio.run(self.labeller.pass_once())


def test_the_first_pass_makes_the_labels_and_removes_old_ones_of_ours() -> None:
    api = NodeApi(amd_com__gpu_vram="64G", beta_amd_com__gpu_vram_64G="8", amd_com__cpu="x", zone="here")
    assert Bench(api).step()
    assert api.have == {
        "amd.com/cpu": "x",
        "zone": "here",
        "amd.com/gpu.vram": "192G",
        "beta.amd.com/gpu.vram": "192G",
        "beta.amd.com/gpu.vram.192G": "1",
        "amd.com/gpu.cu-count": "304",
        "beta.amd.com/gpu.cu-count": "304",
        "beta.amd.com/gpu.cu-count.304": "1",
    }


def test_a_node_that_is_right_already_is_read_and_not_patched() -> None:
    api = NodeApi()
    api.have = labels(ONE, ["vram", "cu-count"])
    assert not Bench(api).step()
    assert api.asked == ["get"]


def test_nothing_is_asked_until_something_changes() -> None:
    bench = Bench(NodeApi())
    bench.step()
    assert not any(bench.step() for _ in range(3))
    assert bench.api.asked == ["get", "patch"]
    bench.facts = TWO
    assert bench.step()
    assert bench.api.asked == ["get", "patch"] * 2
    assert bench.api.have["beta.amd.com/gpu.vram.192G"] == "2"
    bench.facts = LabelFacts()
    assert bench.step()
    assert bench.api.have == {}


def test_what_others_did_to_our_labels_is_put_right_from_time_to_time() -> None:
    bench = Bench(NodeApi())
    bench.step()
    bench.api.have["amd.com/gpu.vram"] = "1T"
    assert [bench.step() for _ in range(RECONCILE_EVERY)] == [False] * (RECONCILE_EVERY - 1) + [True]
    assert bench.api.have["amd.com/gpu.vram"] == "192G"


@pytest.mark.parametrize("verb", ["get", "patch"])
def test_a_pass_that_failed_is_made_again_though_the_node_did_not_change(verb: str) -> None:
    bench = Bench(NodeApi())
    bench.step()
    bench.facts = TWO
    bench.api.failing = lambda asked: asked == verb
    with pytest.raises(Unavailable):
        bench.step()
    bench.facts = ONE  # back to what was held before the failed pass: it may have been half done
    bench.api.failing = lambda asked: False
    bench.api.have["beta.amd.com/gpu.vram.192G"] = "2"
    assert bench.step()
    assert bench.api.have["beta.amd.com/gpu.vram.192G"] == "1"


def test_it_goes_on_after_every_failure_and_says_each_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(NodeApi())
    fails = [True, True, True]
    bench.api.failing = lambda verb: bool(fails) and fails.pop()

    async def run() -> None:
        work = asyncio.create_task(bench.labeller.run(poll=0.001))
        while not bench.api.have:
            await asyncio.sleep(0.001)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    with caplog.at_level("WARNING"):
        asyncio.run(run())
    assert [record.message for record in caplog.records] == ["get nodes: no answer; trying again"]


def test_a_look_that_breaks_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(NodeApi())
    broken = [True]

    def look() -> LabelFacts:
        if broken:
            broken.pop()
            raise RuntimeError("the node is on fire")
        return ONE

    labeller = Labeller(bench.api, "node-a", ["vram"], look)

    async def run() -> None:
        work = asyncio.create_task(labeller.run(poll=0.001))
        while not bench.api.have:
            await asyncio.sleep(0.001)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(run())
    assert "the node is on fire" in caplog.text


def test_notes_of_a_node_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(NodeApi(), LabelFacts(notes=("a GPU is hidden",)))
    with caplog.at_level("WARNING"):
        bench.step()
        bench.step()
    assert [record.message for record in caplog.records] == ["a GPU is hidden"]


def test_labels_follow_a_switch_a_hot_removal_and_its_return() -> None:
    machine = Machine(load("mi355x/spx-6.14"))
    api = NodeApi()
    labeller = Labeller(
        api, "node-a", ["vram", "compute-memory-partition"], lambda: read_label_facts(machine)
    )

    def step() -> dict[str, str]:
        asyncio.run(labeller.pass_once())
        return {key.removeprefix("amd.com/gpu."): v for key, v in api.have.items() if key[0] == "a"}

    assert step() == {"vram": "288G", "compute-memory-partition": "spx_nps1"}
    machine.switch("0000:05:00.0", "QPX")
    assert step() == {"vram.288G": "7", "vram.72G": "4"}
    for bdf in list(machine.driver.gpus):
        machine.switch(bdf, "QPX")
    assert step() == {"vram": "72G", "compute-memory-partition": "qpx_nps1"}
    machine.remove("0000:05:00.0")
    assert step() == {"vram": "72G", "compute-memory-partition": "qpx_nps1"}
    assert api.have["beta.amd.com/gpu.vram.72G"] == "28"
    machine.add("0000:05:00.0")
    assert step() == {"vram.72G": "28", "vram.288G": "1"}, "it probes in SPX"


# ------------------------------------------------------------------ the command line


def dry_run(*words: str, host: Any = None) -> tuple[int, Any]:
    out = io.StringIO()
    from devplugin import labeller

    status = labeller.main(["-dry_run", *words], env={}, find=lambda _: host or small(), out=out)
    return status, json.loads(out.getvalue())


def test_the_dry_run_prints_the_label_map_and_needs_no_node_and_no_cluster() -> None:
    machine = Machine(load("rdna4/rx9070-igpu"))
    status, told = dry_run("-vram", "--family=true", "-cu-count=false", host=machine)
    assert status == 0
    assert told == labels(read_label_facts(machine), ["vram", "family"])
    assert list(told) == sorted(told)


def test_without_a_generator_there_are_no_labels() -> None:
    assert dry_run(host=Machine(load("rdna4/rx9070-igpu"))) == (0, {})


def test_firmware_is_taken_and_makes_no_labels() -> None:
    assert dry_run("-firmware", host=Machine(load("rdna4/rx9070-igpu"))) == (0, {})


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["-nonsense"], 2, "flag provided but not defined: '-nonsense'"),
        (["-vram", "true"], 2, "unexpected argument 'true'"),
        (["-vram=maybe"], 2, "invalid boolean value"),
        (["-poll=0"], 1, "-poll=0: must be 1 or more"),
        (["-vram"], 1, "DS_NODE_NAME is not set"),
        (["-dry_run", "-root", "/no/such"], 1, "-root='/no/such': "),
        (["-dry_run", "-simulate", "no/such"], 1, "-simulate='no/such': "),
    ],
)
def test_what_is_wrong_is_one_line_or_usage(
    words: list[str],
    status: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DS_NODE_NAME", raising=False)
    try:
        assert node_labeller(words) == status
    except SystemExit as left:
        assert left.code == status == 2
    told = capsys.readouterr().err
    assert told.startswith("node-labeller: ")
    assert said in told
    assert status == 2 or told.count("\n") == 1


def test_help_says_every_property_and_that_firmware_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        node_labeller(["-help"])
    assert left.value.code == 0
    told = capsys.readouterr().out
    for word in ("-vram", "-firmware", "-compute-memory-partition", "DS_NODE_NAME", "KUBECONFIG", "ioctls"):
        assert word in told
