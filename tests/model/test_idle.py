# SPDX-License-Identifier: GPL-2.0-only
"""select_idle_sibling against tables worked out by hand: CPUs 0-3 share an LLC (cores 0-1 and 2-3), 4-7 another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from wakescope.model.idle import Path
from wakescope.model.kernels import kernel
from wakescope.model.replay import Certainty
from wakescope.model.wakeup import PF_KTHREAD, SCHED_IDLE, Doubt
from wakescope.schema import NEVER64, Context
from wakescope.tests.maketrace import topology
from wakescope.topology import Cpu, Domain, Topology

from .decisions import BOX, decide

NEW, OLD = kernel("6.12"), kernel("5.10")
LINE = topology(nodes=1, cores=8)  # eight CPUs, one LLC, no SMT


def outcome(policy, machine=None, **what):
    """(CPU, path) of a wakeup from CPU 0, whose target is prev: wide, so that wake_affine has no say."""
    wide = {"waker_flips": 1000, "wakee_flips": 10}
    result = decide(policy, machine, **wide | what) if machine else decide(policy, **wide | what)
    assert result["certainty"] == Certainty.EXACT
    return result["cpu"], Path(result["path"])


SCAN = {"prev_has_idle_cores": 0}
TABLE_6_12 = [
    ({"idle": [2, 3]}, 2, Path.TARGET),
    ({"idle": [3], "recent_used_cpu": 1}, 3, Path.SMT),
    ({"idle": [1, 3], "recent_used_cpu": 1}, 1, Path.RECENT),
    ({"idle": [1, 3], "recent_used_cpu": 1, "allowed": [0, 2, 3]}, 3, Path.SMT),
    ({"idle": [5], "recent_used_cpu": 5}, 2, Path.FALLBACK_TARGET),  # recent is in the other LLC
    ({"idle": [0, 1]}, 0, Path.CPU),  # from target + 1: 3, then 0
    ({"idle": [1]}, 1, Path.CPU),
    ({"idle": [1], "allowed": [0, 2, 3]}, 2, Path.FALLBACK_TARGET),
    ({"idle": [4, 5, 6, 7]}, 2, Path.FALLBACK_TARGET),
    ({"idle": [1], "prev_nr_idle_scan": 3}, 1, Path.CPU),  # 3, 0 and 1 are looked at
    ({"idle": [1], "prev_nr_idle_scan": 2}, 2, Path.FALLBACK_TARGET),
    ({"idle": [1], "prev_nr_idle_scan": 0}, 2, Path.FALLBACK_TARGET),
    ({"idle": [0, 1, 3], "prev_has_idle_cores": 1}, 0, Path.CORE),
    ({"idle": [0, 1, 3], "prev_has_idle_cores": 0}, 3, Path.SMT),
    ({"idle": [1, 3], "prev_has_idle_cores": 1}, 3, Path.CORE_SIBLING),  # met first, with CPU 2's core
    ({"idle": [1], "prev_has_idle_cores": 1, "prev_nr_idle_scan": 1}, 1, Path.CORE_SIBLING),  # no limit for cores
    ({"idle": [0, 1], "prev_has_idle_cores": 1, "prev_nr_idle_scan": 0}, 2, Path.FALLBACK_TARGET),  # yet none at 0
    ({"sched_idle": [2], "idle": [0]}, 2, Path.TARGET),
    ({"sched_idle": [3], "idle": [0]}, 3, Path.SMT),
    ({"sched_idle": [1]}, 1, Path.CPU),
]


@pytest.mark.parametrize(("what", "cpu", "path"), TABLE_6_12)
def test_order_of_checks_in_6_12(what, cpu, path):
    assert outcome(NEW, **what) == (cpu, path)


TABLE_5_10 = [
    ({"idle": [2, 3]}, 2, Path.TARGET),
    ({"idle": [1], "recent_used_cpu": 1}, 1, Path.RECENT),
    ({"idle": [0, 1, 3], "prev_has_idle_cores": 1}, 0, Path.CORE),
    ({"idle": [1, 3], "prev_has_idle_cores": 1}, 3, Path.CPU),  # no idle core: on with the scan from target
    ({"idle": [3]}, 3, Path.CPU),
    ({"idle": [1]}, 1, Path.CPU),
    ({"idle": [3], "allowed": [0, 1, 2]}, 2, Path.FALLBACK_TARGET),
    # 4 * (2_000_000 // 512) // (2000 + 1) = 7 and 4 * (1_000_000 // 512) // 2001 = 3, below the floor of 4
    ({"idle": [1], "this_avg_idle": 2_000_000, "this_avg_scan_cost": 2000}, 1, Path.CPU),
    ({"idle": [1], "this_avg_idle": 1_000_000, "this_avg_scan_cost": 2000}, 2, Path.FALLBACK_TARGET),
    ({"idle": [0], "this_avg_idle": 1_000_000, "this_avg_scan_cost": 2000}, 0, Path.CPU),  # the third looked at
]


@pytest.mark.parametrize(("what", "cpu", "path"), TABLE_5_10)
def test_order_of_checks_in_5_10(what, cpu, path):
    assert outcome(OLD, wake_flags=0, **what) == (cpu, path)


def test_5_10_comes_to_the_siblings_last():
    """The scan was cut before it came to the sibling: select_idle_smt(target) finds it."""
    what = {"idle": [1], "prev": 0, "cpu": 4, "allowed": [0, 1, 3], "this_avg_idle": 0, "this_avg_scan_cost": 2000}
    machine = topology(nodes=1, cores=4, threads=2)
    what |= {"llc_size": 8, "idle": [7], "prev": 6, "allowed": range(8)}
    assert outcome(OLD, machine, **what) == (7, Path.CPU)
    assert outcome(OLD, machine, **what | {"prev": 7, "idle": [6]}) == (6, Path.SMT)


def test_scan_wraps_and_starts_after_the_target():
    line = {"recent_used_cpu": 5, "prev": 5, "llc_size": 8, "prev_nr_idle_scan": 7}
    assert outcome(NEW, LINE, idle=[4, 6], **line) == (6, Path.CPU)
    assert outcome(NEW, LINE, idle=[4], **line) == (4, Path.CPU)
    assert outcome(NEW, LINE, idle=[4], **line | {"prev_nr_idle_scan": 6}) == (5, Path.FALLBACK_TARGET)
    assert outcome(NEW, LINE, idle=[0, 4], **line | {"prev": 7, "recent_used_cpu": 7}) == (0, Path.CPU)


def test_per_cpu_kthread_stacks_on_prev():
    kthread = {"prev": 0, "waker_flags": PF_KTHREAD, "waker_nr_allowed": 1, "this_nr_running": 1, "idle": [1]}
    assert outcome(NEW, **kthread) == (0, Path.KTHREAD)
    assert outcome(NEW, **kthread | {"this_nr_running": 2}) == (1, Path.SMT)
    assert outcome(NEW, **kthread | {"waker_nr_allowed": 2}) == (1, Path.SMT)
    assert outcome(NEW, **kthread | {"waker_flags": 0}) == (1, Path.SMT)
    in_interrupt = kthread | {"context": Context.HARDIRQ}
    assert outcome(NEW, **in_interrupt) == (1, Path.SMT)
    assert outcome(kernel("5.10.93"), **in_interrupt) == (0, Path.KTHREAD)
    assert decide(NEW, **kthread | {"context": Context.UNKNOWN})["doubt"] == Doubt.KTHREAD


def test_recent_used_cpu_was_tested_by_prevs_place():
    """From 5.15 to 6.4 the affinity test read prev: a disallowed recent CPU is taken, an allowed one may not be."""
    disallowed = {"recent_used_cpu": 1, "idle": [1], "allowed": [0, 2, 3]}
    assert outcome(kernel("6.1.41"), **disallowed) == (1, Path.RECENT)
    assert outcome(kernel("6.1.42"), **disallowed) == (2, Path.FALLBACK_TARGET)
    prev_disallowed = {"recent_used_cpu": 1, "idle": [1], "allowed": [0, 1, 3], "prev_nr_idle_scan": 0}
    assert outcome(kernel("6.1.41"), **prev_disallowed) == (2, Path.FALLBACK_TARGET)
    assert outcome(kernel("6.1.42"), **prev_disallowed) == (1, Path.RECENT)


def test_idle_sibling_outside_the_scan():
    """A domain that leaves CPU 3 out, as isolcpus does: between 6.1 and 6.9 its sibling could still pick it."""
    domains = [
        Domain(cpu, 0, "MC", ["WAKE_AFFINE", "SHARE_LLC"], 117, [0, 1, 2]) for cpu in range(3)
    ]  # fmt: skip
    machine = Topology([Cpu(cpu, cpu - cpu % 2, 0, 0, 0) for cpu in range(4)], domains)
    what = {"idle": [3], "llc_size": 3, "prev_nr_idle_scan": 3}
    assert outcome(kernel("6.1.82"), machine, **what) == (3, Path.SMT)
    assert outcome(kernel("6.1.83"), machine, **what) == (2, Path.FALLBACK_TARGET)
    with_cores = what | {"prev_has_idle_cores": 1}
    assert outcome(kernel("6.1.82"), machine, **with_cores) == (3, Path.CORE_SIBLING)
    assert outcome(kernel("6.1.83"), machine, **with_cores) == (2, Path.FALLBACK_TARGET)


def test_a_sched_idle_wakee_does_not_take_sched_idle_cpus_from_7_1():
    what = {"sched_idle": [2], "idle": [1], "wakee_policy": SCHED_IDLE}
    assert outcome(kernel("7.0"), **what) == (2, Path.TARGET)
    assert outcome(kernel("7.1"), **what) == (1, Path.CPU)
    assert outcome(kernel("7.1"), **what | {"wakee_policy": 0}) == (2, Path.TARGET)


def test_without_an_llc_domain_the_target_is_taken():
    machine = topology(nodes=2, llcs=2, cores=1)
    assert outcome(NEW, machine, prev=1, idle=[0, 2, 3]) == (1, Path.NO_LLC)


@pytest.mark.parametrize(("release", "scans"), [("5.13", False), ("5.15", False), ("6.0", False), ("6.1", True)])
def test_until_6_0_a_cpu_without_an_llc_domain_does_not_scan(release, scans):
    """96c1c0cfe493: the waking CPU is isolated, and the target's LLC has an idle CPU, or an idle core."""
    isolated = replace(BOX, domains=[sd for sd in BOX.domains if sd.cpu != 0])
    what = {"prev": 4, "idle": [7], "this_nr_idle_scan": 4, "prev_nr_idle_scan": 4}
    assert outcome(kernel(release), isolated, **what) == ((7, Path.CPU) if scans else (4, Path.FALLBACK_TARGET))
    what = {"prev": 4, "idle": [6, 7], "prev_has_idle_cores": 1}
    assert outcome(kernel(release), isolated, **what) == ((6, Path.CORE) if scans else (4, Path.FALLBACK_TARGET))


def test_sis_avg_cpu_needs_no_sis_prop():
    what = {"idle": [1], "this_avg_idle": 5120}
    for sis_avg_cpu, scan_cost, expected in ((0, 1000, 1), (1, 1000, 2), (1, 9, 1), (1, 10, 2)):
        policy = OLD | {"sis_avg_cpu": sis_avg_cpu, "sis_prop": 0}
        assert outcome(policy, **what, this_avg_scan_cost=scan_cost)[0] == expected
    unknown = decide(OLD | {"sis_avg_cpu": 1, "sis_prop": 0}, **what, this_avg_scan_cost=NEVER64, waker_flips=1000)
    assert unknown["certainty"] == Certainty.UNDECIDABLE


def clusters():
    """Eight CPUs in one LLC, clusters of four; the LLC's groups are the clusters."""
    domains = []
    for cpu in range(8):
        own = list(range(cpu - cpu % 4, cpu - cpu % 4 + 4))
        domains.append(Domain(cpu, 0, "CLS", ["WAKE_AFFINE", "SHARE_LLC", "CLUSTER"], 117, own))
        flags = ["WAKE_AFFINE", "SHARE_LLC"]
        groups = {"groups": 2, "group_span": own, "groups_flags": ["CLUSTER", "SHARE_LLC"]}
        domains.append(Domain(cpu, 1, "MC", flags, 117, list(range(8)), **groups))
    return Topology([Cpu(cpu, cpu, 0, 0, 0) for cpu in range(8)], domains)


CLUSTER_TABLE = [
    # target is prev, CPU 2
    ({"idle": [1, 4]}, 1, Path.CPU),  # own cluster first: 3, 0, 1
    ({"idle": [4]}, 4, Path.CPU),  # then the rest: 3 ..., 4
    ({"idle": [4], "prev_nr_idle_scan": 4}, 2, Path.FALLBACK_TARGET),  # all four looks went to the cluster
    ({"idle": [4], "prev_nr_idle_scan": 5}, 4, Path.CPU),
    ({"idle": [6], "recent_used_cpu": 6, "prev_nr_idle_scan": 0}, 6, Path.FALLBACK_RECENT),
    ({"idle": [1, 6], "recent_used_cpu": 6}, 1, Path.CPU),  # a recent CPU of another cluster comes after the scan
    ({"idle": [1, 6], "recent_used_cpu": 1}, 1, Path.RECENT),
]


@pytest.mark.parametrize(("what", "cpu", "path"), CLUSTER_TABLE)
def test_clusters(what, cpu, path):
    assert outcome(NEW, clusters(), **{"llc_size": 8, "prev_nr_idle_scan": 8} | what) == (cpu, path)


def test_prev_of_another_cluster_comes_last():
    """The waker's CPU 0 is the target; prev 6 is idle, shares the LLC and not the cluster."""
    what = {"prev": 6, "wake_flags": 0x18, "this_nr_running": 1, "this_h_nr_queued": 1, "this_h_nr_runnable": 1}
    result = decide(NEW, clusters(), idle=[6], this_nr_idle_scan=0, llc_size=8, **what)
    assert (result["cpu"], result["path"]) == (6, Path.FALLBACK_PREV)
    result = decide(NEW, clusters(), idle=[6, 3], this_nr_idle_scan=8, llc_size=8, **what)
    assert (result["cpu"], result["path"]) == (3, Path.CPU)
    result = decide(kernel("6.6"), clusters(), idle=[6, 3], this_nr_idle_scan=8, llc_size=8, **what)
    assert (result["cpu"], result["path"]) == (6, Path.PREV)


def test_an_unknown_depth_matters_only_if_something_is_to_be_found():
    wide = {"waker_flips": 1000, "wakee_flips": 10, "prev_nr_idle_scan": -1}
    assert decide(NEW, idle=[1], **wide)["certainty"] == Certainty.UNDECIDABLE
    assert decide(NEW, idle=[], **wide)["certainty"] == Certainty.EXACT


def test_wake_avg_idle_is_not_captured():
    wide = {"waker_flips": 1000, "wakee_flips": 10, "llc_size": 8, "prev": 2, "recent_used_cpu": 2}
    old = kernel("5.15.0")
    assert decide(old, LINE, idle=[5], **wide)["cpu"] == 5  # within the least depth, three CPUs
    result = decide(old, LINE, idle=[6], **wide)
    assert (result["certainty"], result["doubt"]) == (Certainty.UNDECIDABLE, Doubt.SCAN_DEPTH)
    assert decide(OLD, LINE, idle=[5], this_avg_idle=NEVER64, **wide)["cpu"] != 5
