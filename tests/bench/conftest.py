"""The guard as a fixture."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.guards import Guard


@pytest.fixture
def guard(benchmark: Any) -> Guard:
    return Guard(benchmark)
