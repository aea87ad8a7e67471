"""Measured values over HTTP, as Prometheus asks for them.

``/metrics`` in the text format or, when asked by Accept, in OpenMetrics; ``/healthz``; a page at ``/``.
Only own series: there are none of the process itself (amd.md 11). One thread looks at the node, whoever
asks, because a sysfs read may block for long; others wait for their turn, and not for ever.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from devplugin.metered import Measured, Series
from devplugin.settings import SettingsError, bind_address, shown

log = logging.getLogger(__name__)

PATIENCE = 9.0
"""Seconds a scrape may wait; Prometheus itself gives up after ten."""
IDLE = 75.0
"""Seconds a silent connection is kept: longer than the usual interval of one minute."""

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body><h1>{title}</h1>
<p>{about}</p>
<ul><li><a href="metrics">metrics</a></li><li><a href="healthz">healthz</a></li></ul>
</body></html>
"""


@dataclass(frozen=True, slots=True)
class Page:
    """What stands at ``/``."""

    title: str
    """The program's name; also what the server calls itself."""
    about: str


class NodeCollector(Collector):
    """The values of one look, in families; empty families are left out."""

    def __init__(self, series: tuple[Series, ...], look: Callable[[], Measured]) -> None:
        self._series = series
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """Look now."""
        families = {
            one.name: GaugeMetricFamily(one.name, one.help, labels=one.labels) for one in self._series
        }
        for sample in self._look().samples:
            families[sample.series.name].add_metric(sample.labels, sample.value)
        return (family for family in families.values() if family.samples)


def bind(text: str, flag: str = "metrics_bind_address") -> socket.socket:
    """A listening socket; without a host, of all addresses of the machine, IPv4 and IPv6.

    Args:
        text: where.
        flag: whose value it is.

    Raises:
        SettingsError: no address, or it cannot be had.
    """
    host, port = bind_address(text, flag)
    try:
        if not host:
            if socket.has_dualstack_ipv6():
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
            return socket.create_server(("", port))
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family)
    except OSError as error:
        raise SettingsError(f"-{flag}={shown(text)}: {error.strerror or error}") from error


class Scraped:
    """The HTTP server: answers from the moment it is made.

    Args:
        listening: from `bind`; closed by `close`.
        page: for people who open the address.
        collector: what is exported.
        trouble: why the process should be restarted, empty when it should not; it answers ``/healthz``.
    """

    def __init__(
        self,
        listening: socket.socket,
        page: Page,
        collector: Collector,
        trouble: Callable[[], str] = lambda: "",
    ) -> None:
        self.trouble = trouble
        self._collector = collector
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="host")
        self._server = _Server(listening, page, self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="http", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._server.socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Body and content type, in the format that an Accept header prefers.

        Raises:
            TimeoutError: an earlier look, or this one, still waits for a file.
        """
        try:
            encode, content_type = choose_encoder(accept)
        except Exception:  # the library stumbles over a version that is no number
            encode, content_type = choose_encoder("")
        looking = self._worker.submit(encode, self._collector)
        try:
            return looking.result(PATIENCE), content_type
        except TimeoutError:
            looking.cancel()
            raise

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._worker.shutdown(wait=False, cancel_futures=True)


class _Server(ThreadingHTTPServer):
    """A thread a connection, on a socket that listens already."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, page: Page, scraped: Scraped) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.page = _PAGE.format(title=escape(page.title), about=escape(page.about)).encode()
        self.title = page.title
        self.scraped = scraped

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that broke is the client's affair."""
        log.debug("connection from %s broke", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD."""

    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = IDLE
    disable_nagle_algorithm = True  # headers and body are two writes

    def do_GET(self) -> None:
        """One of three pages, or 404."""
        path = urlsplit(self.path).path
        if path == "/metrics":
            self._metrics()
        elif path == "/healthz":
            self._health()
        elif path == "/":
            self._answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"not found: there are /metrics, /healthz and /\n")

    do_HEAD = do_GET  # noqa: N815 - the base class's name, and so below

    def version_string(self) -> str:
        """The ``Server`` header."""
        return self.server.title

    def _health(self) -> None:
        if trouble := self.server.scraped.trouble():
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{trouble}\n".encode())
        else:
            self._answer(HTTPStatus.OK, b"ok\n")

    def _metrics(self) -> None:
        try:
            body, content_type = self.server.scraped.exposition(self.headers.get("Accept", ""))
        except TimeoutError:
            log.warning("scrape: a file of the node did not answer within %g s", PATIENCE)
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"a file of the node does not answer\n")
        except Exception:
            log.exception("scrape failed")
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"the node cannot be looked at, see the log\n")
        else:
            self._answer(HTTPStatus.OK, body, content_type)

    def _refuse(self) -> None:
        self.close_connection = True  # its body is not read
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"GET or HEAD\n", allow="GET, HEAD")

    do_POST = _refuse  # noqa: N815
    do_PUT = _refuse  # noqa: N815
    do_PATCH = _refuse  # noqa: N815
    do_DELETE = _refuse  # noqa: N815
    do_OPTIONS = _refuse  # noqa: N815

    def _answer(
        self,
        status: HTTPStatus,
        body: bytes,
        content_type: str = "text/plain; charset=utf-8",
        allow: str = "",
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if allow:
            self.send_header("Allow", allow)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base class
        """One line a request, when somebody debugs."""
        log.debug("%s " + format, self.address_string(), *args)
