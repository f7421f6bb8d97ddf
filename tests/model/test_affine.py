# SPDX-License-Identifier: GPL-2.0-only
"""wake_affine against tables worked out by hand from its definition (docs/kernel-features.md)."""

from __future__ import annotations

import pytest
from wakescope.model.affine import Affine
from wakescope.model.kernels import kernel
from wakescope.model.wakeup import PF_EXITING
from wakescope.schema import NEVER
from wakescope.tests.maketrace import topology

from .decisions import PLAIN, SYNC, decide

NEW, OLD = kernel("6.12"), kernel("5.10")
IDLE_TABLE = [
    # this idle, prev idle, prev on CPU, sync, running here, delayed here -> rule and target in 6.12
    ([0], 2, PLAIN, 2, 0, Affine.THIS_IDLE, 0),
    ([0, 2], 2, PLAIN, 2, 0, Affine.BOTH_IDLE, 2),
    ([0], 5, PLAIN, 2, 0, Affine.WEIGHT_THIS, 0),  # idle here does not count across LLCs
    ([0, 5], 5, PLAIN, 2, 0, Affine.PREV_IDLE, 5),
    ([], 2, SYNC, 1, 0, Affine.SYNC, 0),
    ([2], 2, SYNC, 1, 0, Affine.SYNC, 0),  # sync comes before an idle prev
    ([2], 2, SYNC, 2, 0, Affine.PREV_IDLE, 2),
    ([2], 2, SYNC, 2, 1, Affine.SYNC, 0),  # a delayed dequeue does not count
    ([2], 2, PLAIN, 1, 0, Affine.PREV_IDLE, 2),
]


@pytest.mark.parametrize(("idle", "prev", "flags", "running", "delayed", "rule", "target"), IDLE_TABLE)
def test_idle_rules(idle, prev, flags, running, delayed, rule, target):
    result = decide(
        NEW,
        prev=prev,
        idle=idle,
        wake_flags=flags,
        this_nr_running=running,
        this_h_nr_queued=running,
        this_h_nr_runnable=running - delayed,
        this_load=100,
    )
    assert (Affine(result["affine"]), result["target"]) == (rule, target)


def test_prev_idle_came_with_5_11():
    loads = {"this_load": 100, "prev_load": 5000, "idle": [5], "prev": 5}
    assert decide(OLD, wake_flags=0, **loads)["affine"] == Affine.WEIGHT_THIS
    assert decide(kernel("5.15"), **loads)["affine"] == Affine.PREV_IDLE


def test_delayed_dequeues_count_before_6_12_37():
    what = {"wake_flags": SYNC, "this_nr_running": 2, "this_h_nr_queued": 2, "this_h_nr_runnable": 1, "prev": 5}
    assert decide(kernel("6.12.36"), **what)["affine"] != Affine.SYNC
    assert decide(kernel("6.12.37"), **what)["affine"] == Affine.SYNC


def test_an_exiting_waker_is_not_sync():
    what = {"wake_flags": SYNC, "this_nr_running": 1, "this_h_nr_queued": 1, "this_h_nr_runnable": 1, "prev": 5}
    assert decide(NEW, **what)["affine"] == Affine.SYNC
    assert decide(NEW, waker_flags=PF_EXITING, **what)["affine"] != Affine.SYNC


def test_sync_bit_of_older_kernels():
    """WF_SYNC is 1 up to 5.10, where 0x10 means nothing."""
    what = {"this_nr_running": 1, "prev": 5}
    assert decide(OLD, wake_flags=1, **what)["affine"] == Affine.SYNC
    assert decide(OLD, wake_flags=0x10, **what)["affine"] != Affine.SYNC


# 117 gives a bias of 108 for prev (100 + 17 // 2).
WEIGHT_TABLE = [
    # this, prev, h(waker), h(wakee), sync, capacities -> pulled?
    (1000, 2000, 0, 500, False, 1024, 1024, True),  # 1500*100 < 1500*108
    (1120, 2000, 0, 500, False, 1024, 1024, False),  # 162000 = 1500*108: a tie stays
    (1119, 2000, 0, 500, False, 1024, 1024, True),
    (1620, 2000, 500, 500, True, 1024, 1024, True),  # the same tie, sync: pulled
    (1621, 2000, 500, 500, True, 1024, 1024, False),
    (400, 600, 500, 600, True, 1024, 1024, True),  # current's load exceeds this CPU's
    (1000, 2000, 0, 500, False, 512, 1024, False),  # half the capacity here
    (2500, 2000, 0, 500, False, 1024, 400, True),  # prev is left with 400
    (0, 300, 0, 500, False, 1024, 1024, False),  # prev - wakee below 0
]


@pytest.mark.parametrize(("this", "prev", "waker", "wakee", "sync", "this_cap", "prev_cap", "pulled"), WEIGHT_TABLE)
def test_weight(this, prev, waker, wakee, sync, this_cap, prev_cap, pulled):
    result = decide(
        NEW,
        wake_flags=SYNC if sync else PLAIN,
        this_load=this,
        prev_load=prev,
        waker_h_load=waker,
        wakee_h_load=wakee,
        this_capacity=this_cap,
        prev_capacity=prev_cap,
    )
    assert result["target"] == (0 if pulled else 2)


def test_bias_can_be_switched_off():
    what = {"this_load": 1000, "prev_load": 2000, "wakee_h_load": 500}
    assert decide(NEW, **what)["affine"] == Affine.WEIGHT_THIS
    assert decide(NEW | {"wa_bias": 0}, **what)["affine"] == Affine.WEIGHT_PREV
    assert decide(NEW | {"wa_bias": 0}, **what | {"this_load": 999})["affine"] == Affine.WEIGHT_THIS


def test_nothing_switched_on_keeps_prev():
    result = decide(NEW | {"wa_idle": 0, "wa_weight": 0}, idle=[0], this_load=0)
    assert (result["affine"], result["target"]) == (Affine.UNDECIDED, 2)
    assert decide(NEW | {"wa_idle": 0}, idle=[0], this_load=0)["affine"] == Affine.WEIGHT_THIS


def test_when_it_is_not_asked():
    wide = {"waker_flips": 100, "wakee_flips": 5}
    assert decide(NEW, **wide)["affine"] == Affine.WIDE
    assert decide(NEW, allowed=range(1, 8))["affine"] == Affine.DISALLOWED
    assert decide(NEW, prev=0)["affine"] == Affine.SAME
    far = topology(nodes=2, cores=2, threads=2, affine_nodes=False)
    assert decide(NEW, far, prev=5)["affine"] == Affine.NO_DOMAIN
    assert decide(NEW, wake_flags=0x48)["affine"] == Affine.NONE


@pytest.mark.parametrize("missing", ["this_load", "prev_load", "wakee_h_load", "this_capacity", "this_nr_running"])
def test_an_unknown_fact_leaves_it_open_only_where_it_matters(missing):
    unknown = NEVER if missing in ("this_capacity", "this_nr_running") else 2**64 - 1
    what = {"wake_flags": SYNC, missing: unknown}
    assert decide(NEW, **what)["certainty"] == 2
    assert decide(NEW, idle=[0, 2], **what)["certainty"] == 0
