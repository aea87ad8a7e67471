"""The monitor's shell: addresses, what it remembers of the API server, and HTTP answers in both formats."""

from __future__ import annotations

import asyncio
import http.client
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from devplugin import scrape
from devplugin.hami import Node, Pod, Vocabulary
from devplugin.kube import Forbidden, KubeError, NotFound, Unavailable
from devplugin.metered import Measured, Sample, Series, Watched
from devplugin.monitor import EVERY, KEPT, Look, Records, Start
from devplugin.quantity import quantity
from devplugin.scrape import NodeCollector, Page, Scraped, bind
from devplugin.settings import SettingsError, bind_address

KEY = "toy.io/register"
HEAT = Series("toy_heat_celsius", 'How "hot"\nit is', ("node", "thing"))
SIZE = Series("toy_size_total_bytes", "How large", ("node",))
OPENMETRICS = "application/openmetrics-text"


# The address


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (":9394", ("", 9394)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9394", ("::1", 9394)),
        ("[::]:1", ("::", 1)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
        ("node.example:80", ("node.example", 80)),
    ],
)
def test_gos_forms_of_an_address_are_taken(text: str, where: tuple[str, int]) -> None:
    assert bind_address(text) == where


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9394",
        ":",
        "host:",
        ":http",
        ":65536",
        ":-1",
        ":+1",
        ":٣",
        "::1:80",
        "[::1]",
        "[1.2.3.4]:80",
        "a b:1",
    ],
)
def test_other_forms_are_refused_by_name_and_value(text: str) -> None:
    with pytest.raises(SettingsError, match=r"-metrics_bind_address='.*expected HOST:PORT"):
        bind_address(text)


@pytest.mark.parametrize("text", ["127.0.0.1:0", "[::1]:0", ":0"])
def test_a_free_port_is_taken_and_one_in_use_is_refused(text: str) -> None:
    with bind(text) as listening:
        port = listening.getsockname()[1]
        assert port > 0
        with pytest.raises(SettingsError, match="in use"):
            bind(text[: -len("0")] + str(port))


# Quantities


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        ("196k", 196_000),
        ("4Ki", 4096),
        ("1e3", 1000),
        ("1E", 10**18),
        ("5m", Fraction(1, 200)),
    ],
)
def test_a_quantity_is_exact(text: str, number: int | Fraction) -> None:
    assert quantity(text) == number


@given(st.integers(0, 10**18))
def test_whole_numbers_come_back(number: int) -> None:
    assert quantity(str(number)) == number
    assert quantity(f"{number}Mi") == number << 20


@given(st.text(max_size=8))
def test_what_is_no_quantity_is_none_and_never_an_error(text: str) -> None:
    found = quantity(text)
    assert found is None or text.strip("+-.eE").isascii()


# What the API server said


@dataclass
class Cluster:
    """Answers or errors, one for each question."""

    node_answer: Node | KubeError = field(default_factory=lambda: Node("n", "u", {KEY: "registered"}))
    pods_answer: tuple[Pod, ...] | KubeError = ()

    async def node(self, name: str) -> Node:
        if isinstance(self.node_answer, KubeError):
            raise self.node_answer
        return self.node_answer

    async def pods_on(self, node: str) -> tuple[Pod, ...]:
        if isinstance(self.pods_answer, KubeError):
            raise self.pods_answer
        return self.pods_answer


POD = Pod("d", "p", "u", "n", "Running", container_ids={"abc": "main"})


class Remembering:
    """Records on a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cluster = Cluster(pods_answer=(POD,))
        self.records = Records("n", KEY, clock=lambda: self.now)

    def refresh(self) -> Watched:
        asyncio.run(self.records.refresh(self.cluster))  # type: ignore[arg-type]
        return self.watched()

    def watched(self) -> Watched:
        return self.records.watched(cgroup_root="/c", drm_root="/d")


def test_before_the_first_answer_everything_is_missing() -> None:
    watched = Remembering().watched()
    assert (watched.registration, watched.pods) == (None, ())
    assert watched.problems == ("node n: not read yet", "pods: not listed yet")


def test_an_answer_is_complete() -> None:
    watched = Remembering().refresh()
    assert watched == Watched("n", "registered", (POD,), (), "/c", "/d")


def test_pods_without_started_containers_are_not_kept() -> None:
    rig = Remembering()
    rig.cluster.pods_answer = (Pod("d", "waiting", "u2", "n", "Pending"), POD)
    assert rig.refresh().pods == (POD,)


def test_the_last_answer_serves_for_a_minute_and_the_failure_is_told_at_once() -> None:
    rig = Remembering()
    rig.refresh()
    rig.cluster = Cluster(Unavailable("no answer"), Unavailable("no answer"))
    rig.now += KEPT
    watched = rig.refresh()
    assert (watched.registration, watched.pods) == ("registered", (POD,))
    assert watched.problems == ("node n: no answer", "pods: no answer")
    rig.now += 0.1
    assert (rig.watched().registration, rig.watched().pods) == (None, ())
    rig.cluster = Cluster(pods_answer=(POD,))
    assert rig.refresh().problems == ()


def test_a_pod_that_left_and_a_node_that_was_deleted_are_forgotten_at_once() -> None:
    rig = Remembering()
    rig.refresh()
    rig.cluster = Cluster(NotFound("no such node"), ())
    watched = rig.refresh()
    assert (watched.registration, watched.pods) == (None, ())
    assert watched.problems == ("node n: no such node",)


def test_a_node_without_the_annotation_is_read_and_has_none() -> None:
    rig = Remembering()
    rig.cluster.node_answer = Node("n", "u")
    watched = rig.refresh()
    assert (watched.registration, watched.problems) == (None, ())


def test_one_failure_is_said_once_and_again_after_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    rig = Remembering()
    with caplog.at_level(logging.WARNING):
        for answer in (Forbidden("grant list"), Forbidden("grant list"), (), Forbidden("grant list")):
            rig.cluster.pods_answer = answer
            rig.refresh()
    assert [record.getMessage() for record in caplog.records] == ["pods: grant list"] * 2


def test_what_is_said_of_staleness_bounds_it() -> None:
    assert EVERY < KEPT <= 60


# One look


class Toy:
    """A vendor whose values a test sets."""

    name = "toy"

    def __init__(self) -> None:
        self.measured = Measured((Sample(HEAT, ("n", 'a"\\\n'), 42.5), Sample(SIZE, ("n",), 2**40)))
        self.error: BaseException | None = None
        self.hold: threading.Event | None = None

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(KEY, "a", "b")

    def series(self) -> tuple[Series, ...]:
        return (HEAT, SIZE, Series("toy_nothing", "Never there", ()))

    def samples(self, host: Any, watched: Watched) -> Measured:
        if self.hold is not None:
            self.hold.wait(10)
        if self.error is not None:
            raise self.error
        return self.measured


def look(toy: Toy) -> Look:
    start = Start(toy, None, "n", connect=lambda: None)  # type: ignore[arg-type]
    return Look(start, Records("n", KEY))


def test_a_problem_is_logged_when_it_appears_and_not_what_the_records_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    toy = Toy()
    seen = look(toy)
    with caplog.at_level(logging.WARNING):
        for problems in (("a",), ("a", "b"), ("b",), ("a", "pods: not listed yet")):
            toy.measured = Measured((), problems)
            seen()
    assert [record.getMessage() for record in caplog.records] == ["a", "b", "a"]


# HTTP


@contextmanager
def serving(toy: Toy) -> Iterator[Any]:
    scraped = Scraped(
        bind("127.0.0.1:0"),
        Page("vgpu-monitor", "GPUs of node n<ode>"),
        NodeCollector(toy.series(), look(toy)),
    )
    port = int(scraped.url.rpartition(":")[2])

    def ask(
        path: str = "/metrics", method: str = "GET", **headers: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    try:
        yield ask
    finally:
        scraped.close()


def test_the_default_is_the_text_format_and_its_parser_reads_it() -> None:
    with serving(Toy()) as ask:
        status, headers, body = ask()
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = {f.name: f for f in parser.text_string_to_metric_families(body.decode())}
    assert set(families) == {"toy_heat_celsius", "toy_size_total_bytes"}, "empty families are left out"
    (heat,) = families["toy_heat_celsius"].samples
    assert (heat.labels, heat.value) == ({"node": "n", "thing": 'a"\\\n'}, 42.5)
    assert {f.type for f in families.values()} == {"gauge"}


@pytest.mark.parametrize(
    "accept",
    [
        OPENMETRICS,
        f"{OPENMETRICS};version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        f"{OPENMETRICS}; version=0.0.1, {OPENMETRICS}; version=1.0.0; charset=utf-8",
    ],
)
def test_openmetrics_is_given_to_who_asks_and_its_parser_reads_it(accept: str) -> None:
    with serving(Toy()) as ask:
        status, headers, body = ask(Accept=accept)
    assert status == 200
    assert headers["Content-Type"].startswith(OPENMETRICS)
    assert body.endswith(b"# EOF\n")
    families = {f.name: f for f in openmetrics_parser.text_string_to_metric_families(body.decode())}
    assert families["toy_size_total_bytes"].samples[0].value == 2**40


@pytest.mark.parametrize(
    "accept",
    ["*/*", "text/html", f"{OPENMETRICS};version=x", ";;,=", f"{OPENMETRICS};version=", "é"]
    + [
        f"{kind};version={version};escaping={escaping}"
        for kind in (OPENMETRICS, "text/plain")
        for version in ("1.0.0", "2.0.0", "9.9", "1..0")
        for escaping in ("allow-utf-8", "dots", "x")
    ],
)
def test_whatever_else_is_accepted_gets_the_text_format_or_openmetrics_and_never_an_error(
    accept: str,
) -> None:
    with serving(Toy()) as ask:
        status, headers, body = ask(Accept=accept)
    assert status == 200
    assert headers["Content-Type"].startswith(OPENMETRICS) is body.endswith(b"# EOF\n")


def test_the_other_pages_are_a_landing_page_and_health_and_all_else_is_404() -> None:
    with serving(Toy()) as ask:
        assert ask("/healthz")[::2] == (200, b"ok\n")
        assert ask("/healthz?verbose")[0] == 200
        status, headers, body = ask("/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert b'href="metrics"' in body
        assert b"n&lt;ode&gt;" in body
        for path in ("/metrics/", "/metricsx", "/../etc/passwd", "/favicon.ico", "/healthz/x"):
            assert ask(path)[0] == 404, path


def test_only_get_and_head_are_answered() -> None:
    with serving(Toy()) as ask:
        status, headers, body = ask(method="HEAD")
        assert (status, body) == (200, b"")
        assert int(headers["Content-Length"]) > 0
        for method in ("POST", "PUT", "DELETE"):
            status, headers, _ = ask(method=method)
            assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_a_look_that_fails_is_a_500_and_the_next_scrape_is_fine(caplog: pytest.LogCaptureFixture) -> None:
    toy = Toy()
    with serving(toy) as ask:
        toy.error = RuntimeError("no machine")
        assert ask()[0] == 500
        assert ask("/healthz")[0] == 200
        toy.error = None
        assert ask()[0] == 200
    assert "no machine" in caplog.text


def test_a_file_that_does_not_answer_is_a_503_and_never_holds_up_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scrape, "PATIENCE", 0.2)
    toy = Toy()
    with serving(toy) as ask:
        toy.hold = threading.Event()
        assert ask()[0] == 503
        assert ask()[0] == 503, "a second scrape waits for the first, and not for ever"
        assert ask("/healthz")[0] == 200
        hold, toy.hold = toy.hold, None
        hold.set()
        assert ask()[0] == 200


def test_many_clients_at_once_all_get_whole_answers() -> None:
    with serving(Toy()) as ask:
        _, _, expected = ask()
        answers: list[bytes] = []
        threads = [threading.Thread(target=lambda: answers.append(ask()[2])) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [expected] * 16
