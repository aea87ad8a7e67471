"""The upgrade table of ascend_ppu_hami.md A.8, row by row."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.ascend.poststart import OLDEST, WITHOUT_HOOK, Mode, Verdict, check

EITHER = (False, True)
OLD = ("v2.8.9", "2.8", "v1.9.0", "v2.8.0-rc.0")
HOOKED = ("v2.9.0-rc0", "v2.9.0", "v2.9.3", "2.9", "v2.10.0-rc1", "v2.10.0-r0", "v2.10.0-r1", "v2.10.0-rc9")
FREE = ("v2.10.0-r2", "v2.10.0-r3", "v2.10.0", "2.10", "v2.10.1-rc0", "v2.11.0-rc0", "v3.0.0")


def verdict(mode: Mode, scheduler: str, poststart: bool = False, bash: bool = False) -> Verdict:
    return check(mode, scheduler, has_poststart=poststart, has_bash=bash)


@pytest.mark.parametrize("scheduler", [*HOOKED, *FREE])
def test_a_template_container_runs_with_every_scheduler_since_the_oldest(scheduler: str) -> None:
    assert all(verdict("template", scheduler, own, bash).ok for own, bash in product(EITHER, EITHER))


@pytest.mark.parametrize("scheduler", HOOKED)
def test_a_soft_container_with_its_own_poststart_is_left_alone(scheduler: str) -> None:
    assert all(verdict("hami-core", scheduler, True, bash).ok for bash in EITHER)


@pytest.mark.parametrize("scheduler", HOOKED)
def test_a_soft_container_with_bash_runs_the_hook(scheduler: str) -> None:
    assert verdict("hami-core", scheduler, bash=True).ok


@pytest.mark.parametrize("scheduler", HOOKED)
def test_a_soft_container_with_neither_fails_and_is_told_which_scheduler_it_needs(scheduler: str) -> None:
    said = verdict("hami-core", scheduler)
    assert not said.ok
    assert WITHOUT_HOOK in said.text
    assert "PostStart of its own" in said.text


@pytest.mark.parametrize("scheduler", FREE)
def test_with_a_scheduler_that_injects_no_hook_every_soft_container_runs(scheduler: str) -> None:
    assert all(verdict("hami-core", scheduler, own, bash).ok for own, bash in product(EITHER, EITHER))


@pytest.mark.parametrize("scheduler", OLD)
@pytest.mark.parametrize("mode", ["template", "hami-core"])
def test_an_older_scheduler_is_supported_in_no_mode(scheduler: str, mode: Mode) -> None:
    said = verdict(mode, scheduler, True, True)
    assert not said.ok
    assert OLDEST in said.text


@given(st.text(max_size=12))
def test_what_is_no_release_is_refused_and_nothing_else_is_raised(text: str) -> None:
    try:
        verdict("hami-core", text)
    except ValueError as error:
        assert "is no release of HAMi" in str(error)
        assert str(error).isascii()
