"""Images are looked into and fetched beside everything else: guide-amd.md, musl fail-closed; decision 24."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest

from devplugin.daemon.images import Images
from devplugin.host import Completed, Kind, Stat
from devplugin.imagecheck import Ctr, PullImage
from devplugin.libc import Verdict

CTR = Ctr("/bin/ctr", "/run/c.sock")


class Node:
    """A node with a `ctr` that mounts nothing, has no image, and can be held."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.commands: list[tuple[str, ...]] = []
        self.threads: set[str] = set()
        self.pulled = Completed(0, b"", b"")
        self.error: Exception | None = None

    def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Completed:
        words = tuple(argv[6:])
        self.commands.append(words)
        self.threads.add(threading.current_thread().name)
        assert self.go.wait(20)
        if self.error is not None:
            raise self.error
        if words[0] == "pull":
            return self.pulled
        return Completed(1 if words[0] == "mount" else 0, b"", b"not found")

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        assert path.startswith("/tmp/amd-dp-libcheck-")

    def rmdir(self, path: str) -> None:
        pass

    def stat(self, path: str, *, follow: bool = True) -> Stat:
        return Stat(Kind.DIRECTORY, 0o755)

    def count(self, word: str) -> int:
        return sum(words[0] == word for words in self.commands)


def images(node: Node, patience: float = 5.0) -> Images:
    return Images(node, CTR, patience)  # type: ignore[arg-type]


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def go() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(go())


async def until(what: Callable[[], bool]) -> None:
    while not what():
        await asyncio.sleep(0.005)


def test_every_image_gets_its_finding_from_a_thread_of_its_own() -> None:
    node = Node()

    async def go() -> None:
        found = await images(node).findings(["a", "b:2", "a"])
        assert {image: (one.image, one.verdict) for image, one in found.items()} == {
            "a": ("docker.io/library/a:latest", Verdict.ABSENT),
            "b:2": ("docker.io/library/b:2", Verdict.ABSENT),
        }

    run(go)
    assert node.threads == {"image check"}
    assert node.count("mount") == 2


def test_nothing_asked_is_nothing_done() -> None:
    node = Node()

    async def go() -> None:
        assert await images(node).findings([]) == {}

    run(go)
    assert node.commands == []


def test_a_check_that_takes_too_long_has_failed_and_the_loop_went_on() -> None:
    node = Node()
    node.go.clear()

    async def go() -> None:
        some = images(node, patience=0.05)
        found = (await some.findings(["a"]))["a"]
        assert (found.verdict, found.detail) == (Verdict.FAILED, "no answer within 0.05 s")
        assert "could not be checked" in found.refusal
        # The next who asks gets the answer of the same look.
        again = asyncio.ensure_future(some.findings(["a"]))
        await asyncio.sleep(0)
        node.go.set()
        assert (await again)["a"].verdict is Verdict.ABSENT
        assert node.count("mount") == 1
        await some.findings(["a"])
        assert node.count("mount") == 2  # and what is over is not remembered

    run(go)


def test_an_accident_in_a_check_is_no_answer_yes() -> None:
    node = Node()
    node.error = RuntimeError("broken")

    async def go() -> None:
        found = (await images(node).findings(["a"]))["a"]
        assert (found.verdict, found.detail) == (Verdict.FAILED, "RuntimeError")

    run(go)


def test_an_image_is_pulled_once_at_a_time_and_again_when_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()
    node.go.clear()
    wanted = PullImage("docker.io/library/a:1")

    async def go() -> None:
        some = images(node)
        for _ in range(3):
            some.fetch(wanted)
        await until(lambda: node.count("pull") == 1)
        node.go.set()
        await until(lambda: "is on the node now" in caplog.text)
        assert node.count("pull") == 1
        some.fetch(wanted)
        await until(lambda: node.count("pull") == 2)

    with caplog.at_level("INFO"):
        run(go)


def test_a_pull_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.pulled = Completed(1, b"", b"ctr: no such host\n")

    async def go() -> None:
        images(node).fetch(PullImage("docker.io/library/a:1"))
        await until(lambda: "pulling docker.io/library/a:1: ctr: no such host" in caplog.text)

    run(go)


def test_a_pull_that_goes_on_does_not_keep_the_process() -> None:
    node = Node()
    node.go.clear()

    async def go() -> None:
        images(node).fetch(PullImage("docker.io/library/a:1"))
        await until(lambda: node.count("pull") == 1)

    run(go)  # the loop is closed here
    (thread,) = [one for one in threading.enumerate() if one.name == "image pull"]
    assert thread.daemon
    node.go.set()
    thread.join(10)
    assert not thread.is_alive()
