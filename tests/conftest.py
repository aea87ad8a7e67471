"""What all tests share: hypothesis profiles and the way to the recorded captures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The fast profile draws the same examples every time, so a change is judged by what it changed;
# the others explore.
settings.register_profile(
    "dev", max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", max_examples=500, deadline=None, print_blob=True)
settings.register_profile("nightly", max_examples=5000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-snapshots", action="store_true", help="fail where captures are absent, do not skip"
    )


def snapshot_root() -> Path | None:
    """The folder of captures: $GPUSIM_SNAPSHOTS, else ../shared/snapshots beside the checkout."""
    named = os.environ.get("GPUSIM_SNAPSHOTS")
    candidates = [Path(named)] if named else [ROOT.parent / "shared" / "snapshots"]
    return next((c for c in candidates if c.is_dir()), None)


@pytest.fixture(scope="session")
def snapshots(request: pytest.FixtureRequest) -> Path:
    found = snapshot_root()
    if found is None:
        reason = "recorded captures not found: set GPUSIM_SNAPSHOTS or lay them at ../shared/snapshots"
        if request.config.getoption("--require-snapshots"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return FIXTURES
