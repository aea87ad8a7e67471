"""HTTP/1.1 on one connection: read requests, strike with faults, write answers, stream watches.

Our own few lines on asyncio, because the standard library's server parses headers with the e-mail
package and takes several times as long; thousands of requests a second are wanted (RFC 9112).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import msgspec

from gpusim.cluster import apirouter, apiwatch
from gpusim.cluster.apifaults import Call, Fault, Faults, RequestLog
from gpusim.cluster.apireview import review
from gpusim.cluster.apirouter import Request, Response, number
from gpusim.cluster.apistatus import ApiError
from gpusim.cluster.apistore import Store

BODY_LIMIT = 3 << 20
"""Bytes of a request body (apiserver's default limit of a resource request)."""

_PHRASES = {
    200: "OK",
    201: "Created",
    400: "Bad Request",
    404: "Not Found",
    409: "Conflict",
    500: "Internal Server Error",
}

Admin = Callable[[Request], "Response | None"]


class Connections:
    """Serves the connections of one server.

    Args:
        store: the objects.
        faults: struck before a request is carried out.
        log: told about every request under /api/v1.
        admin: asked first; answers paths of its own (the faults and the log), else None.
    """

    def __init__(self, store: Store, faults: Faults, log: RequestLog, admin: Admin) -> None:
        self._store, self._faults, self._log, self._admin = store, faults, log, admin
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection until it ends (the callback of `asyncio.start_server`)."""
        task = asyncio.current_task()
        assert task is not None
        self._writers.add(writer)
        self._tasks.add(task)
        try:
            while (request := await _read(reader)) is not None:
                if not await self._answer(request, reader, writer):
                    break
                if request.headers.get("connection", "").lower() == "close":
                    break
        except _UnreadableError as error:
            await _send(writer, error.response)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side, or `abort`, ended it
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.close()

    async def abort(self) -> None:
        """End every connection without a word, as a dying server does."""
        for writer in tuple(self._writers):
            writer.transport.abort()
        tasks = [t for t in self._tasks if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; False ends the connection."""
        response = (
            self._admin(request) or review(request, self._faults, decode_json) or apirouter.discovery(request)
        )
        if response is not None:
            return await _send(writer, response)
        try:
            call = apirouter.classify(request)
        except ApiError as error:
            return await _send(writer, apirouter.refusal(error))
        fault = self._faults.strike(call)
        if fault is not None and fault.delay:
            await asyncio.sleep(fault.delay)
        response = self._outcome(call, request, fault)
        lost = fault is not None and fault.action in ("drop", "lose")
        self._log.record(call, 0 if lost else response.code)
        if lost:
            writer.transport.abort()
            return False
        if response.watch is not None:
            await self._stream(response.watch, reader, writer)
            return False
        return await _send(writer, response)

    def _outcome(self, call: Call, request: Request, fault: Fault | None) -> Response:
        if fault is not None and fault.action == "error":
            return apirouter.refusal(ApiError(fault.code, fault.reason, fault.message))
        if fault is not None and fault.action == "drop":
            return Response(0)
        try:
            return apirouter.carry_out(self._store, call, request)
        except ApiError as error:
            return apirouter.refusal(error)

    async def _stream(
        self, watch: apirouter.Watch, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(_head(200, "application/json", "Transfer-Encoding: chunked\r\nConnection: close"))
        gone = asyncio.ensure_future(reader.read(1))  # the watcher says nothing more; it can only hang up
        pump = asyncio.ensure_future(self._pump(watch, writer))
        try:
            await asyncio.wait((gone, pump), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            pump.cancel()
            await asyncio.gather(gone, pump, return_exceptions=True)

    async def _pump(self, watch: apirouter.Watch, writer: asyncio.StreamWriter) -> None:
        await writer.drain()
        async with aclosing(apiwatch.lines(self._store, watch)) as lines:
            async for line in lines:
                writer.write(b"%x\r\n%b\r\n" % (len(line), line))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()


class _UnreadableError(Exception):
    """What came is no request we take: answer `response` and hang up."""

    def __init__(self, code: int, reason: str, why: str) -> None:
        super().__init__(why)
        self.response = apirouter.refusal(ApiError(code, reason, why))


async def _read(reader: asyncio.StreamReader) -> Request | None:
    """The next request; None when the connection is over.

    Raises:
        _UnreadableError: malformed or too large.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise _UnreadableError(431, "BadRequest", "headers too large") from None
    first, *rest = head[:-4].decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _UnreadableError(400, "BadRequest", "no HTTP/1.1 request")
    headers = {}
    for line in rest:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if "transfer-encoding" in headers:
        raise _UnreadableError(411, "BadRequest", "length required: bodies are not taken in chunks")
    length = headers.get("content-length", "0")
    if not number(length):
        raise _UnreadableError(400, "BadRequest", f"content-length {length!r}")
    if int(length) > BODY_LIMIT:
        raise _UnreadableError(
            413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_LIMIT}"
        )
    body = await reader.readexactly(int(length)) if length != "0" else b""
    return Request(words[0], words[1], headers, body)


async def _send(writer: asyncio.StreamWriter, response: Response) -> bool:
    extra = f"Content-Length: {len(response.body)}"
    writer.write(_head(response.code, response.content_type, extra) + response.body)
    await writer.drain()
    return True


def _head(code: int, content_type: str, extra: str) -> bytes:
    phrase = _PHRASES.get(code, "Status")
    return f"HTTP/1.1 {code} {phrase}\r\nContent-Type: {content_type}\r\n{extra}\r\n\r\n".encode("latin-1")


def decode_json(body: bytes) -> Any:
    """A JSON body of an admin path; None when it is none."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
