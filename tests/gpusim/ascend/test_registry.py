"""A card's global registry: its public layout, its 64 slots, and a file that is not sized yet (G 15)."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.ascend.mapping import NotReadyError
from gpusim.ascend.registry import SIZE, Registry
from gpusim.ascend.runtime import LedgerError, RefusedError
from gpusim.ascend.shm import UnknownLedgerError


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "3_global_registry")


def test_the_layout_is_the_public_one(path: str) -> None:
    with Registry(path) as card:
        card.join(7, 25)
        card.join(8, 50, average_us=1200, now_us=99)
    data = Path(path).read_bytes()
    assert len(data) == SIZE == 2848
    second = 280 + 40
    assert struct.unpack_from("<i", data, second) == (8,)
    assert struct.unpack_from("<QQ", data, second + 8) == (1200, 99)
    assert struct.unpack_from("<I", data, second + 24) == (1,)
    assert struct.unpack_from("<Q", data, second + 32) == (50,)
    assert data[:280] == bytes(280)


def test_two_containers_of_one_card_are_managers_0_and_1_of_the_same_registry(path: str) -> None:
    """A.13."""
    with Registry(path) as first, Registry(path) as second:
        assert (first.join(1).index, second.join(2).index) == (0, 1)
        assert [one.pid for one in first.managers()] == [1, 2]


def test_g15_a_registry_between_create_and_truncate_is_waited_for_and_never_mapped(path: str) -> None:
    """The original maps it and dies by SIGBUS at the first touch."""
    Path(path).touch()
    waited: list[float] = []

    def sized_at_the_third_look(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            os.truncate(path, SIZE)

    with Registry(path, sleep=sized_at_the_third_look) as card:
        assert card.join(5).index == 0
    assert len(waited) == 3


@pytest.mark.parametrize("size", [0, 1, 280, SIZE - 1])
def test_g15_one_that_is_never_sized_is_refused_in_bounded_time_and_left_as_it_is(
    size: int, path: str
) -> None:
    Path(path).write_bytes(bytes(size))
    waited: list[float] = []
    with pytest.raises(NotReadyError, match=f"{size} of {SIZE} bytes"):
        Registry(path, wait=10.0, sleep=waited.append)
    assert sum(waited) == pytest.approx(10.0)
    assert Path(path).stat().st_size == size


def test_a_file_of_another_kind_is_not_touched(path: str) -> None:
    Path(path).write_bytes(b"?" * 6224)
    with pytest.raises(UnknownLedgerError, match="6224 bytes"):
        Registry(path)
    assert Path(path).read_bytes() == b"?" * 6224


def test_the_65th_manager_is_refused_and_a_slot_that_was_left_is_taken_first(path: str) -> None:
    with Registry(path) as card:
        for pid in range(1, 65):
            assert card.join(pid).index == pid - 1
        assert card.join(64).index == 63, "a manager that comes again keeps its slot"
        with pytest.raises(RefusedError, match="64 managers"):
            card.join(65)
        assert card.leave(9, 10)
        assert card.join(65).index == 9


def test_a_successor_frees_no_slot_but_that_of_the_pid_it_succeeds(path: str) -> None:
    with Registry(path) as card:
        card.join(1)
        assert not card.leave(0, 2)
        assert card.leave(0, 1)
        assert not card.leave(0, 1)


@pytest.mark.parametrize(
    "ask",
    [
        lambda card: card.join(0),
        lambda card: card.join(-1),
        lambda card: card.join(1 << 31),
        lambda card: card.join(1, 1 << 64),
        lambda card: card.leave(64, 1),
        lambda card: card.leave(-1, 1),
    ],
)
def test_a_number_the_file_cannot_hold_is_refused(ask: Callable[[Registry], object], path: str) -> None:
    with Registry(path) as card, pytest.raises(LedgerError):
        ask(card)
    assert Path(path).read_bytes() == bytes(SIZE)


@given(st.binary(min_size=SIZE, max_size=SIZE))
def test_whatever_containers_write_into_it_it_can_be_shown(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("registry") / "r"
    path.write_bytes(data)
    with Registry(str(path)) as card:
        for one in card.managers():
            assert 0 <= one.index < 64
            assert one.pid > 0


def test_processes_that_join_together_get_slots_of_their_own(path: str) -> None:
    children = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            try:
                with Registry(path) as card:
                    card.join(os.getpid())
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    with Registry(path) as card:
        assert {one.pid for one in card.managers()} == set(children)
        assert [one.index for one in card.managers()] == list(range(6))
