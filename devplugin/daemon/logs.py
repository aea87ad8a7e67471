"""Log lines of the whole daemon: structlog's on standard error, JSON when nobody watches.

Libraries here use the standard `logging`; this is the one place that gives it a form. structlog
takes 50 to 100 ms to import, a third of the way from exec to the first device list, so lines are
kept until `release` and written then: after the first list, or when the process ends, whichever is
first. Nothing is lost short of SIGKILL.
"""

from __future__ import annotations

import logging
import logging.handlers
import sys
from typing import TextIO

QUIET = ("urllib3", "kubernetes", "grpc", "asyncio", "grpc_aio")
"""Libraries whose debug and information lines are theirs, not ours."""

DEBUG_FROM = 4
"""`-v` from which debug lines are written (guide-amd.md: 4 adds topology parsing)."""

TRACE = 5
"""Level of what annotations say, decoded; also the `-v` from which it is written (guide-amd.md)."""


def told(log: logging.Logger, before: str, text: str, level: int = logging.WARNING) -> str:
    """Say it, loudly unless it is what was said the last time; what to hand in as `before` the next time."""
    log.log(logging.DEBUG if text == before else level, "%s", text, stacklevel=2)
    return text


class Logs:
    """Set up on construction; a context manager that releases at its end."""

    def __init__(self, verbosity: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._root = logging.getLogger()
        logging.addLevelName(TRACE, "TRACE")
        level = logging.DEBUG if verbosity >= DEBUG_FROM else logging.INFO
        self._root.setLevel(TRACE if verbosity >= TRACE else level)
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)
        self._early = logging.handlers.MemoryHandler(
            capacity=10_000, flushLevel=logging.CRITICAL + 1, flushOnClose=False
        )
        self._root.handlers[:] = [self._early]

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def release(self) -> None:
        """Write what was kept, and from now on every line at once; a second call does nothing."""
        if self._root.handlers != [self._early]:
            return
        handler = logging.StreamHandler(self._stream)
        handler.setFormatter(_formatter(self._stream.isatty()))
        self._root.handlers[:] = [handler]
        self._early.setTarget(handler)
        self._early.flush()
        self._early.close()


def _formatter(terminal: bool) -> logging.Formatter:
    import structlog

    def stamp(logger: object, name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        # The time the line was made, not the time it was released.
        record: logging.LogRecord = event["_record"]
        event["timestamp"] = _iso(record.created)
        return event

    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        stamp,
    ]
    last: list[structlog.typing.Processor]
    if terminal:
        last = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )


def _iso(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
