# SPDX-License-Identifier: GPL-2.0-only
"""Compiled and plain Python are one source; compiled code is kept where it can be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from wakescope.model import affine, idle, replay, select
from wakescope.model.compiled import plain
from wakescope.model.kernels import kernel

from .decisions import BOX, HZ, random_decisions

PARENT = Path(affine.__file__).parents[2]
SMALL = "from wakescope.model.flips import record_wakee; print(record_wakee(1151, 250, 9, 900, 3, 7))"
WHOLE = """
from wakescope.model.replay import replay, _replay
from wakescope.tests.model.decisions import BOX, HZ, random_decisions
from wakescope.model.kernels import kernel
print(replay(random_decisions(1, BOX, 50), BOX, kernel("6.12"), HZ)["cpu"].tolist(), type(_replay).__name__)
"""


def run(program: str, **environment: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(PARENT), **environment}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_plain_goes_all_the_way_down():
    twin = plain(select.select_task_rq_fair)
    sibling = twin.__globals__["select_idle_sibling"]
    assert not hasattr(twin, "py_func")
    assert sibling.__code__ is idle.select_idle_sibling.py_func.__code__
    assert not hasattr(sibling.__globals__["select_idle_smt_cpu"], "py_func")
    assert hasattr(replay.decide, "py_func")


def test_without_the_compiler_the_same_comes_out():
    compiled = replay.replay(random_decisions(1, BOX, 50), BOX, kernel("6.12"), HZ)["cpu"].tolist()
    assert run(WHOLE, NUMBA_DISABLE_JIT="1") == f"{compiled} function"


def test_code_is_kept_in_the_directory_asked_for(tmp_path):
    assert run(SMALL, NUMBA_CACHE_DIR=str(tmp_path)) == "(5, 1151, 7)"
    assert list(tmp_path.glob("model-*/*/flips.record_wakee*.nbi"))


def test_code_that_nobody_used_for_long_goes(tmp_path):
    old, recent, other = tmp_path / "model-0", tmp_path / "model-1", tmp_path / "other"
    run(SMALL, NUMBA_CACHE_DIR=str(tmp_path), NUMBA_DISABLE_JIT="1")
    (own,) = tmp_path.glob("model-*")
    for directory in (old, recent, other, own):
        (directory / "inside").mkdir(parents=True)
    for directory in (old, other, own):
        os.utime(directory, (0, 0))
    run(SMALL, NUMBA_CACHE_DIR=str(tmp_path), NUMBA_DISABLE_JIT="1")
    assert not old.exists()
    for directory in (recent, other, own):
        assert (directory / "inside").exists()


def test_where_nothing_can_be_kept_it_still_runs(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert run(SMALL, NUMBA_CACHE_DIR=str(blocked)) == "(5, 1151, 7)"
