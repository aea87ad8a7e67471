"""The work before anything is offered: when the pods are asked for, and that nothing of it ends the start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from devplugin.answers import Effect, NodeEvent, Prepared
from devplugin.daemon.prepare import Preparer
from devplugin.hami import Pod

from .storeapi import DictHost
from .toyplugin import Inventory, Settings, Toy

POD = Pod("ns", "p", "uid", "n1", "Running")
EVENT = NodeEvent("Warning", "Busy", "in use")


class Working(Toy):
    def __init__(self, wanted: bool = True, result: Any = None) -> None:
        self.wanted, self.result = wanted, result
        self.got: list[Sequence[Pod]] = []

    def prepares(self, inventory: Any, settings: Any) -> bool:
        return self.wanted

    def prepare(self, host: Any, inventory: Any, settings: Any, pods: Sequence[Pod]) -> Prepared:
        self.got.append(pods)
        if self.result is None:
            raise RuntimeError("boom")
        return self.result


def run(vendor: Working, times: int = 1) -> tuple[list[bool], list[Effect], int]:
    said: list[Effect] = []
    listed = 0

    async def pods() -> Sequence[Pod]:
        nonlocal listed
        listed += 1
        return (POD,)

    async def go() -> list[bool]:
        with ThreadPoolExecutor(1) as worker:
            prepare: Preparer[Any, Any] = Preparer(
                vendor, Settings(), host=DictHost({}), worker=worker, pods=pods, say=said.extend
            )
            return [await prepare(Inventory()) for _ in range(times)]

    return asyncio.run(go()), said, listed


def test_without_work_the_api_server_is_not_asked() -> None:
    assert run(Working(wanted=False)) == ([False], [], 0)


def test_the_work_gets_the_nodes_pods_and_is_done_once() -> None:
    vendor = Working(result=Prepared(changed=True, effects=(EVENT,)))
    assert run(vendor, times=3) == ([True, False, False], [EVENT], 1)
    assert vendor.got == [(POD,)]


def test_every_result_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run(Working(result=Prepared(done=("a switched",), troubles=("b busy", "c refused"))))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "a switched"),
        ("WARNING", "b busy"),
        ("WARNING", "c refused"),
    ]


def test_work_that_breaks_is_logged_and_the_node_looked_at_again(caplog: pytest.LogCaptureFixture) -> None:
    assert run(Working(), times=2)[0] == [True, False]
    assert any("offered as it is" in record.getMessage() for record in caplog.records)
