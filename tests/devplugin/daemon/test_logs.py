"""Log lines: kept until it does not cost start-up, then whole, in order, with their own time."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from devplugin.daemon.logs import TRACE, Logs


@pytest.fixture(autouse=True)
def own_root() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before[0], before[1]


def test_lines_are_kept_until_release_and_then_written_with_the_time_they_were_made() -> None:
    out = io.StringIO()
    log = logging.getLogger("devplugin.x")
    with Logs(0, out) as logs:
        log.warning("first %s", 1)
        assert out.getvalue() == ""
        logs.release()
        log.info("second")
        logs.release()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["event"], line["level"], line["logger"]) for line in lines] == [
        ("first 1", "warning", "devplugin.x"),
        ("second", "info", "devplugin.x"),
    ]
    assert lines[0]["timestamp"] < lines[1]["timestamp"]
    assert lines[0]["timestamp"].endswith("Z")


def test_what_was_kept_is_written_when_the_process_ends_early() -> None:
    out = io.StringIO()
    with Logs(0, out):
        logging.getLogger("devplugin.x").error("why it ended")
    assert json.loads(out.getvalue())["event"] == "why it ended"


def test_an_exception_is_one_line_of_json() -> None:
    out = io.StringIO()
    with Logs(0, out):
        try:
            raise ValueError("boom")
        except ValueError:
            logging.getLogger("devplugin.x").exception("failed")
    (line,) = out.getvalue().splitlines()
    assert "ValueError: boom" in json.loads(line)["exception"]


@pytest.mark.parametrize(("verbosity", "seen"), [(0, False), (2, False), (4, True)])
def test_verbosity_4_adds_debug_lines_and_not_those_of_the_libraries(verbosity: int, seen: bool) -> None:
    out = io.StringIO()
    with Logs(verbosity, out):
        logging.getLogger("devplugin.x").debug("detail")
        logging.getLogger("urllib3.connectionpool").debug("chatter")
    assert ("detail" in out.getvalue()) is seen
    assert "chatter" not in out.getvalue()


def test_a_terminal_gets_lines_for_people() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    with Logs(0, out):
        logging.getLogger("devplugin.x").warning("look here")
    assert "look here" in out.getvalue()
    with pytest.raises(json.JSONDecodeError):
        json.loads(out.getvalue())


def test_structlog_is_loaded_only_when_lines_are_written() -> None:
    code = (
        "import sys, logging, devplugin.daemon.logs as l\n"
        "logs = l.Logs(0); logging.getLogger('x').warning('y')\n"
        "early = 'structlog' in sys.modules\n"
        "logs.release(); print(early, 'structlog' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize(
    ("verbosity", "levels"),
    [
        (0, {"info"}),
        (2, {"info"}),
        (3, {"info"}),
        (4, {"info", "debug"}),
        (5, {"info", "debug", "trace"}),
        (9, {"info", "debug", "trace"}),
    ],
)
def test_level_4_adds_topology_and_level_5_what_annotations_say(verbosity: int, levels: set[str]) -> None:
    out = io.StringIO()
    with Logs(verbosity, out):
        log = logging.getLogger("devplugin.x")
        log.info("as ever")
        log.debug("topology")
        log.log(TRACE, "annotation")
    assert {json.loads(line)["level"] for line in out.getvalue().splitlines()} == levels
