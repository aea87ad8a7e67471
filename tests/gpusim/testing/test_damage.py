"""Damage by a seed: the same bytes everywhere, every kind does something, and nothing gets out of hand."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.errors import GpusimError
from gpusim.testing.damage import KINDS, LONGEST, damaged

SOUND = (b"simd_count 256\nunique_id 12345\n", b'[{"id":"GPU-1","devmem":1024}]')

PRINT = f"""
import hashlib
from random import Random
from gpusim.testing.damage import damaged
whole = hashlib.sha256()
for number in range(500):
    whole.update(damaged({SOUND!r}, Random(number)) + b"|")
print(whole.hexdigest())
"""


def digest() -> str:
    whole = hashlib.sha256()
    for number in range(500):
        whole.update(damaged(SOUND, Random(number)) + b"|")
    return whole.hexdigest()


@pytest.mark.parametrize("hashes", ["0", "7"])
def test_a_seed_gives_the_same_bytes_in_every_process(hashes: str) -> None:
    environ = {**os.environ, "PYTHONHASHSEED": hashes}
    done = subprocess.run(
        [sys.executable, "-c", PRINT], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == digest()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_damage_changes_most_inputs(kind: str) -> None:
    changed = [KINDS[kind](Random(number), SOUND[0], SOUND[1]) != SOUND[0] for number in range(200)]
    assert sum(changed) > 100


def test_nearly_every_input_is_damaged_and_few_are_large() -> None:
    inputs = [damaged(SOUND, Random(number)) for number in range(2000)]
    assert sum(content in SOUND for content in inputs) < 200
    assert 10 < sum(len(content) > 4500 for content in inputs) < 200
    assert len(set(inputs)) > 1500


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=3), st.integers(0))
def test_whatever_is_sound_the_damaged_is_bytes_of_bounded_length(sound: list[bytes], seed: int) -> None:
    content = damaged(sound, Random(seed))
    assert isinstance(content, bytes)
    assert len(content) <= LONGEST
    assert len(damaged(sound, Random(seed), longest=9)) <= 9


@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=30), st.binary(max_size=30), st.integers(0))
def test_no_kind_of_damage_fails_on_any_input(kind: str, content: bytes, other: bytes, seed: int) -> None:
    assert isinstance(KINDS[kind](Random(seed), content, other), bytes)


def test_damage_of_nothing_is_refused() -> None:
    with pytest.raises(GpusimError, match="at least one"):
        damaged((), Random(1))
