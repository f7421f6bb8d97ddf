# SPDX-License-Identifier: GPL-2.0-only
"""select_idle_sibling: an idle CPU near the target."""

from __future__ import annotations

from enum import IntEnum

from .compiled import compiled
from .old_idle import scan_span, select_idle_group
from .policy import Policy, PropClock, RecentUsed, Scan, SchedIdle
from .topo import Array, Machine, cpumask_clear_cpu, cpumask_test_cpu, cpus_share_cache, cpus_share_resources
from .wakeup import ANY_CPU, NO_CPU, UNKNOWN, Asked, Doubt, Wakeup, asked, available_idle_cpu, either

INT_MAX = 2**31 - 1


class Path(IntEnum):
    """Which check returned the CPU."""

    NONE = 0  # the model was not asked
    CURRENT_CPU = 1  # WF_CURRENT_CPU: the waking CPU
    TARGET = 2  # the target is idle
    PREV = 3  # prev is idle and shares the target's cache
    KTHREAD = 4  # a per-CPU kthread wakes what queued its work: stack on prev
    RECENT = 5  # p.recent_used_cpu is idle and shares the target's cache
    NO_LLC = 6  # the target has no LLC domain: the target, whatever it runs
    SMT = 7  # an idle SMT sibling
    CORE = 8  # an idle core
    CORE_SIBLING = 9  # no core is idle, but a thread met while looking for one is
    CPU = 10  # an idle CPU of the LLC
    FALLBACK_PREV = 11  # none found: prev, idle but outside the target's cluster
    FALLBACK_RECENT = 12  # none found: recent_used_cpu, likewise
    FALLBACK_TARGET = 13  # none found: the target
    SLOW = 14  # find_idlest_cpu, without the figures that it needs: those of wakeups are not captured
    ASYM = 15  # CPUs differ in capacity: select_idle_capacity, not modelled
    # Forks and execs:
    NO_BALANCE = 16  # no domain asks for it: prev
    OUTSIDE = 17  # no CPU of the domain is allowed: prev
    STAYS = 18  # no group is idler than its own, at any level: the CPU that forks
    IDLEST_ONLY = 19  # the CPU of a group that has one
    IDLEST_SCHED_IDLE = 20  # a CPU of the idlest group that runs only SCHED_IDLE tasks
    IDLEST_IDLE = 21  # an idle CPU of it: the one that wakes fastest, or idles last
    IDLEST_LOAD = 22  # the least loaded CPU of it


@compiled
def sched_idle_cpu(policy: Policy, w: Wakeup, cpu: int) -> bool:
    """The CPU runs only SCHED_IDLE tasks, and this wakee may take it."""
    if policy.sched_idle == SchedIdle.NOBODY or (policy.sched_idle == SchedIdle.NOT_SCHED_IDLE and w.wakee_sched_idle):
        return False
    asked(w, Asked.SCHED_IDLE, cpu, -1)
    return cpumask_test_cpu(cpu, w.sched_idle)


@compiled
def choose_idle_cpu(policy: Policy, w: Wakeup, cpu: int) -> bool:
    """Idle, or as good as idle (since 3c29e651e16d, v5.4, everywhere since v5.7; named so in fd54d81c2c0e, v7.1)."""
    return available_idle_cpu(w, cpu) or sched_idle_cpu(policy, w, cpu)


@compiled
def share_cache(machine: Machine, w: Wakeup, this_cpu: int, that_cpu: int) -> bool:
    """cpus_share_cache(), noted in the trail."""
    asked(w, Asked.SHARE_CACHE, this_cpu, that_cpu)
    return cpus_share_cache(machine, this_cpu, that_cpu)


@compiled
def test_idle_cores(w: Wakeup, target: int) -> bool:
    """Whether the target's LLC is thought to have an idle core (sched_domain_shared.has_idle_cores)."""
    asked(w, Asked.IDLE_CORES, target, -1)
    known = w.this_has_idle_cores if target == w.cpu else w.prev_has_idle_cores
    if known == UNKNOWN:
        return either(w, Doubt.IDLE_CORES)
    return bool(known)


@compiled
def kthread_wakes_its_work(policy: Policy, w: Wakeup, prev: int) -> bool:
    """Whether the per-CPU kthread rule stacks the wakee on prev (v5.6; in_task: 8b4e74ccb582, v5.17)."""
    if not policy.kthread or prev != w.cpu or w.kthread == 0:
        return False
    asked(w, Asked.NR_RUNNING, -1, -1)
    if w.this_nr_running > 1:
        return False
    if policy.kthread_in_task and w.in_task == 0:
        return False
    unsure = policy.kthread_in_task and w.in_task == UNKNOWN
    if w.kthread == UNKNOWN or w.this_nr_running == UNKNOWN or unsure:
        return either(w, Doubt.KTHREAD)
    return True


@compiled
def select_idle_core(
    policy: Policy, machine: Machine, w: Wakeup, core: int, cpus: Array, idle_cpu: int
) -> tuple[int, int]:
    """(CPU, idle_cpu): a CPU of a core all of whose threads are idle, else NO_CPU and the core leaves cpus.

    idle_cpu remembers the first idle thread met. Until 23d04d8c6b8e (v6.9) it need only be allowed; then it must lie
    in the scanned mask.
    """
    idle = True
    for cpu in machine.cpus[core].siblings:
        if cpu < 0:
            break
        if not available_idle_cpu(w, cpu):
            idle = False
            if idle_cpu == NO_CPU:
                if sched_idle_cpu(policy, w, cpu) and _eligible(policy, w, cpu, cpus):
                    idle_cpu = cpu
                    break
                continue
            break
        if idle_cpu == NO_CPU and _eligible(policy, w, cpu, cpus):
            idle_cpu = cpu
    if idle:
        return core, idle_cpu
    _drop_core(machine, core, cpus)
    return NO_CPU, idle_cpu


@compiled
def _eligible(policy: Policy, w: Wakeup, cpu: int, cpus: Array) -> bool:
    if policy.core_in_mask:
        return cpumask_test_cpu(cpu, cpus)
    return cpumask_test_cpu(cpu, w.allowed)


@compiled
def _drop_core(machine: Machine, core: int, cpus: Array) -> None:
    for cpu in machine.cpus[core].siblings:
        if cpu < 0:
            break
        cpumask_clear_cpu(cpu, cpus)


@compiled
def select_idle_smt(policy: Policy, machine: Machine, w: Wakeup, target: int, sd: int) -> int:
    """An idle, allowed sibling of target, or NO_CPU; sd is the CPU whose LLC domain bounds the search."""
    last = NO_CPU
    for cpu in machine.cpus[target].siblings:
        if cpu < 0:
            break
        if policy.smt_skips_prev and cpu == target:
            continue
        if not cpumask_test_cpu(cpu, w.allowed):
            continue
        if policy.smt_in_llc and not cpumask_test_cpu(cpu, machine.cpus[sd].llc_span):
            continue
        if policy.sched_idle == SchedIdle.LAST and not available_idle_cpu(w, cpu):
            if last == NO_CPU and sched_idle_cpu(policy, w, cpu):
                last = int(cpu)
        elif choose_idle_cpu(policy, w, cpu):
            return int(cpu)
    return last


@compiled
def scan_depth(policy: Policy, machine: Machine, w: Wakeup, has_idle_core: bool, target: int) -> int:
    """nr of select_idle_cpu: one more than the CPUs it will look at; 1 means not to look at all.

    Without SIS_PROP and SIS_UTIL, and where the limit is unknown and the answer is taken to be "far", INT_MAX.
    """
    nr = INT_MAX
    if policy.sis_avg_cpu and not policy.sis_prop:
        if w.this_avg_idle == UNKNOWN or w.this_avg_scan_cost == UNKNOWN:
            return INT_MAX if either(w, Doubt.SCAN_DEPTH) else 1
        if w.this_avg_idle // 512 < w.this_avg_scan_cost + 1:
            return 1
    if policy.sis_prop and not has_idle_core:
        nr = _sis_prop(policy, machine, w, target)
    if policy.sis_util:
        asked(w, Asked.SCAN_DEPTH, target, -1)
        nr_idle_scan = w.this_nr_idle_scan if target == w.cpu else w.prev_nr_idle_scan
        if nr_idle_scan == UNKNOWN:
            return INT_MAX if either(w, Doubt.SCAN_DEPTH) else 1
        nr = nr_idle_scan + 1
    return nr


@compiled
def _sis_prop(policy: Policy, machine: Machine, w: Wakeup, target: int) -> int:
    """SIS_PROP: in proportion to this CPU's usual idle time, over the usual cost of a scan (since v4.13)."""
    if not machine.cpus[w.cpu].llc:
        return 1
    if policy.prop_clock == PropClock.WAKE_AVG_IDLE or w.this_avg_idle == UNKNOWN or w.this_avg_scan_cost == UNKNOWN:
        return INT_MAX if either(w, Doubt.SCAN_DEPTH) else 4
    avg_idle = w.this_avg_idle // 512
    avg_cost = w.this_avg_scan_cost + 1
    if policy.sis_avg_cpu and avg_idle < avg_cost:
        return 1
    span_avg = machine.cpus[target].llc_size * avg_idle
    return span_avg // avg_cost if span_avg > 4 * avg_cost else 4


@compiled
def _scan(
    policy: Policy,
    machine: Machine,
    w: Wakeup,
    has_idle_core: bool,
    start: int,
    cpus: Array,
    group: Array,
    whole: bool,
    nr: int,
    idle_cpu: int,
) -> tuple[int, int, int]:
    """One pass of select_idle_cpu over cpus (within group unless whole), upwards from start and round.

    Returns (CPU or NO_CPU, nr left, idle_cpu). nr of 0 says that the scan was cut.
    """
    n = len(machine.cpus)
    for step in range(n):
        cpu = (start + step) % n
        if not cpumask_test_cpu(cpu, cpus) or not (whole or cpumask_test_cpu(cpu, group)):
            continue
        if has_idle_core:
            found, idle_cpu = select_idle_core(policy, machine, w, cpu, cpus, idle_cpu)
        else:
            nr -= 1
            if nr <= 0:
                return idle_cpu, 0, idle_cpu
            found = cpu if choose_idle_cpu(policy, w, cpu) else NO_CPU
            if found != NO_CPU and policy.sched_idle == SchedIdle.LAST and not cpumask_test_cpu(cpu, w.idle):
                idle_cpu = cpu if idle_cpu == NO_CPU else idle_cpu
                found = NO_CPU
        if found != NO_CPU:
            return found, nr, idle_cpu
    return NO_CPU, nr, idle_cpu


@compiled
def select_idle_cpu(policy: Policy, machine: Machine, w: Wakeup, has_idle_core: bool, target: int) -> tuple[int, Path]:
    """(CPU or NO_CPU, path) of a scan of the target's LLC from target + 1 (v5.12 and later).

    With has_idle_core whole cores are sought, to no limit, and the first idle thread met will do if there is none.
    With clusters the target's own is scanned first (8881e1639f1f, v6.7).
    """
    if policy.this_sd and not machine.cpus[w.cpu].llc:
        return NO_CPU, Path.NONE
    nr = scan_depth(policy, machine, w, has_idle_core, target)
    if nr == 1:
        return NO_CPU, Path.NONE
    cpus = w.select_rq_mask
    span = machine.cpus[target].llc_span
    for word in range(len(cpus)):
        cpus[word] = span[word] & w.allowed[word]
    path = Path.CORE if has_idle_core else Path.CPU
    idle_cpu = NO_CPU
    if policy.cluster and machine.cluster_active and machine.cpus[target].cluster:
        group = machine.cpus[target].cluster_span
        found, nr, idle_cpu = _scan(policy, machine, w, has_idle_core, target + 1, cpus, group, False, nr, idle_cpu)
        if found != NO_CPU or nr == 0:
            return found, path
        for word in range(len(cpus)):
            cpus[word] &= ~group[word]
    found, nr, idle_cpu = _scan(policy, machine, w, has_idle_core, target + 1, cpus, span, True, nr, idle_cpu)
    if found != NO_CPU:
        return found, path
    return (idle_cpu, Path.CORE_SIBLING) if has_idle_core else (NO_CPU, Path.NONE)


@compiled
def select_idle_core_cpu_smt(policy: Policy, machine: Machine, w: Wakeup, target: int) -> tuple[int, Path]:
    """(CPU or NO_CPU, path) of the three searches up to v5.11: cores, CPUs from target on, target's siblings."""
    cpus = w.select_rq_mask
    span = machine.cpus[target].llc_span
    n = len(machine.cpus)
    if machine.smt_active and test_idle_cores(w, target):
        for word in range(len(cpus)):
            cpus[word] = span[word] & w.allowed[word]
        for step in range(n):
            core = (target + step) % n
            if cpumask_test_cpu(core, cpus):
                if _core_idle(machine, w, core):
                    return core, Path.CORE
                _drop_core(machine, core, cpus)
    if machine.cpus[w.cpu].llc:  # this_sd: select_idle_cpu gives up without a domain here
        nr = scan_depth(policy, machine, w, False, target)
        for word in range(len(cpus)):
            cpus[word] = span[word] & w.allowed[word]
        if policy.scan_all and nr != 1:
            found = scan_span(w, n, target, span, nr)
            if found != NO_CPU:
                return found, Path.CPU
        elif nr != 1:
            found, nr, _ = _scan(policy, machine, w, False, target, cpus, span, True, nr, NO_CPU)
            if found != NO_CPU:
                return found, Path.CPU
    if machine.smt_active:
        return select_idle_smt(policy, machine, w, target, target), Path.SMT
    return NO_CPU, Path.NONE


@compiled
def _core_idle(machine: Machine, w: Wakeup, core: int) -> bool:
    for cpu in machine.cpus[core].siblings:
        if cpu < 0:
            break
        if not available_idle_cpu(w, cpu):
            return False
    return True


@compiled
def select_idle_smt_cpu(policy: Policy, machine: Machine, w: Wakeup, prev: int, target: int) -> tuple[int, Path]:
    """(CPU or NO_CPU, path) of the searches since v5.12: prev's siblings if no core is idle, then cores or CPUs."""
    has_idle_core = False
    if machine.smt_active:
        has_idle_core = test_idle_cores(w, target)
        if not has_idle_core and share_cache(machine, w, prev, target):  # c722f35b513f, v5.13
            i = select_idle_smt(policy, machine, w, prev, target)
            if i != NO_CPU:
                return i, Path.SMT
    return select_idle_cpu(policy, machine, w, has_idle_core, target)


@compiled
def recent_used(policy: Policy, machine: Machine, w: Wakeup, prev: int, target: int) -> int:
    """p.recent_used_cpu if it may be taken, else NO_CPU; ANY_CPU if it may be one of those that may."""
    recent = w.recent_used_cpu
    if policy.recent_used == RecentUsed.NEVER:
        return NO_CPU
    if recent == ANY_CPU:
        return ANY_CPU if _any_recent(policy, machine, w, prev, target) and either(w, Doubt.RECENT) else NO_CPU
    if recent in (prev, target) or not 0 <= recent < len(machine.cpus):
        return NO_CPU
    if not share_cache(machine, w, recent, target) or not choose_idle_cpu(policy, w, recent):
        return NO_CPU
    # From 89aafd67f28c (v5.15) to ae2ad293d6be (v6.5) prev was stored first and tested in the candidate's place.
    tested = prev if policy.recent_used == RecentUsed.PREV_TESTED else recent
    return recent if cpumask_test_cpu(tested, w.allowed) else NO_CPU


@compiled
def _any_recent(policy: Policy, machine: Machine, w: Wakeup, prev: int, target: int) -> bool:
    """Whether any CPU could be taken for p.recent_used_cpu."""
    for cpu in range(len(machine.cpus)):
        tested = prev if policy.recent_used == RecentUsed.PREV_TESTED else cpu
        shares = cpu not in (prev, target) and cpus_share_cache(machine, cpu, target)
        if shares and cpumask_test_cpu(tested, w.allowed) and choose_idle_cpu(policy, w, cpu):
            return True
    return False


@compiled
def select_idle_sibling(policy: Policy, machine: Machine, w: Wakeup, prev: int, target: int) -> tuple[int, Path]:
    """(CPU, path) for a wakeup aimed at target."""
    if machine.asym_active and either(w, Doubt.CAPACITY):
        return NO_CPU, Path.ASYM
    if choose_idle_cpu(policy, w, target):
        return target, Path.TARGET
    prev_aff = NO_CPU
    clusters = policy.cluster and machine.cluster_active
    if prev != target and share_cache(machine, w, prev, target) and choose_idle_cpu(policy, w, prev):
        if not clusters or cpus_share_resources(machine, prev, target):
            return prev, Path.PREV
        prev_aff = prev  # 22165f61d0c4, v6.7
    if kthread_wakes_its_work(policy, w, prev):
        return prev, Path.KTHREAD
    recent = recent_used(policy, machine, w, prev, target)
    if recent == ANY_CPU:
        return NO_CPU, Path.RECENT
    if recent != NO_CPU and (not clusters or cpus_share_resources(machine, recent, target)):
        return recent, Path.RECENT
    if not machine.cpus[target].llc:
        return target, Path.NO_LLC
    if policy.scan == Scan.GROUPS:
        i, path = select_idle_group(machine, w, target), Path.CORE
    elif policy.scan == Scan.CORE_CPU_SMT:
        i, path = select_idle_core_cpu_smt(policy, machine, w, target)
    else:
        i, path = select_idle_smt_cpu(policy, machine, w, prev, target)
    if i != NO_CPU:
        return i, path
    if prev_aff != NO_CPU:
        return prev_aff, Path.FALLBACK_PREV
    if recent != NO_CPU:
        return recent, Path.FALLBACK_RECENT
    return target, Path.FALLBACK_TARGET
