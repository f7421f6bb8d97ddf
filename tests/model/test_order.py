# SPDX-License-Identifier: GPL-2.0-only
"""The calls of tier deep against those the model makes."""

from __future__ import annotations

import numpy as np
import pytest
from wakescope.model.kernels import kernel
from wakescope.model.order import Calls, same_calls
from wakescope.model.replay import replay
from wakescope.model.validate import validate
from wakescope.schema import Consulted
from wakescope.tests.maketrace import make_trace

from .decisions import BOX, HZ, SYNC, decision

NEW = kernel("6.12")
AVAILABLE, SHARE, LOAD = Consulted.AVAILABLE_IDLE, Consulted.SHARE_CACHE, Consulted.H_LOAD

# CPU 0 wakes, prev and recent are 2, all busy, sync: what 6.12's source calls, in order.
BUSY = [
    (AVAILABLE, 0, -1),  # wake_affine_idle: this CPU
    (AVAILABLE, 2, -1),  # an idle prev
    (LOAD, -1, -1),  # wake_affine_weight: current's load, the wakee's
    (LOAD, -1, -1),
    (AVAILABLE, 2, -1),  # select_idle_sibling: the target, which is prev
    (SHARE, 2, 2),  # no idle core: do prev and the target share a cache?
    (AVAILABLE, 3, -1),  # select_idle_smt, then the scan from 3
    (AVAILABLE, 3, -1),
    (AVAILABLE, 0, -1),
    (AVAILABLE, 1, -1),
    (AVAILABLE, 2, -1),
]
PULLED = [  # prev 5 in the other LLC, loads favour CPU 0, which is busy; recent 5
    (AVAILABLE, 0, -1),
    (AVAILABLE, 5, -1),
    (LOAD, -1, -1),
    (AVAILABLE, 0, -1),
    (SHARE, 5, 0),
    (SHARE, 5, 0),
    (AVAILABLE, 1, -1),
]


def traced(tmp_path, calls, probes=("available_idle", "share_cache", "task_h_load"), lost=(), **what):
    row = decision(ts_exit=50, **what)
    consults = [
        {"ts": 1 + i, "cpu": 0, "seq": i, "kind": kind, "wakeup_seq": 0, "asked_cpu": cpu, "asked_cpu2": cpu2}
        for i, (kind, cpu, cpu2) in enumerate(calls)
        if i not in lost
    ]
    tables = {"wakeups": row, "consults": consults}
    return make_trace(tmp_path / "t.wake", tables, BOX, tier="deep", probes=list(probes), kernel="6.12.100")


def verdict(trace):
    rows = trace.array("wakeups")
    return same_calls(rows, replay(rows, BOX, NEW, HZ), Calls(trace), BOX, NEW, HZ).tolist()


SYNC_BUSY = {"wake_flags": SYNC}
TO_SIBLING = {"prev": 5, "this_load": 100, "idle": [1]}


@pytest.mark.parametrize(("what", "calls"), [(SYNC_BUSY, BUSY), (TO_SIBLING, PULLED)])
def test_the_calls_of_the_source(tmp_path, what, calls):
    trace = traced(tmp_path, calls, **what)
    assert verdict(trace) == [1]
    assert validate(trace).order.to_dict()["agree"] == 1


@pytest.mark.parametrize(
    "calls",
    [
        [*BUSY[:-1]],  # one less
        [*BUSY, (AVAILABLE, 3, -1)],  # one more
        [*BUSY[:6], BUSY[8], BUSY[7], *BUSY[9:]],  # another order
        [*BUSY[:5], (SHARE, 2, 3), *BUSY[6:]],  # another argument
        [],
    ],
)
def test_any_difference_shows(tmp_path, calls):
    trace = traced(tmp_path, calls, **SYNC_BUSY)
    assert verdict(trace) == [0]
    assert validate(trace).out_of_order == [0]


def test_functions_that_are_inlined_are_not_compared(tmp_path):
    """7.3 inlines available_idle_cpu: only what stands alone was recorded."""
    rest = [call for call in BUSY if call[0] != AVAILABLE]
    assert verdict(traced(tmp_path, rest, probes=("share_cache", "task_h_load"), **SYNC_BUSY)) == [1]


def test_idle_cpu_inside_available_idle_cpu_is_not_compared(tmp_path):
    doubled = [c for call in BUSY for c in ((call, (Consulted.IDLE, call[1], -1)) if call[0] == AVAILABLE else (call,))]
    assert verdict(traced(tmp_path, doubled, **SYNC_BUSY)) == [1]


def test_decisions_that_lost_calls_or_raced_are_not_judged(tmp_path):
    assert verdict(traced(tmp_path / "a", BUSY, lost=(4,), **SYNC_BUSY)) == [-1]
    assert verdict(traced(tmp_path / "b", BUSY, idle_exit=[2], **SYNC_BUSY)) == [-1]


def test_calls_of_other_decisions_are_kept_apart(tmp_path):
    rows = np.concatenate([decision(**SYNC_BUSY), decision(**TO_SIBLING)])
    rows["seq"], rows["ts"] = [0, 1], [1, 5]
    consults = [
        {"ts": 1, "cpu": 0, "seq": i, "kind": kind, "wakeup_seq": int(i >= len(BUSY)), "asked_cpu": a, "asked_cpu2": b}
        for i, (kind, a, b) in enumerate([*BUSY, *PULLED])
    ]
    probes = ["available_idle", "share_cache", "task_h_load"]
    tables = {"wakeups": rows, "consults": consults}
    assert verdict(make_trace(tmp_path / "t.wake", tables, BOX, tier="deep", probes=probes)) == [1, 1]
