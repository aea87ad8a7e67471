"""What the daemon says of itself, and that asking for it is the only thing that loads the means to."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from devplugin.answers import Refused, Why
from devplugin.daemon.own import REASONS, STILL, Tally, serve
from devplugin.kube import Unavailable
from devplugin.settings import SettingsError
from gpusim.cluster.pods import Placed

from .rig import Plugin, Rig, until
from .toyplugin import RESOURCE

pytestmark = pytest.mark.daemon


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        made.command = (*made.command, "-root", str(made.root))
        made.things(a="ok 0", b="ok 1")
        yield made


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def values(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def address(plugin: Plugin) -> str:
    def told() -> str | None:
        found = [re.search(r"serving (http://\S+)/metrics", line["event"]) for line in plugin.lines()]
        return next((match[1] for match in found if match), None)

    url: str = until(told)
    return url


def test_what_the_daemon_did_can_be_scraped(rig: Rig) -> None:
    rig.kubelet.start()
    plugin = rig.start("-metrics_bind_address", "127.0.0.1:0")
    rig.kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 8)
    url = address(plugin)
    assert get(f"{url}/healthz") == (200, "ok\n")
    until(lambda: "deviceplugin_registration_age_seconds" in values(get(f"{url}/metrics")[1]))
    for name, cores in (("good", 5), ("greedy", 17)):
        rig.kubelet.admit(rig.schedule(name, [Placed("b", "Toy", 1, cores)], resource=RESOURCE, word="toy"))
    found = values(get(f"{url}/metrics")[1])
    assert 0 <= found["deviceplugin_registration_age_seconds"] < 30
    assert found['deviceplugin_allocations_total{result="granted"}'] == 1
    assert found['deviceplugin_allocations_total{result="refused"}'] == 1
    assert found['deviceplugin_allocations_total{result="unavailable"}'] == 0
    assert sum(value for name, value in found.items() if name.startswith("deviceplugin_refusals_total")) == 1
    assert found["deviceplugin_allocate_lock_wait_seconds_count"] == 2
    assert found["deviceplugin_starts_total"] == 1
    assert "toy" not in get(f"{url}/")[1].lower()


def test_it_answers_before_the_api_server_does(rig: Rig) -> None:
    rig.server.down()
    plugin = rig.start("-metrics_bind_address=127.0.0.1:0")
    url = address(plugin)
    assert get(f"{url}/healthz")[0] == 200
    assert "deviceplugin_registration_age_seconds" not in get(f"{url}/metrics")[1]
    assert plugin.end() == 0


def test_an_address_that_cannot_be_had_ends_it_with_one_line_and_1(rig: Rig) -> None:
    for wrong in ("9395", "127.0.0.1:99999", "192.0.2.1:0"):
        plugin = rig.start("-metrics_bind_address", wrong)
        assert plugin.process.wait(10) == 1
        (line,) = plugin.log.read_text().splitlines()
        assert "-metrics_bind_address" in line


def test_without_the_flag_nothing_listens_and_nothing_of_prometheus_is_loaded(rig: Rig) -> None:
    rig.kubelet.start()
    plugin = rig.start()
    rig.kubelet.wait_for(lambda k: k.allocatable(RESOURCE) == 8)
    fds = [fd.readlink().name for fd in Path(f"/proc/{plugin.process.pid}/fd").iterdir()]
    rows = [row.split() for row in Path(f"/proc/{plugin.process.pid}/net/tcp").read_text().splitlines()]
    listening = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    assert listening  # at least the API server of this test
    assert listening.isdisjoint(fds)
    loads = "import sys; import devplugin.daemon.main; print('prometheus_client' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


def test_every_reason_is_there_from_the_beginning_and_there_is_no_other() -> None:
    tally = Tally()
    assert get_args(Why) == REASONS
    (refusals,) = [family for family in tally.families() if family.name == "deviceplugin_refusals"]
    assert {sample.labels["reason"] for sample in refusals.samples} == set(REASONS)


def test_each_way_an_allocate_can_end_is_counted_and_passed_on() -> None:
    tally = Tally()

    async def ending(error: Exception | None) -> str:
        if error is not None:
            raise error
        return "edits"

    assert asyncio.run(tally.counted(ending(None))) == "edits"
    for error in (Refused("no", why="image"), Unavailable("away"), KeyError("bug")):
        with pytest.raises(type(error)):
            asyncio.run(tally.counted(ending(error)))
    assert dict(tally.results) == {"granted": 1, "refused": 1, "unavailable": 1, "error": 1}
    assert dict(tally.refusals) == {"image": 1}


def test_a_loop_that_stands_still_fails_the_health_check_and_one_that_goes_on_passes_again() -> None:
    now = [100.0]
    tally = Tally(clock=lambda: now[0])
    tally.beaten = 100.0
    own = serve("127.0.0.1:0", "n", tally)
    try:
        assert get(f"{own.url}/healthz")[0] == 200
        now[0] += STILL + 1
        assert get(f"{own.url}/healthz") == (503, "the event loop stands still since 16 s\n")
        tally.beaten = now[0]
        assert get(f"{own.url}/healthz")[0] == 200
    finally:
        own.close()
    with pytest.raises(SettingsError):
        serve("nowhere", "n", tally)
