# SPDX-License-Identifier: GPL-2.0-only
"""wake_affine: the waker's CPU or the wakee's previous one."""

from __future__ import annotations

from enum import IntEnum

from .compiled import compiled
from .policy import AffineBy, IdlePull, Policy, SharedCache
from .topo import Machine, cpus_share_cache
from .wakeup import NO_CPU, UNKNOWN, Asked, Doubt, Wakeup, asked, available_idle_cpu, either


class Affine(IntEnum):
    """Why wake_affine was not asked, or which of its rules decided."""

    NONE = 0  # not reached: another class of placement, or WF_CURRENT_CPU
    WIDE = 1  # wake_wide said no
    DISALLOWED = 2  # the wakee may not run on the waking CPU
    SAME = 3  # prev is the waking CPU: nothing to decide
    NO_DOMAIN = 4  # no domain of the waking CPU with SD_WAKE_AFFINE holds prev
    THIS_IDLE = 5  # this CPU is idle and shares prev's cache: this CPU
    BOTH_IDLE = 6  # likewise, but prev is idle too: prev
    SYNC = 7  # sync and current runs alone: this CPU
    PREV_IDLE = 8  # prev is idle: prev
    SYNC_LOAD = 9  # sync and current's load exceeds this CPU's: this CPU
    WEIGHT_THIS = 10  # the loads favour this CPU
    WEIGHT_PREV = 11  # they do not: prev
    UNDECIDED = 12  # no rule is switched on: prev
    NEVER = 13  # wake_affine always refuses: prev
    SHARED_PULL = 14  # the CPUs share their cache, and that is enough: this CPU
    SHARED_KEEP = 15  # the CPUs share their cache, and that is enough: prev


@compiled
def wake_affine_idle(
    policy: Policy, machine: Machine, w: Wakeup, this_cpu: int, prev_cpu: int, sync: bool
) -> tuple[int, Affine]:
    """(CPU, rule) by idleness, or (NO_CPU, UNDECIDED)."""
    if available_idle_cpu(w, this_cpu):
        if policy.idle_pull == IdlePull.ANYWHERE:
            return this_cpu, Affine.THIS_IDLE
        asked(w, Asked.SHARE_CACHE, this_cpu, prev_cpu)
        if cpus_share_cache(machine, this_cpu, prev_cpu):
            if available_idle_cpu(w, prev_cpu):
                return prev_cpu, Affine.BOTH_IDLE  # v4.16
            return this_cpu, Affine.THIS_IDLE
    if sync and alone(policy, w):
        return this_cpu, Affine.SYNC
    if policy.prev_idle and available_idle_cpu(w, prev_cpu):  # d8fcb81f1acf, v5.11
        return prev_cpu, Affine.PREV_IDLE
    return NO_CPU, Affine.UNDECIDED


@compiled
def alone(policy: Policy, w: Wakeup) -> bool:
    """Whether current is the only task on this runqueue; with sync_runnable, delayed dequeues do not count."""
    nr = w.this_nr_running
    asked(w, Asked.NR_RUNNING, -1, -1)
    if nr == UNKNOWN:
        return either(w, Doubt.ALONE)
    if not policy.sync_runnable:
        return bool(nr == 1)
    if w.this_nr_delayed == UNKNOWN:
        return nr > 0 and either(w, Doubt.ALONE)
    return bool(nr - w.this_nr_delayed == 1)  # aa3ee4f0b754, v6.16


@compiled
def wake_affine_weight(
    policy: Policy, machine: Machine, w: Wakeup, level: int, this_cpu: int, prev_cpu: int, sync: bool
) -> tuple[int, Affine]:
    """(CPU, rule) by load: this CPU if it would carry less with the wakee than prev does without.

    cpu_load() is the root cfs_rq's load_avg, blocked load included (v5.7). A tie goes to prev, and on sync wakeups to
    this CPU (v4.17; before, all ties went to this CPU).
    """
    this_eff_load = w.this_load
    asked(w, Asked.LOAD, -1, -1)
    if this_eff_load == UNKNOWN or w.prev_load == UNKNOWN:
        return weigh_unknown(w, this_cpu)
    if sync:
        asked(w, Asked.H_LOAD, -1, -1)
        if w.waker_h_load == UNKNOWN:
            return weigh_unknown(w, this_cpu)
        if w.waker_h_load > this_eff_load:
            return this_cpu, Affine.SYNC_LOAD
        this_eff_load -= w.waker_h_load
    asked(w, Asked.H_LOAD, -1, -1)
    if w.wakee_h_load == UNKNOWN or w.this_capacity == UNKNOWN or w.prev_capacity == UNKNOWN:
        return weigh_unknown(w, this_cpu)
    this_eff_load += w.wakee_h_load
    prev_eff_load = w.prev_load - w.wakee_h_load
    if policy.wa_bias:
        this_eff_load *= 100
        prev_eff_load *= 100 + (imbalance_pct(policy, machine, w.cpu, level) - 100) // 2
    this_eff_load *= w.prev_capacity
    prev_eff_load *= w.this_capacity
    if sync or policy.weight_tie:
        prev_eff_load += 1
    if this_eff_load < prev_eff_load:
        return this_cpu, Affine.WEIGHT_THIS
    return NO_CPU, Affine.WEIGHT_PREV


@compiled
def imbalance_pct(policy: Policy, machine: Machine, cpu: int, level: int) -> int:
    """Of a CPU's domain: as captured, or what the policy's kernel sets for domains beyond the LLC."""
    chain = machine.cpus[cpu]
    beyond = not chain.llc or level > chain.llc_level
    return int(policy.far_pct if policy.far_pct and beyond else chain.sd_pct[level])


@compiled
def weigh_unknown(w: Wakeup, this_cpu: int) -> tuple[int, Affine]:
    """Either, for want of loads or capacities."""
    if either(w, Doubt.WEIGHT):
        return this_cpu, Affine.WEIGHT_THIS
    return NO_CPU, Affine.WEIGHT_PREV


@compiled
def effective_load(
    policy: Policy, machine: Machine, w: Wakeup, level: int, this_cpu: int, sync: bool
) -> tuple[int, Affine]:
    """(CPU, rule) by the loads as they would be (wake_affine until v4.12.3, for tasks of the root group).

    Weights are the tasks' loads. Unlike wake_affine_weight the wakee's load is not taken off prev, and even loads
    favour this CPU. Groups' shares are not captured, so within one this holds for an approximation only.
    """
    asked(w, Asked.LOAD, -1, -1)
    loads = w.this_load == UNKNOWN or w.prev_load == UNKNOWN or w.wakee_h_load == UNKNOWN
    elsewhere = policy.task_cpu and w.wakee_cpu != w.prev_cpu  # of that CPU no load was captured
    if (
        loads
        or elsewhere
        or w.this_capacity == UNKNOWN
        or w.prev_capacity == UNKNOWN
        or (sync and w.waker_h_load == UNKNOWN)
    ):
        return weigh_unknown(w, this_cpu)
    this_load = w.this_load - w.waker_h_load if sync else w.this_load
    this_eff_load = 100 * w.prev_capacity
    prev_eff_load = (100 + (imbalance_pct(policy, machine, w.cpu, level) - 100) // 2) * w.this_capacity
    if this_load > 0:
        this_eff_load *= this_load + w.wakee_h_load
        prev_eff_load *= w.prev_load
    if this_eff_load <= prev_eff_load:
        return this_cpu, Affine.WEIGHT_THIS
    return NO_CPU, Affine.WEIGHT_PREV


@compiled
def loads_of_many(w: Wakeup, this_cpu: int) -> tuple[int, Affine]:
    """(CPU, rule) by sums over nodes (numa_wake_affine, v4.13) or LLCs (wake_affine_llc, v4.14-rc): not captured."""
    if either(w, Doubt.SUMS):
        return this_cpu, Affine.WEIGHT_THIS
    return NO_CPU, Affine.WEIGHT_PREV


@compiled
def wake_affine(
    policy: Policy, machine: Machine, w: Wakeup, level: int, this_cpu: int, prev_cpu: int, sync: bool
) -> tuple[int, Affine]:
    """(CPU, rule): this_cpu or prev_cpu. level is that of the affine domain in this_cpu's chain."""
    if policy.affine_by == AffineBy.NEVER:
        return prev_cpu, Affine.NEVER
    if policy.shared_cache != SharedCache.ASK and cpus_share_cache(machine, this_cpu, prev_cpu):
        if policy.shared_cache == SharedCache.PULL:
            return this_cpu, Affine.SHARED_PULL
        return prev_cpu, Affine.SHARED_KEEP
    target, rule = NO_CPU, Affine.UNDECIDED
    if policy.affine_by == AffineBy.EFFECTIVE_LOAD:
        target, rule = effective_load(policy, machine, w, level, this_cpu, sync)
    elif policy.affine_by in (AffineBy.NODES, AffineBy.LLCS):
        target, rule = loads_of_many(w, this_cpu)
    else:
        if policy.wa_idle:
            target, rule = wake_affine_idle(policy, machine, w, this_cpu, prev_cpu, sync)
        if policy.wa_weight and target == NO_CPU:
            target, rule = wake_affine_weight(policy, machine, w, level, this_cpu, prev_cpu, sync)
    if target == NO_CPU:
        return prev_cpu, rule
    return target, rule
