"""A kubelet, plugins and an API server per test, always taken down again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gpusim.cluster.apiserver import ApiServer
from gpusim.cluster.kubelet import Kubelet

from .fake_plugin import FakePlugin


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def server(stack: ExitStack) -> ApiServer:
    return stack.enter_context(ApiServer())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "device-plugins"


@pytest.fixture
def make_kubelet(stack: ExitStack, directory: Path) -> Callable[..., Kubelet]:
    def make(**settings: Any) -> Kubelet:
        settings.setdefault("poll_seconds", 0.02)
        return stack.enter_context(Kubelet(directory, **settings))

    return make


@pytest.fixture
def make_plugin(stack: ExitStack, directory: Path) -> Callable[..., FakePlugin]:
    def make(listed: Any = (), **settings: Any) -> FakePlugin:
        return stack.enter_context(FakePlugin(directory, listed, **settings))

    return make
