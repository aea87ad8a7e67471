"""What is told of NPUs that get ill or go, and what is looked at before a node serves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.answers import NodeEvent
from devplugin.ascend.events import MISSING, RECOVERED, UNHEALTHY, Seen, transitions
from devplugin.ascend.inventory import Inventory, Npu
from devplugin.ascend.ready import checks
from devplugin.preflight import failed

from .nodes import chosen, look, node

DOWN = "dcmi module initialize failed. ret is -8005\n"


def npu(number: int, reason: str = "") -> Npu:
    return Npu(f"U{number}", number, number, number, 0, "910B4", not reason, reason)


def test_the_first_registration_of_a_life_is_a_baseline() -> None:
    events, seen = transitions(Inventory(npus=(npu(0), npu(1, "Alarm"))), None)
    assert events == ()
    assert transitions(Inventory(npus=(npu(0), npu(1, "Alarm"))), seen)[0] == ()


def test_what_became_of_each_card_is_said_once() -> None:
    seen: Seen | None = None
    told = []
    for npus in [
        (npu(0), npu(1)),
        (npu(0), npu(1, "Alarm")),
        (npu(0), npu(1, "Critical")),
        (npu(0),),
        (npu(0),),
        (npu(0), npu(1)),
        (npu(0), npu(1), npu(2, "Warning")),
    ]:
        events, seen = transitions(Inventory(npus=npus), seen)
        told.append(events)
    assert told == [
        (),
        (NodeEvent("Warning", UNHEALTHY, "NPU 1 chip 0 (U1) is unhealthy: npu-smi says 'Alarm'"),),
        (),
        (NodeEvent("Warning", MISSING, "NPU 1 chip 0 (U1) is missing"),),
        (),
        (NodeEvent("Normal", RECOVERED, "NPU 1 chip 0 (U1) is healthy again"),),
        (NodeEvent("Warning", UNHEALTHY, "NPU 2 chip 0 (U2) is unhealthy: npu-smi says 'Warning'"),),
    ]


def test_a_look_that_failed_is_no_news_of_any_card() -> None:
    inventory = Inventory(npus=(npu(0), npu(1)))
    _, seen = transitions(inventory, None)
    assert transitions(replace(inventory, trouble=DOWN), seen)[0] == ()


states = st.dictionaries(st.integers(0, 3), st.sampled_from(["", "Alarm", "Warning"]), max_size=4)


@given(st.lists(states, max_size=8))
def test_every_change_of_a_cards_state_is_one_event(history: list[dict[int, str]]) -> None:
    seen: Seen | None = None
    before: dict[int, str] | None = None
    for step in history:
        events, seen = transitions(
            Inventory(npus=tuple(npu(n, why) for n, why in sorted(step.items()))), seen
        )
        now = {n: "ill" if why else "healthy" for n, why in step.items()}
        if before is None:
            assert events == ()
            before = now
            continue
        after = {n: now.get(n, "missing") for n in before.keys() | now.keys()}
        expected = sum(before.get(n, "healthy") != state for n, state in after.items())
        assert len(events) == expected
        before = after


def test_a_healthy_template_node_is_ready() -> None:
    machine = node("910b4")
    found = checks(machine, look(machine), chosen())
    assert not failed(found)
    assert {check.verdict for check in found} == {"ok"}
    assert [check.name for check in found][:2] == ["npu-smi", "driver"]


def test_a_soft_node_also_needs_the_runtime_library_in_the_image() -> None:
    machine, settings = node("910b4"), chosen(soft=True, assets_path="/assets")
    missing = [c for c in checks(machine, look(machine, settings), settings) if c.verdict == "missing"]
    assert [check.found for check in missing] == [
        "/assets/libvnpu.so: ENOENT",
        "/assets/ld.so.preload: ENOENT",
    ]
    assert all("HAMI_VNPU_ASSETS_PATH" in check.remedy for check in missing)
    machine.mkdir("/assets")
    machine.put("/assets/libvnpu.so", b"x")
    machine.put("/assets/ld.so.preload", b"x")
    assert not failed(checks(machine, look(machine, settings), settings))


def test_a_driver_that_is_down_is_missing_with_its_words() -> None:
    machine = node("910b4")
    machine.npu_smi_fails("", DOWN, 0)
    first = checks(machine, look(machine), chosen())[0]
    assert first.verdict == "missing"
    assert "-8005" in first.found


def test_ill_and_left_out_cards_are_warnings() -> None:
    machine = node("910b4-mixed-health")
    settings = chosen(filtered_cards=frozenset({0}))
    found = checks(machine, look(machine, settings), settings)
    assert not failed(found)
    warned = [check.name for check in found if check.verdict == "warning"]
    assert len(warned) == 5
    assert warned[0].startswith("NPU 0 chip 0 (")
    assert warned[1:] == [f"NPU {card} chip 0" for card in (1, 3, 5, 7)]


@pytest.mark.parametrize(
    ("path", "verdict"),
    [("/dev/davinci_manager", "missing"), ("/dev/davinci3", "missing"), ("/dev/hisi_hdc", "warning")],
)
def test_device_nodes_are_looked_at_and_not_opened(path: str, verdict: str) -> None:
    machine = node("910b4")

    class Without:
        def stat(self, asked: str, *, follow: bool = True) -> object:
            if asked == path:
                raise FileNotFoundError(2, "gone", asked)
            return machine.stat(asked, follow=follow)

        def __getattr__(self, name: str) -> object:
            assert name != "probe"
            return getattr(machine, name)

    host = Without()
    found = checks(host, look(machine), chosen())  # type: ignore[arg-type]
    assert [(c.verdict, c.found) for c in found if c.verdict != "ok"] == [(verdict, f"{path}: ENOENT")]
