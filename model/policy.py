# SPDX-License-Identifier: GPL-2.0-only
"""What one kernel's wakeup placement does, as features.

Stable series change inside themselves, so the model asks for features and never for a version; kernels.py says which
release has which. A patch is an edit of a Policy: `kernel("6.12") | {"prev_idle": False}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple


class WakeFlags(IntEnum):
    """How select_task_rq_fair's wake_flags are numbered (kernel/sched/sched.h, WF_*)."""

    SD_FLAG_APART = 0  # WF_SYNC 1; the kind of placement is the sd_flag argument
    SD_FLAG_WITHIN = 1  # WF_SYNC 0x10; the low nibble is the kind of placement (3aef1551e942, v5.11)


class AffineCount(IntEnum):
    """When wake_affine counts nr_wakeups_affine."""

    PICKED = 0  # when it decided for either CPU
    PULLED = 1  # only when it decided for the waker's CPU (39afe5d6fc59, v6.4)


class SchedIdle(IntEnum):
    """Who may take a CPU that runs only SCHED_IDLE tasks as if it were idle (sched_idle_cpu, 3c29e651e16d, v5.4)."""

    ANY = 0
    NOT_SCHED_IDLE = 1  # any but a SCHED_IDLE wakee (choose_sched_idle_rq, fd54d81c2c0e, v7.1)
    NOBODY = 2  # until v5.4
    LAST = 3  # a scan that finds none idle, unless it saw every CPU; no core of such CPUs is looked for (v5.4)


class RecentUsed(IntEnum):
    """When p.recent_used_cpu is replaced by prev, and which CPU the affinity test of the candidate looks at."""

    ON_HIT = 0  # replaced when taken (v4.16 to v5.14)
    PREV_TESTED = 1  # replaced first, so the test reads prev instead (89aafd67f28c, v5.15)
    ALWAYS = 2  # replaced first, the old value is tested (ae2ad293d6be, v6.5)
    NEVER = 3  # there is none (until v4.16)


class Scan(IntEnum):
    """The order of searches within the LLC of the target."""

    CORE_CPU_SMT = 0  # an idle core, then any idle CPU from target on, then the target's siblings
    SMT_CPU = 1  # prev's siblings if no core is idle (c722f35b513f, v5.13), then cores or CPUs from target + 1 on
    GROUPS = 2  # the first group of a domain of the LLC that is idle as a whole (until v4.8)


class Flips(IntEnum):
    """Whose wakee_flips record_wakee decays and counts."""

    WAKER = 0  # current's
    BOTH = 1  # current's and p's (couple-wakee-flips)
    HEAVY = 2  # current's, and p's if current has more than 2 * sd_llc_size times as many (couple-heavy-wakers)


class Wide(IntEnum):
    """When wake_wide says yes; m is the larger number of flips, s the smaller, f sd_llc_size."""

    SYMMETRIC = 0  # s >= f and m >= s * f (63b0e9edceec, v4.3)
    ASYMMETRIC = 1  # p's > f and current's > f * p's (until v4.2)
    HEAVY = 2  # m >= s * f and (s >= f or m >= f / 2 * f) (couple-heavy-wakers)


class IdlePull(IntEnum):
    """When wake_affine_idle takes the waker's CPU for being idle."""

    SHARED = 0  # if it shares prev's cache and prev is not idle (v4.16)
    ANYWHERE = 1  # in any case (v4.14)


class Load(IntEnum):
    """Which load of a runqueue wake_affine_weight compares."""

    AVERAGE = 0  # cfs_rq.avg.load_avg, which includes what sleepers left behind (11f10e5420f6, v5.5)
    RUNNABLE = 1  # the runnable load only


class Backoff(IntEnum):
    """When wake_affine's choice of a CPU delays the NUMA placement of waker and wakee."""

    NEVER = 0
    CACHE = 1  # when prev and the CPU share no cache (numa-delay-retry as posted)
    NODE = 2  # when they are on different nodes (7347fc87dfe6)


class Compare(IntEnum):
    """What numa_migrate_preferred does of a deadline that it finds when it is about to set a new one."""

    NONE = 0  # overwrites it
    INVERTED = 1  # gives up if the new one is later (numa-delay-retry, 7347fc87dfe6)
    RIGHT = 2  # gives up if the one it finds is later


class Idlest(IntEnum):
    """What find_idlest_group compares when it places a fork or exec."""

    TYPES = 0  # what kind of load each group has (57abff067a08, v5.5)
    RUNNABLE = 1  # runnable loads, load averages and spare capacities (v4.12)
    LOAD = 2  # loads


class NumaSpare(IntEnum):
    """When find_idlest_group keeps a task on its node though another has more idle CPUs; both have spare capacity."""

    IDLE = 0  # while the local group has an idle CPU (57abff067a08, v5.5)
    QUARTER_SPAN = 1  # while fewer tasks run there than a quarter of the domain's CPUs (23e6082a522e, v5.11)
    QUARTER_GROUP = 2  # while with it fewer would run than a quarter of the group's CPUs (2cfb7a1b031b, v5.18)
    IMB_NUMA_NR = 3  # while with it no more than sd.imb_numa_nr would run (e496132ebedd, v5.18)
    ADJUST = (
        4  # likewise, if the idle CPUs differ by two at most; allowed CPUs count (cb29a5c19d2d, f5b2eeb49991, v6.0)
    )


class AffineBy(IntEnum):
    """Who decides between the waker's CPU and the wakee's previous one."""

    IDLE_AND_WEIGHT = 0  # wake_affine_idle, then wake_affine_weight (v4.14)
    NEVER = 1  # nobody: always prev (nak-affine)
    EFFECTIVE_LOAD = 2  # the loads as they would be with the wakee here or there (until v4.12.3)
    NODES = 3  # the loads of both nodes (v4.12.4, v4.13)
    LLCS = 4  # the loads of both LLCs, as the load balancer last saw them (v4.14-rc)


class SharedCache(IntEnum):
    """What wake_affine says at once of two CPUs that share their LLC."""

    ASK = 0  # nothing
    PULL = 1  # the waker's CPU (skip-affine-core-siblings)
    KEEP = 2  # prev (nak-affine-shared)


class LlcFactor(IntEnum):
    """What sd_llc_size, wake_wide's factor, counts."""

    CPUS = 0
    GROUPS = 1  # groups of the LLC domain: cores, where there are SMT domains below it (llc-size-cores)


class PropClock(IntEnum):
    """What SIS_PROP takes as this CPU's idle time."""

    AVG_IDLE = 0  # rq.avg_idle / 512
    WAKE_AVG_IDLE = 1  # rq.wake_avg_idle, aged by jiffies (94aafc3ee31d, v5.14): not captured


class Policy(NamedTuple):
    """Features of a kernel's wakeup placement; ints all, so that compiled code takes the tuple as it is."""

    wake_flags: int = WakeFlags.SD_FLAG_WITHIN
    current_cpu: int = 1  # WF_CURRENT_CPU places at once on the waker's CPU (ab83f455f04d, v6.6)
    flips: int = Flips.WAKER
    record_all: int = 0  # record_wakee runs for every wakeup of a fair task, placed or not (until v4.8)
    on_cpu_queue: int = 1  # a wakee still leaving its CPU is queued there, not placed (c6e7bd7afaeb, v5.8)
    wide: int = Wide.SYMMETRIC
    wide_in_affine: int = 0  # wake_wide is asked by wake_affine only (until v4.2)
    llc_factor: int = LlcFactor.CPUS
    task_cpu: int = 0  # wake_affine and select_idle_sibling take task_cpu(p) for prev (until v4.8)
    balance_wake: int = 0  # every domain has SD_BALANCE_WAKE, as could be set until v5.6
    affine_rework: int = 0  # want-affine-rework
    prefer_idle: int = 0  # prefer-idle-cpu
    wide_idle: int = 0  # wake-wide-idle
    exiting_sync: int = 0  # WF_SYNC counts even while current exits (until v4.16)
    affine_by: int = AffineBy.IDLE_AND_WEIGHT
    shared_cache: int = SharedCache.ASK
    idle_pull: int = IdlePull.SHARED
    weight_tie: int = 0  # even loads favour the waker's CPU (until v4.16)
    load: int = Load.AVERAGE
    wa_idle: int = 1  # sched_feat(WA_IDLE)
    wa_weight: int = 1  # sched_feat(WA_WEIGHT)
    wa_bias: int = 1  # sched_feat(WA_BIAS)
    prev_idle: int = 1  # wake_affine_idle's third rule: an idle prev keeps the task (d8fcb81f1acf, v5.11)
    sync_runnable: int = 1  # its sync rule does not count tasks whose dequeue is delayed (aa3ee4f0b754, v6.16)
    delay_dequeue: int = 1  # sched_feat(DELAY_DEQUEUE): sleepers may stay queued (152e11f6df29, v6.12)
    affine_count: int = AffineCount.PULLED
    sched_idle: int = SchedIdle.ANY
    kthread: int = 1  # a per-CPU kthread stacks what it wakes (52262ee567ad, v5.6)
    kthread_in_task: int = 1  # the per-CPU kthread rule holds in task context only (8b4e74ccb582, v5.17)
    recent_used: int = RecentUsed.ALWAYS
    scan: int = Scan.SMT_CPU
    sis_prop: int = 0  # sched_feat(SIS_PROP)
    sis_util: int = 1  # sched_feat(SIS_UTIL): scan nr_idle_scan CPUs (70fb5ccf2ebb, v6.0)
    sis_avg_cpu: int = 0  # sched_feat(SIS_AVG_CPU)
    this_sd: int = 0  # select_idle_cpu() gives up where the waking CPU has no LLC domain (until 96c1c0cfe493, v6.1)
    prop_clock: int = PropClock.WAKE_AVG_IDLE
    scan_all: int = 0  # CPUs the task may not use count among those scanned (until v4.16)
    core_in_mask: int = 1  # an idle sibling of a busy core must lie in the scanned mask (23d04d8c6b8e, v6.9)
    smt_in_llc: int = 1  # select_idle_smt stays within the LLC domain (lost in 3e6efe87cd5c, v6.1; 8aeaffef8c6e, v6.9)
    smt_skips_prev: int = 1  # select_idle_smt does not ask about prev again (b9bae70440d2, v6.1)
    cluster: int = 1  # clusters are searched before the LLC (8881e1639f1f, 22165f61d0c4, v6.7)
    numa_backoff: int = Backoff.NEVER
    numa_compare: int = Compare.NONE
    numa_placed: int = 0  # task_numa_placement migrates to a new preferred node at once (until v4.18)
    group_allowed: int = 1  # find_idlest_group() sums up allowed CPUs alone (82d6e01a0699, v6.19)
    numa_fork_reset: int = 1  # a child starts without a deadline (70ce3ea9aa4e, v6.0)
    idlest: int = Idlest.TYPES
    idlest_local: int = 1  # forks across nodes must overcome the imbalance (2c83362734da, v4.17)
    numa_spare: int = NumaSpare.ADJUST
    util_est: int = 1  # sched_feat(UTIL_EST)
    far_pct: int = 0  # imbalance_pct of domains that share no cache, if other than captured: 125 until v5.9

    def __or__(self, edit: Mapping[str, int]) -> Policy:
        """This policy with some features changed."""
        return self._replace(**edit)


# What a kernel does that has a feature so: why a patch makes no sense there.
IN_WORDS: dict[str, dict[int, str]] = {
    "affine_by": {
        AffineBy.NEVER: "wake_affine always refuses",
        AffineBy.EFFECTIVE_LOAD: "wake_affine compares effective loads",
        AffineBy.NODES: "wake_affine compares the loads of whole nodes",
        AffineBy.LLCS: "wake_affine compares the loads of whole LLCs",
    },
    "shared_cache": {
        SharedCache.PULL: "wake_affine takes the waker's CPU at once if prev shares its cache",
        SharedCache.KEEP: "wake_affine takes prev at once if it shares the waker's cache",
    },
    "flips": {
        Flips.BOTH: "record_wakee counts the wakee's flips already",
        Flips.HEAVY: "record_wakee counts flips of heavy wakers' wakees already",
    },
    "llc_factor": {LlcFactor.GROUPS: "sd_llc_size counts cores already"},
    "wide": {
        Wide.SYMMETRIC: "wake_wide is symmetric",
        Wide.ASYMMETRIC: "wake_wide is asymmetric",
        Wide.HEAVY: "wake_wide is that of couple-heavy-wakers",
    },
    "wide_in_affine": {1: "wake_wide is asked by wake_affine"},
    "balance_wake": {1: "every domain has SD_BALANCE_WAKE already"},
    "affine_rework": {1: "want-affine-rework is applied already"},
    "prefer_idle": {1: "prefer-idle-cpu is applied already"},
    "wide_idle": {1: "wake-wide-idle is applied already"},
    "numa_backoff": {
        Backoff.CACHE: "wake_affine puts off NUMA placement already",
        Backoff.NODE: "wake_affine puts off NUMA placement already",
    },
    "numa_fork_reset": {1: "a child starts without a NUMA deadline already"},
    "idlest": {Idlest.LOAD: "forks and execs go by plain loads"},
    "idlest_local": {
        0: "forks and execs need not overcome the imbalance to leave their node",
        1: "forks and execs must overcome the imbalance to leave their node already",
    },
}
