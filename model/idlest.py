# SPDX-License-Identifier: GPL-2.0-only
"""find_idlest_cpu: where a fork or exec goes (since v6.10 sched_balance_find_dst_cpu, _group and _group_cpu).

Group by group, the domain with the most CPUs first: the group that looks idlest, then the idlest CPU in it, then the
same in that CPU's smaller domains.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from .compiled import compiled
from .idle import Path, sched_idle_cpu
from .loads import Changed
from .policy import Idlest, NumaSpare, Policy
from .topo import SD_BALANCE_EXEC, SD_NUMA, Groups, Machine, cpumask_intersects, cpumask_test_cpu, cpumask_weight_and
from .wakeup import NO_CPU, UNKNOWN, Asked, Doubt, Wakeup, asked, available_idle_cpu, either

SCALE = 1024  # SCHED_CAPACITY_SCALE, and scale_load_down(NICE_0_LOAD)
NO_GROUP = -1
UINT_MAX = 2**32 - 1
NUMA_IMBALANCE_MIN = 2


class GroupType(IntEnum):
    """How busy a group is, in the order in which find_idlest_group prefers them (enum group_type).

    The kernel has others between these, for load balancing and for CPUs of different capacity.
    """

    HAS_SPARE = 0
    FULLY_BUSY = 1
    IMBALANCED = 2  # affinity kept load balancing from evening it out
    OVERLOADED = 3


class Rule(IntEnum):
    """Why find_idlest_group took a group or stayed in its own."""

    UNKNOWN = 0  # a figure was not captured
    ALONE = 1  # stays: no other group has an allowed CPU, or none is better than overloaded
    NOT_ALLOWED = 2  # goes: no CPU of its own group is allowed
    LOCAL_TYPE = 3  # stays: its own group is of a better type
    OTHER_TYPE = 4  # goes: the other is
    NUMA_LOAD = 5  # stays: another node must have less load by more than the imbalance
    LOCAL_LOAD = 6  # stays: the other has more load by the imbalance
    EVEN_LOAD = 7  # stays: imbalance_pct allows the difference
    OTHER_LOAD = 8  # goes: the other has less load
    IMBALANCE = 9  # stays: both are imbalanced
    PREFERRED_HERE = 10  # stays: on the task's preferred node
    PREFERRED_THERE = 11  # goes: to it
    NUMA_SPARE = 12  # stays: so few tasks may share a node
    LOCAL_IDLE = 13  # stays: the other has no more idle CPUs
    OTHER_IDLE = 14  # goes: it has


class Stats(NamedTuple):
    """struct sg_lb_stats, of the allowed CPUs of a group and without the task itself.

    known: 0 if a figure was not captured; running: sum_nr_running; changed: Changed of any of its
    CPUs; group_changed: whether capacity or imbalance did.
    """

    known: int
    type: int
    util: int
    runnable: int
    running: int
    idle_cpus: int
    capacity: int
    weight: int
    avg_load: int
    changed: int
    group_changed: int


@compiled
def find_idlest_cpu(policy: Policy, machine: Machine, groups: Groups, w: Wakeup, level: int) -> tuple[int, Path]:
    """(CPU, path) from a level of w.cpu's domains on; (NO_CPU, SLOW) where a figure is missing."""
    if not cpumask_intersects(machine.cpus[w.cpu].sd_span[level], w.allowed):
        return w.prev_cpu, Path.OUTSIDE
    if machine.asym_active:  # fits a task by utilisation and clamps, which are not captured
        either(w, Doubt.CAPACITY)
        return NO_CPU, Path.SLOW
    cpu = new_cpu = w.cpu
    path = Path.STAYS
    while level >= 0:
        chain = machine.cpus[cpu]
        if not chain.sd_flags[level] & w.sd_flag:
            level -= 1
            continue
        group, rule = find_idlest_group(policy, machine, groups, w, cpu, level)
        if rule == Rule.UNKNOWN:
            either(w, Doubt.GROUPS)
            return NO_CPU, Path.SLOW
        if group != NO_GROUP:
            new_cpu, path = find_idlest_group_cpu(policy, groups, w, group, cpu)
        _note(w, cpu, level, group, rule, new_cpu)
        if group == NO_GROUP or new_cpu == cpu:
            level -= 1
            continue
        cpu = new_cpu
        weight = chain.sd_weight[level]
        level = -1
        below = machine.cpus[cpu]
        for lower in range(below.domains):
            if weight <= below.sd_weight[lower]:
                break
            if below.sd_flags[lower] & w.sd_flag:
                level = lower
    return new_cpu, path


@compiled
def _note(w: Wakeup, cpu: int, level: int, group: int, rule: Rule, new_cpu: int) -> None:
    """Keep a step of the walk for explain."""
    if w.nr_steps < len(w.steps):
        step = w.steps[w.nr_steps]
        step[0], step[1], step[2], step[3], step[4] = cpu, level, group, rule, new_cpu
        w.nr_steps += 1


@compiled
def look(w: Wakeup, stats: Stats, figures: int) -> None:
    """These figures of a group decide something: the decision is raced if one of its CPUs changed them meanwhile."""
    if stats.changed & figures:
        w.moved = 1


@compiled
def _look_at_group(w: Wakeup, stats: Stats) -> None:
    if stats.group_changed:
        w.moved = 1


@compiled
def update_sg_wakeup_stats(policy: Policy, groups: Groups, w: Wakeup, group: int, pct: int) -> Stats:
    """The Stats of a group, its type by a domain's imbalance_pct."""
    known = 1
    load = util = runnable = running = idle_cpus = changed = 0
    sg = groups.sgs[group]
    for cpu in range(len(w.known)):
        # 82d6e01a0699 (v6.19): CPUs that are not allowed no longer count
        if not cpumask_test_cpu(cpu, sg.span) or (policy.group_allowed and not cpumask_test_cpu(cpu, w.allowed)):
            continue
        own = w.sd_flag == SD_BALANCE_EXEC and cpu == w.wakee_cpu
        if own:
            asked(w, Asked.H_LOAD, -1, -1)  # in cpu_load_without()
            if w.jiffies != w.jiffies_exit:  # h_load is worked out anew in every jiffy
                changed |= Changed.LOAD.value
        if not w.known[cpu] or w.own_load[cpu] == UNKNOWN:
            known = 0
        changed |= w.changed[cpu]
        load += max(w.load[cpu] - w.own_load[cpu], 0)
        util += cpu_util_without(policy, w, cpu, own)
        runnable += max(w.runnable[cpu] - w.own_runnable[cpu], 0)
        nr_running = w.nr_running[cpu] - w.own_queued[cpu]
        running += nr_running
        # idle_cpu_without(): the idle task or the task itself runs, and no wakeup is on its way
        if not nr_running and w.curr[cpu] != 0 and not w.ttwu_pending[cpu]:
            idle_cpus += 1
    capacity = imbalance = group_changed = 0
    if sg.cpu >= 0 and w.known[sg.cpu]:
        capacity = w.capacity[sg.cpu, sg.level]
        imbalance = w.imbalance[sg.cpu] >> sg.level & 1
        group_changed = w.group_changed[sg.cpu] >> sg.level & 1
    if not capacity:
        known = 0
    weight = int(sg.weight)
    stats = Stats(known, 0, util, runnable, running, idle_cpus, capacity, weight, 0, changed, group_changed)
    kind = group_classify(w, pct, imbalance, stats)
    avg_load = 0
    if kind == GroupType.FULLY_BUSY or kind == GroupType.OVERLOADED:
        avg_load = load * SCALE // max(capacity, 1)
    return Stats(known, kind, util, runnable, running, idle_cpus, capacity, weight, avg_load, changed, group_changed)


@compiled
def cpu_util_without(policy: Policy, w: Wakeup, cpu: int, own: bool) -> int:
    """cpu_util_without(); CPUs are of one capacity (find_idlest_cpu sees to that)."""
    util = max(w.util[cpu] - w.own_util[cpu], 0)
    if policy.util_est:
        estimated = w.util_est[cpu]
        if own:  # an exec's task is current and queued
            estimated = max(estimated - w.own_util_est[cpu], 0)
        util = max(util, estimated)
    return int(min(util, SCALE))


@compiled
def group_classify(w: Wakeup, pct: int, imbalance: int, stats: Stats) -> int:
    """The GroupType of a group."""
    if group_is_overloaded(w, pct, stats):
        return GroupType.OVERLOADED.value
    _look_at_group(w, stats)
    if imbalance:
        return GroupType.IMBALANCED.value
    if not group_has_capacity(w, pct, stats):
        return GroupType.FULLY_BUSY.value
    return GroupType.HAS_SPARE.value


@compiled
def group_is_overloaded(w: Wakeup, pct: int, stats: Stats) -> bool:
    """More tasks than CPUs, and they want more than there is."""
    look(w, stats, Changed.TASKS.value)
    if stats.running <= stats.weight:
        return False
    look(w, stats, Changed.UTIL.value | Changed.RUNNABLE.value)
    _look_at_group(w, stats)
    return stats.capacity * 100 < stats.util * pct or stats.capacity * pct < stats.runnable * 100


@compiled
def group_has_capacity(w: Wakeup, pct: int, stats: Stats) -> bool:
    """Fewer tasks than CPUs, or they leave some of it."""
    if stats.running < stats.weight:
        return True
    look(w, stats, Changed.UTIL.value | Changed.RUNNABLE.value)
    if stats.capacity * pct < stats.runnable * 100:
        return False
    return stats.capacity * 100 > stats.util * pct


@compiled
def update_pick_idlest(w: Wakeup, idlest: Stats, stats: Stats) -> bool:
    """Whether a group is idler than the idlest so far."""
    if stats.type != idlest.type:
        return stats.type < idlest.type
    if stats.type == GroupType.IMBALANCED:
        return False
    if stats.type == GroupType.HAS_SPARE:
        if idlest.idle_cpus == stats.idle_cpus:
            look(w, idlest, Changed.UTIL.value)
            look(w, stats, Changed.UTIL.value)
            return stats.util < idlest.util  # v5.10
        return stats.idle_cpus > idlest.idle_cpus
    _look_at_loads(w, idlest, stats)
    return stats.avg_load < idlest.avg_load


@compiled
def _look_at_loads(w: Wakeup, one: Stats, other: Stats) -> None:
    look(w, one, Changed.LOAD.value)
    look(w, other, Changed.LOAD.value)
    _look_at_group(w, one)
    _look_at_group(w, other)


@compiled
def find_idlest_group(
    policy: Policy, machine: Machine, groups: Groups, w: Wakeup, this_cpu: int, level: int
) -> tuple[int, Rule]:
    """(group, rule) at one domain of this_cpu: the group to go to, or NO_GROUP to stay."""
    chain = machine.cpus[this_cpu]
    pct, count = chain.sd_pct[level], chain.sd_groups[level]
    idlest_group = local_group = NO_GROUP
    local = Stats(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    idlest = Stats(1, GroupType.OVERLOADED.value, 0, 0, 0, 0, 0, 0, UINT_MAX, 0, 0)
    if not count or not w.figures or policy.idlest != Idlest.TYPES:
        return NO_GROUP, Rule.UNKNOWN
    for i in range(count):
        group = groups.rings[chain.sd_ring[level] + i]
        if not cpumask_intersects(groups.sgs[group].span, w.allowed):
            continue
        stats = update_sg_wakeup_stats(policy, groups, w, group, pct)
        if not stats.known:
            return NO_GROUP, Rule.UNKNOWN
        if cpumask_test_cpu(this_cpu, groups.sgs[group].span):
            local_group, local = group, stats
        elif update_pick_idlest(w, idlest, stats):
            idlest_group, idlest = group, stats
    if idlest_group == NO_GROUP:
        return NO_GROUP, Rule.ALONE
    if local_group == NO_GROUP:
        return idlest_group, Rule.NOT_ALLOWED
    if local.type < idlest.type:
        return NO_GROUP, Rule.LOCAL_TYPE
    if local.type > idlest.type:
        return idlest_group, Rule.OTHER_TYPE
    if local.type == GroupType.HAS_SPARE:
        rule = _by_idle_cpus(policy, machine, groups, w, this_cpu, level, local_group, local, idlest_group, idlest)
    elif local.type == GroupType.IMBALANCED:
        rule = Rule.IMBALANCE
    else:
        rule = _by_load(policy, w, chain.sd_flags[level] & SD_NUMA != 0, pct, local, idlest)
    goes = rule == Rule.OTHER_LOAD or rule == Rule.PREFERRED_THERE or rule == Rule.OTHER_IDLE
    return idlest_group if goes else NO_GROUP, rule


@compiled
def _by_load(policy: Policy, w: Wakeup, numa: bool, pct: int, local: Stats, idlest: Stats) -> Rule:
    """Both groups are fully busy, or both overloaded."""
    _look_at_loads(w, local, idlest)
    imbalance = SCALE * (pct - 100) // 100
    if policy.idlest_local and numa and idlest.avg_load + imbalance >= local.avg_load:  # 2c83362734da, v4.17
        return Rule.NUMA_LOAD
    if idlest.avg_load >= local.avg_load + imbalance:
        return Rule.LOCAL_LOAD
    if 100 * local.avg_load <= pct * idlest.avg_load:
        return Rule.EVEN_LOAD
    return Rule.OTHER_LOAD


@compiled
def _by_idle_cpus(
    policy: Policy,
    machine: Machine,
    groups: Groups,
    w: Wakeup,
    this_cpu: int,
    level: int,
    local_group: int,
    local: Stats,
    idlest_group: int,
    idlest: Stats,
) -> Rule:
    """Both groups have spare capacity."""
    if machine.cpus[this_cpu].sd_flags[level] & SD_NUMA:
        if machine.cpus[this_cpu].node == w.preferred_nid:
            return Rule.PREFERRED_HERE
        if machine.cpus[groups.sgs[idlest_group].first].node == w.preferred_nid:
            return Rule.PREFERRED_THERE
        if _may_share_node(policy, machine, groups, w, this_cpu, level, local_group, local, idlest):
            return Rule.NUMA_SPARE
    return Rule.LOCAL_IDLE if local.idle_cpus >= idlest.idle_cpus else Rule.OTHER_IDLE


@compiled
def _may_share_node(
    policy: Policy,
    machine: Machine,
    groups: Groups,
    w: Wakeup,
    this_cpu: int,
    level: int,
    group: int,
    local: Stats,
    idlest: Stats,
) -> bool:
    """Whether the local group is to have the task by the NUMA rule, however many idle CPUs another has."""
    chain = machine.cpus[this_cpu]
    if policy.numa_spare == NumaSpare.IDLE:  # v5.5
        return local.idle_cpus > 0
    if policy.numa_spare == NumaSpare.QUARTER_SPAN:  # 23e6082a522e, v5.11
        return bool(local.running < chain.sd_weight[level] >> 2)
    if policy.numa_spare == NumaSpare.QUARTER_GROUP:  # 2cfb7a1b031b, v5.18
        return local.running + 1 < local.weight >> 2
    imb_numa_nr = chain.sd_imb[level]
    if policy.numa_spare == NumaSpare.IMB_NUMA_NR:  # e496132ebedd, v5.18
        return bool(local.running + 1 <= imb_numa_nr)
    # f5b2eeb49991, v6.0. NR_CPUS is not known, but only a task that is allowed them all is allowed more than there are.
    if w.wakee_nr_allowed <= len(machine.cpus):
        imb_numa_nr = min(imb_numa_nr, cpumask_weight_and(groups.sgs[group].span, w.allowed))
    imbalance = abs(local.idle_cpus - idlest.idle_cpus)
    return adjust_numa_imbalance(imbalance, local.running + 1, imb_numa_nr) == 0


@compiled
def adjust_numa_imbalance(imbalance: int, dst_running: int, imb_numa_nr: int) -> int:
    """The imbalance that counts: none if it is small and few tasks run there (cb29a5c19d2d, v6.0)."""
    if dst_running > imb_numa_nr:
        return imbalance
    return 0 if imbalance <= NUMA_IMBALANCE_MIN else imbalance


@compiled
def find_idlest_group_cpu(policy: Policy, groups: Groups, w: Wakeup, group: int, this_cpu: int) -> tuple[int, Path]:
    """(CPU, path) in a group: one with SCHED_IDLE tasks only, else an idle one, else the least loaded.

    Of idle ones the one that wakes fastest, and of those the one that became idle last.

    Cookies of core scheduling are not captured: taken to match.
    """
    sg = groups.sgs[group]
    if sg.weight == 1:
        return int(sg.first), Path.IDLEST_ONLY
    shallowest, least_loaded = NO_CPU, this_cpu
    min_exit_latency, latest_idle_timestamp, min_load = UINT_MAX, 0, -1
    for cpu in range(len(w.known)):
        if not cpumask_test_cpu(cpu, sg.span) or not cpumask_test_cpu(cpu, w.allowed):
            continue
        if sched_idle_cpu(policy, w, cpu):
            return cpu, Path.IDLEST_SCHED_IDLE
        if available_idle_cpu(w, cpu):
            if w.changed[cpu] & Changed.STATE.value:
                w.moved = 1
            latency, stamp = w.exit_latency[cpu], w.idle_stamp[cpu]
            if latency != UNKNOWN and latency < min_exit_latency:
                min_exit_latency, latest_idle_timestamp, shallowest = latency, stamp, cpu
            elif latency in (UNKNOWN, min_exit_latency) and stamp > latest_idle_timestamp:
                latest_idle_timestamp, shallowest = stamp, cpu
        elif shallowest == NO_CPU:
            if w.changed[cpu] & Changed.LOAD.value:
                w.moved = 1
            if min_load < 0 or w.load[cpu] < min_load:
                min_load, least_loaded = w.load[cpu], cpu
    if shallowest != NO_CPU:
        return shallowest, Path.IDLEST_IDLE
    return least_loaded, Path.IDLEST_LOAD
