"""What becomes of a change: noticed, not noticed, or so slow that it counts as noticed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from .__main__ import ROOT

MODULE = """
UNUSED = "ab"

def f(n):
    while n > 0:
        n -= 1
    return n
"""
TESTS = """
from small import f

def test_f():
    assert f(3) == 0
"""
RUN = """
import json, sys
from pathlib import Path
from tests.mutation import mutants, running

running._LEAST = 0.5
root = Path(sys.argv[1])
runner = running.Runner(root, "small", ("test_small.py",))
assert runner.unchanged() == running.SURVIVED
made = list(mutants.mutants((root / "small.py").read_text()))
print(json.dumps({mutant.key: result for mutant, result in runner.run(made, 2)}))
"""


def test_each_change_is_judged_by_the_tests_of_its_module(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(MODULE)
    (tmp_path / "test_small.py").write_text(TESTS)
    done = subprocess.run(  # a process without threads: it forks
        [sys.executable, "-c", RUN, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "top: `UNUSED = 'ab'` → `UNUSED = 'b'`": "survived",
        "f: `while n > 0` → `while n >= 0`": "killed",
        "f: `while n > 0` → `while n <= 0`": "killed",
        "f: `while n > 0` → `while n > 1`": "killed",
        "f: `n -= 1` → `n += 1`": "slow",
        "f: `n -= 1` → `n -= 2`": "killed",
        "f: `n -= 1` → `n -= 0`": "slow",
        "f: `n -= 1` → `pass`": "slow",
        "f: `return n` → `return None`": "killed",
    }


def test_a_choice_that_leaves_no_mutant_is_refused_and_does_not_pass_for_a_run() -> None:
    command = [sys.executable, "-m", "tests.mutation", "codec", "--every", "100000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        "--every 100000 leaves no mutant of devplugin/hami/codec.py: nothing would be tested" in done.stderr
    )
    assert not done.stdout
