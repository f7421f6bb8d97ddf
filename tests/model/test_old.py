# SPDX-License-Identifier: GPL-2.0-only
"""The kernels of the threads: what differs between them, by tables from their definitions; what a trace cannot tell."""

from __future__ import annotations

import pytest
from wakescope.errors import ModelError
from wakescope.model.affine import Affine
from wakescope.model.captured import captured
from wakescope.model.idle import Path
from wakescope.model.kernels import kernel, known
from wakescope.model.old import OLD, V4_12
from wakescope.model.policy import Load
from wakescope.model.variants import RELEASES
from wakescope.model.wakeup import PF_EXITING, Doubt
from wakescope.schema import NEVER, NEVER64
from wakescope.tests.maketrace import topology

from .decisions import SYNC, decide, decision

OLD_SYNC = 0x1  # WF_SYNC up to 5.10


def test_releases():
    for release in (*OLD, "4.12.0", "4.12.10", "4.15.3"):
        assert known(release)
    assert kernel("4.12.0") == kernel("4.12.3") == V4_12
    assert kernel("4.12.4") == kernel("4.12") == kernel("4.13")
    for release in ("4.4", "4.9", "4.17", "5.0", "4.12.x"):
        with pytest.raises(ModelError):
            kernel(release)


FEATURES = [
    # release: wake_wide inside wake_affine, record_wakee for all, decider, shared cache, tie to this CPU, recent_used
    ("4.2", (1, 1, 2, 0, 1, 3)),
    ("4.3", (0, 1, 2, 0, 1, 3)),
    ("4.12.0", (0, 0, 2, 0, 1, 3)),
    ("4.13", (0, 0, 3, 1, 1, 3)),
    ("4.14-rc", (0, 0, 4, 2, 1, 3)),
    ("4.15", (0, 0, 0, 0, 1, 3)),
    ("4.16", (0, 0, 0, 0, 1, 0)),
    ("4.19", (0, 0, 0, 0, 0, 0)),
    ("5.4", (0, 0, 0, 0, 0, 0)),
    ("5.10", (0, 0, 0, 0, 0, 0)),
]


@pytest.mark.parametrize(("release", "features"), FEATURES)
def test_features(release, features):
    p = kernel(release)
    assert (p.wide_in_affine, p.record_all, p.affine_by, p.shared_cache, p.weight_tie, p.recent_used) == features


# loads of this and prev, wakee's, current's, sync, capacity of this and prev -> pulled by 4.12.0. Both share a cache,
# whose domain has imbalance_pct 117: 100 * (this + wakee) * cap(prev) <= 108 * prev * cap(this)
EFFECTIVE_TABLE = [
    (1000, 1500, 500, 0, False, 1024, 1024, True),
    (1001, 1389, 500, 0, False, 1024, 1024, False),  # 150100 > 150012
    (1000, 1389, 500, 0, False, 1024, 1024, True),  # 150000 <= 150012
    (580, 1000, 500, 0, False, 1024, 1024, True),  # even: this CPU
    (1000, 1500, 500, 0, False, 512, 1024, False),
    (1000, 900, 500, 600, True, 1024, 1024, True),  # current's load does not count on sync
    (1000, 900, 500, 600, False, 1024, 1024, False),
    (0, 0, 500, 0, False, 1024, 1024, True),  # nothing runs here: only the capacities count
    (0, 0, 500, 0, False, 900, 1024, False),  # 102400 > 97200
    (500, 0, 500, 600, True, 1024, 1024, True),  # less than nothing: likewise
]


@pytest.mark.parametrize(
    ("this", "prev", "wakee", "current", "sync", "this_cap", "prev_cap", "pulled"), EFFECTIVE_TABLE
)
def test_effective_load(this, prev, wakee, current, sync, this_cap, prev_cap, pulled):
    result = decide(
        kernel("4.12.0"),
        this_load=this,
        prev_load=prev,
        wakee_h_load=wakee,
        waker_h_load=current,
        wake_flags=OLD_SYNC if sync else 0,
        this_capacity=this_cap,
        prev_capacity=prev_cap,
    )
    assert result["affine"] == (Affine.WEIGHT_THIS if pulled else Affine.WEIGHT_PREV)
    assert result["target"] == (0 if pulled else 2)


def test_4_13_takes_a_shared_cache_for_an_answer_and_4_14_rc_for_the_opposite():
    assert decide(kernel("4.13"), this_load=5000)["target"] == 0
    assert decide(kernel("4.14-rc"), prev_load=5000)["target"] == 2
    for release in ("4.13", "4.14-rc"):  # between LLCs the sums of nodes or LLCs decide, which nobody captured
        result = decide(kernel(release), prev=5)
        assert result["certainty"] == 2
        assert result["doubt"] == Doubt.SUMS
        assert decide(kernel(release), prev=5, idle=[5, 0])["doubt"] == Doubt.SUMS
        assert decide(kernel(release), prev=5, allowed=[4, 5, 6, 7])["certainty"] == 0  # not affine at all


IDLE_TABLE = [
    # release, prev, idle -> rule. An idle CPU 0 pulls from anywhere in 4.15, from the same LLC since 4.16
    ("4.15", 5, [0], Affine.THIS_IDLE),
    ("4.15", 5, [0, 5], Affine.THIS_IDLE),
    ("4.15", 2, [0, 2], Affine.THIS_IDLE),
    ("4.16", 5, [0], Affine.WEIGHT_THIS),
    ("4.16", 2, [0], Affine.THIS_IDLE),
    ("4.16", 2, [0, 2], Affine.BOTH_IDLE),
    ("4.16", 5, [5], Affine.WEIGHT_THIS),  # an idle prev keeps the wakee since 5.11 only
    ("4.19", 5, [5], Affine.WEIGHT_THIS),
]


@pytest.mark.parametrize(("release", "prev", "idle", "rule"), IDLE_TABLE)
def test_wake_affine_idle(release, prev, idle, rule):
    assert decide(kernel(release), prev=prev, idle=idle, wake_flags=0, this_load=100)["affine"] == rule


@pytest.mark.parametrize(("release", "pulled"), [("4.15", True), ("4.16", True), ("4.19", False)])
def test_even_loads(release, pulled):
    # 100 * (580 + 500) = 108 * (1500 - 500), imbalance_pct being 117
    result = decide(kernel(release), this_load=580, prev_load=1500, wake_flags=0)
    assert result["affine"] == (Affine.WEIGHT_THIS if pulled else Affine.WEIGHT_PREV)


@pytest.mark.parametrize(("release", "rule"), [("4.16", Affine.SYNC), ("4.19", Affine.WEIGHT_PREV)])
def test_sync_of_an_exiting_waker(release, rule):
    given = {"wake_flags": OLD_SYNC, "waker_flags": PF_EXITING, "this_nr_running": 1, "this_load": 5000}
    assert decide(kernel(release), **given)["affine"] == rule


# 4.2 and 4.3 look for a group that is idle as a whole, cores of the LLC first, then the target's own threads
GROUPS_TABLE = [
    # idle, allowed -> CPU, path; prev 2 is the target (the loads favour it) and busy, CPUs 0-3 its LLC, 2-3 its core
    ([0, 1, 3], range(8), 0, Path.CORE),
    ([0, 3], range(8), 3, Path.CORE),  # core 0-1 is not idle as a whole: on to the threads
    ([0], range(8), 2, Path.FALLBACK_TARGET),  # a thread of a busy core is never found
    ([0, 1], [1, 2, 3], 1, Path.CORE),  # the whole core is idle, its first allowed CPU is taken
    ([0, 1, 3], [2, 3], 3, Path.CORE),  # a core without an allowed CPU is passed over
    ([4, 5], range(8), 2, Path.FALLBACK_TARGET),  # another LLC
]


@pytest.mark.parametrize("release", ["4.2", "4.3"])
@pytest.mark.parametrize(("idle", "allowed", "cpu", "path"), GROUPS_TABLE)
def test_select_idle_group(release, idle, allowed, cpu, path):
    given = {"wakee_cpu": 2, "wake_flags": 0, "this_load": 9000}
    result = decide(kernel(release), idle=idle, allowed=list(allowed), **given)
    assert (result["cpu"], result["path"]) == (cpu, path)


def test_groups_are_tried_from_the_targets_own_on():
    """The ring begins at the target's own group, whose next one need not be that of the next CPU."""
    machine = topology(nodes=1, cores=4, threads=2)  # cores 0-1, 2-3, 4-5, 6-7
    given = {"prev": 5, "wakee_cpu": 5, "wake_flags": 0, "this_load": 9000, "llc_size": 8}
    assert decide(kernel("4.3"), machine, idle=[0, 1, 6, 7], **given)["cpu"] == 6
    assert decide(kernel("4.3"), machine, idle=[0, 1, 2, 3], **given)["cpu"] == 0


def test_4_2_and_4_3_take_the_wakees_own_cpu_for_prev():
    given = {"prev": 1, "wakee_cpu": 2, "wake_flags": 0, "idle": [2], "waker_flips": 25, "wakee_flips": 5}
    assert decide(kernel("4.3"), **given)["cpu"] == 2
    assert decide(kernel("4.12.0"), **given | {"this_has_idle_cores": 0})["path"] == Path.CPU


@pytest.mark.parametrize(("release", "cpu"), [("4.16", 7), ("4.19", 7)])
def test_scan_finds_within_the_limit(release, cpu):
    given = {"prev": 5, "prev_load": 0, "wake_flags": 0, "this_avg_idle": 512, "this_avg_scan_cost": 99}
    assert decide(kernel(release), idle=[7], **given)["cpu"] == cpu


def test_until_4_16_cpus_that_are_not_allowed_use_up_the_limit():
    given = {"prev": 5, "prev_load": 0, "wake_flags": 0, "this_avg_idle": 512, "this_avg_scan_cost": 99}
    # from 5 on: 5 busy, 6 and 7 not allowed, 4 idle: the fourth of the LLC, the second of those allowed
    given |= {"allowed": [0, 4, 5], "idle": [4]}
    machine = topology(nodes=2, cores=4)  # no SMT, or the siblings would be searched last
    assert decide(kernel("4.16"), machine, **given)["path"] == Path.FALLBACK_TARGET
    assert decide(kernel("4.19"), machine, **given)["cpu"] == 4


def test_no_recent_cpu_before_4_16_and_no_kthread_rule_before_5_6():
    given = {"prev": 5, "recent_used_cpu": 6, "idle": [6], "wake_flags": 0, "prev_load": 0}
    assert decide(kernel("4.15"), **given)["path"] == Path.CPU
    assert decide(kernel("4.16"), **given)["path"] == Path.RECENT
    kthread = {"prev": 0, "waker_flags": 0x200000, "waker_nr_allowed": 1, "this_nr_running": 1, "wake_flags": 0}
    assert decide(kernel("4.19"), **kthread)["path"] != Path.KTHREAD
    assert decide(kernel("5.10"), **kthread)["path"] == Path.KTHREAD


def test_sched_idle_cpus_are_busy_before_5_4():
    assert decide(kernel("4.19"), sched_idle=[2], this_load=9000, wake_flags=0)["path"] == Path.FALLBACK_TARGET
    assert decide(kernel("5.10"), sched_idle=[2], this_load=9000, wake_flags=0)["path"] == Path.TARGET


def test_5_4_scans_for_idle_cpus_first_and_forgets_a_sched_idle_one_if_the_scan_was_whole():
    given = {"prev": 5, "prev_load": 0, "wake_flags": 0, "this_avg_idle": 5120}
    machine = topology(nodes=2, cores=4)  # no SMT, or the siblings would be searched last
    far, near = {"this_avg_scan_cost": 0}, {"this_avg_scan_cost": 999}  # all four CPUs, or three of them
    assert decide(kernel("5.4"), machine, sched_idle=[6], idle=[7], **given, **far)["cpu"] == 7
    assert decide(kernel("5.4"), machine, sched_idle=[6, 7], **given, **far)["path"] == Path.FALLBACK_TARGET
    assert decide(kernel("5.4"), machine, sched_idle=[6, 7], **given, **near)["cpu"] == 6
    assert decide(kernel("5.10"), machine, sched_idle=[6], idle=[7], **given, **far)["cpu"] == 6
    assert decide(kernel("5.4"), machine, sched_idle=[5], idle=[6], **given, **far)["cpu"] == 5  # prev: either will do


def test_5_4_takes_an_idle_sibling_before_a_sched_idle_one():
    machine = topology(nodes=2, cores=1, threads=4)
    given = {"prev": 4, "prev_load": 0, "wake_flags": 0, "this_avg_idle": 0, "this_avg_scan_cost": 9999}
    given |= {"allowed": [0, 1, 4, 5, 6, 7], "recent_used_cpu": 0}
    found = decide(kernel("5.4") | {"sis_avg_cpu": 1}, machine, sched_idle=[5], idle=[6], **given)
    assert (found["cpu"], found["path"]) == (6, Path.SMT)
    assert decide(kernel("5.4") | {"sis_avg_cpu": 1}, machine, sched_idle=[5], **given)["cpu"] == 5
    assert decide(kernel("5.10") | {"sis_avg_cpu": 1}, machine, sched_idle=[5], idle=[6], **given)["cpu"] == 5


def test_5_4_compares_the_runnable_loads_that_its_traces_have():
    found = captured(kernel("5.4"), kernel("5.4"))
    assert not found.forget
    assert not found.notes
    assert "this_load" in captured(kernel("5.10"), kernel("5.4")).forget


def read(policy, own, approximate=False, **given):
    """What a trace of own says of one decision to a policy: forgotten columns and the notes."""
    found = captured(policy, own, approximate)
    return found, found.rows(decision(**given))[0]


def test_what_was_not_captured_is_forgotten():
    own = kernel("6.12")
    found, row = read(kernel("4.15"), own)
    assert row["this_load"] == row["prev_load"] == NEVER64
    assert row["wakee_h_load"] == 500  # task_h_load() is the same to both
    assert row["this_avg_scan_cost"] == NEVER64  # 6.12 does not keep it
    assert any("runnable loads" in note for note in found.notes)
    _, row = read(kernel("4.3"), own)
    assert row["wakee_h_load"] == NEVER64
    _, row = read(kernel("6.12"), kernel("5.10"))
    assert row["prev_nr_idle_scan"] == row["this_nr_idle_scan"] == -1
    found, row = read(kernel("6.1"), own)
    assert found.forget == {}
    assert found.notes == ()


def test_approximation_is_asked_for_and_said():
    found, row = read(kernel("4.3"), kernel("6.12"), approximate=True)
    assert (row["this_load"], row["wakee_h_load"]) == (2000, 500)
    assert [note.startswith("APPROXIMATION") for note in found.notes[:2]] == [True, True]
    found, row = read(kernel("4.15"), kernel("6.12"), approximate=True)
    assert row["this_avg_scan_cost"] == NEVER64  # nothing stands in for that


def test_flags_are_read_as_recorded():
    found = captured(kernel("4.15"), kernel("6.12"))
    result = decide(found.policy, wake_flags=SYNC, this_nr_running=1, this_load=9000)
    assert result["affine"] == Affine.SYNC
    assert decide(found.policy, wake_flags=NEVER)["doubt"] & Doubt.SYNC


def test_sleepers_that_stay_queued_are_not_there_in_kernels_without_delayed_dequeue():
    given = {
        "wake_flags": SYNC,
        "this_nr_running": 2,
        "this_h_nr_queued": 2,
        "this_h_nr_runnable": 1,
        "this_load": 9000,
    }
    found = captured(kernel("6.1"), kernel("6.12"))
    assert decide(found.policy, **given)["affine"] == Affine.SYNC
    assert decide(kernel("6.12.8"), **given)["affine"] == Affine.WEIGHT_PREV  # it counted them until 6.12.37


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_reads_a_modern_trace(release):
    found = captured(kernel(release), kernel("6.12"))
    assert (found.policy.load == Load.RUNNABLE) == ("this_load" in found.forget)


def test_imbalance_beyond_the_llc_was_125():
    """b is 112 for the 125 of the domains of nodes, 108 for the 117 that they have since 5.10."""
    machine = topology(nodes=2, cores=2)  # prev is on the other node
    given = {"prev": 2, "wake_flags": 0, "wakee_h_load": 0}
    for release, most in (("4.19", 1119), ("5.10", 1079)):  # 100 * this < b * prev
        at, above = (
            decide(kernel(release), machine, this_load=load, prev_load=1000, **given) for load in (most, most + 1)
        )
        assert (at["affine"], above["affine"]) == (Affine.WEIGHT_THIS, Affine.WEIGHT_PREV)
    within = {"prev": 1, "wake_flags": 0, "wakee_h_load": 0, "this_load": 1080, "prev_load": 1000}
    assert decide(kernel("4.19"), machine, **within)["affine"] == Affine.WEIGHT_PREV
