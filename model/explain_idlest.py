# SPDX-License-Identifier: GPL-2.0-only
"""Where a fork or exec goes, domain by domain, in words."""

from __future__ import annotations

from .compiled import plain
from .idle import Path
from .idlest import (
    NO_GROUP,
    SCALE,
    UINT_MAX,
    GroupType,
    Rule,
    Stats,
    find_idlest_group_cpu,
    update_pick_idlest,
    update_sg_wakeup_stats,
)
from .policy import NumaSpare, Policy
from .reasons import Reason, Source
from .topo import Groups, Machine, cpumask_intersects, cpumask_test_cpu, cpumask_weight_and
from .wakeup import UNKNOWN, Wakeup

RULES = {
    Rule.ALONE: "no other group is better than overloaded: stay",
    Rule.NOT_ALLOWED: "no CPU of its own group is allowed: {there}",
    Rule.LOCAL_TYPE: "its own group is {kind}, the other {idle_kind}: stay",
    Rule.OTHER_TYPE: "{there} is {idle_kind}, its own group {kind}: go",
    Rule.NUMA_LOAD: "on another node, avg_load {idle_load} + imbalance {imbalance} >= {load}: stay",
    Rule.LOCAL_LOAD: "avg_load {idle_load} >= {load} + imbalance {imbalance}: stay",
    Rule.EVEN_LOAD: "100 x avg_load {load} <= imbalance_pct {pct} x {idle_load}: stay",
    Rule.OTHER_LOAD: "100 x avg_load {load} > imbalance_pct {pct} x {idle_load}: {there}",
    Rule.IMBALANCE: "both are imbalanced: stay",
    Rule.PREFERRED_HERE: "this is the task's preferred node: stay",
    Rule.PREFERRED_THERE: "{there} is the task's preferred node: go",
    Rule.NUMA_SPARE: "on a node, {numa}: stay",
    Rule.LOCAL_IDLE: "idle CPUs: its own {idle} >= {idle_idle} of {there}: stay",
    Rule.OTHER_IDLE: "idle CPUs: its own {idle} < {idle_idle} of {there}: go",
}
NUMA = {
    NumaSpare.IDLE: "its own group has idle CPUs: {idle} > 0",
    NumaSpare.QUARTER_SPAN: "tasks: {running} < {quarter_span}, a quarter of the domain's CPUs",
    NumaSpare.QUARTER_GROUP: "tasks with this one: {with_this} < {quarter_group}, a quarter of the group's CPUs",
    NumaSpare.IMB_NUMA_NR: "tasks with this one: {with_this} <= imb_numa_nr {imb}",
    NumaSpare.ADJUST: "tasks with this one: {with_this} <= imb_numa_nr {imb}, and idle CPUs differ by {differ} <= 2",
}
EVEN = "as many idle CPUs here as in {there}"  # adjust_numa_imbalance() of 0 is 0, however many tasks run
NOTHING = Stats(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def idlest_reasons(policy: Policy, machine: Machine, groups: Groups, w: Wakeup, path: Path) -> list[Reason]:
    """The steps that find_idlest_cpu noted in w: at each domain what its groups were and which rule decided."""
    if path == Path.NO_BALANCE:
        return [Reason("select_task_rq_fair", "no domain balances at fork or exec: prev", Source.DERIVED)]
    if path == Path.OUTSIDE:
        return [Reason("find_idlest_cpu", "no CPU of the domain is allowed: prev", Source.DERIVED)]
    if not w.figures:
        return [Reason("find_idlest_cpu", "what the CPUs of each group carry was not recorded", Source.UNKNOWN)]
    steps = [tuple(int(value) for value in step) for step in w.steps[: w.nr_steps]]
    chain = []
    for cpu, level, group, rule, new_cpu in steps:
        chain += _group(policy, machine, groups, w, cpu, level, Rule(rule))
        if group != NO_GROUP:
            _, pick = plain(find_idlest_group_cpu)(policy, groups, w, group, cpu)
            text = f"CPU {new_cpu} of {_span(groups, group)}: {_pick(groups, w, group, new_cpu, pick)}"
            chain.append(Reason("find_idlest_group_cpu", text, Source.DERIVED))
    return chain


def _pick(groups: Groups, w: Wakeup, group: int, cpu: int, path: Path) -> str:
    """Why find_idlest_group_cpu took this CPU of a group."""
    if path == Path.IDLEST_ONLY:
        return "the only CPU of the group"
    if path == Path.IDLEST_SCHED_IDLE:
        return "it runs only SCHED_IDLE tasks"
    test = plain(cpumask_test_cpu)
    allowed = [other for other in range(len(w.known)) if test(other, groups.sgs[group].span) and test(other, w.allowed)]
    idle = [other for other in allowed if test(other, w.idle)]
    if path == Path.IDLEST_LOAD:
        none = "of the idle ones none says since when; of the others" if idle else "none is idle:"
        return f"{none} it has the least load, {w.load[cpu]}"
    if len(idle) == 1:
        return "the only idle one"
    return f"of {len(idle)} idle ones it {_of_idle(w, idle, cpu)}"


def _of_idle(w: Wakeup, idle: list[int], cpu: int) -> str:
    """What a CPU has before the other idle ones of its group: it wakes fastest, or became idle last.

    An idle stamp counts among CPUs that wake fastest or in no known time, from the first of the fastest on.
    """
    latencies = [int(w.exit_latency[other]) for other in idle]
    least = min((latency for latency in latencies if latency != UNKNOWN), default=UNKNOWN)
    if w.exit_latency[cpu] != UNKNOWN and latencies.count(least) == 1:
        return f"has the least exit_latency, {least} us"
    text = f"became idle last, idle_stamp {w.idle_stamp[cpu]} ns"
    if set(latencies) != {least}:
        text += f", from CPU {idle[latencies.index(least)]}, the first of exit_latency {least} us, on"
    return text


def _group(
    policy: Policy, machine: Machine, groups: Groups, w: Wakeup, cpu: int, level: int, rule: Rule
) -> list[Reason]:
    """What was found of each group of a domain of a CPU, and the verdict."""
    chain = machine.cpus[cpu]
    pct, first = int(chain.sd_pct[level]), int(chain.sd_ring[level])
    found: list[tuple[int, Stats]] = []
    for group in groups.rings[first : first + int(chain.sd_groups[level])].tolist():
        if plain(cpumask_intersects)(groups.sgs[group].span, w.allowed):
            found.append((group, plain(update_sg_wakeup_stats)(policy, groups, w, group, pct)))
    said = [f"{_span(groups, group)} {_stats(stats)}" for group, stats in found]
    name = f"level {level} of CPU {cpu}"
    verdict = _verdict(policy, machine, groups, w, cpu, level, rule, found)
    return [
        Reason("update_sg_wakeup_stats", f"{name}: {'; '.join(said)}", Source.DERIVED),
        Reason("find_idlest_group", f"{name}: {verdict}", Source.DERIVED),
    ]


def _verdict(
    policy: Policy,
    machine: Machine,
    groups: Groups,
    w: Wakeup,
    cpu: int,
    level: int,
    rule: Rule,
    found: list[tuple[int, Stats]],
) -> str:
    """The rule that decided, with the figures it compared: those of the groups that find_idlest_group compares."""
    chain = machine.cpus[cpu]
    own, there, here, idlest = _compared(groups, w, cpu, found)
    pct, imb = int(chain.sd_pct[level]), int(chain.sd_imb[level])
    numa = NUMA[NumaSpare(policy.numa_spare)]
    if policy.numa_spare == NumaSpare.ADJUST and own != NO_GROUP:
        if w.wakee_nr_allowed <= len(machine.cpus):
            imb = min(imb, plain(cpumask_weight_and)(groups.sgs[own].span, w.allowed))
        if here.idle_cpus == idlest.idle_cpus:
            numa = EVEN
    facts = {
        "there": _span(groups, there) if there != NO_GROUP else "none",
        "pct": pct,
        "imbalance": SCALE * (pct - 100) // 100,
        "imb": imb,
        "quarter_span": chain.sd_weight[level] >> 2,
        "quarter_group": here.weight >> 2,
        "running": here.running,
        "with_this": here.running + 1,
        "differ": abs(here.idle_cpus - idlest.idle_cpus),
        "idle": here.idle_cpus,
        "idle_idle": idlest.idle_cpus,
        "load": here.avg_load,
        "idle_load": idlest.avg_load,
        "kind": GroupType(here.type).name.lower(),
        "idle_kind": GroupType(idlest.type).name.lower(),
    }
    if rule == Rule.ALONE and all(plain(cpumask_test_cpu)(cpu, groups.sgs[group].span) for group, _ in found):
        return "no CPU of another group is allowed: stay"
    return RULES[rule].format(numa=numa.format(**facts), **facts)


def _compared(groups: Groups, w: Wakeup, cpu: int, found: list[tuple[int, Stats]]) -> tuple[int, int, Stats, Stats]:
    """(local group, idlest other, and the Stats of each) as find_idlest_group picks them; NO_GROUP where there is none.

    Groups may overlap: the last that holds the CPU is the local one.
    """
    own = there = NO_GROUP
    here, idlest = NOTHING, NOTHING._replace(type=GroupType.OVERLOADED.value, avg_load=UINT_MAX)
    for group, stats in found:
        if plain(cpumask_test_cpu)(cpu, groups.sgs[group].span):
            own, here = group, stats
        elif plain(update_pick_idlest)(w, idlest, stats):
            there, idlest = group, stats
    return own, there, here, idlest


def _stats(stats: Stats) -> str:
    kind = GroupType(stats.type)
    text = f"{kind.name.lower()}, {stats.running} tasks, {stats.idle_cpus} idle CPUs"
    if kind in (GroupType.FULLY_BUSY, GroupType.OVERLOADED):
        return f"{text}, avg_load {stats.avg_load}"
    return f"{text}, util {stats.util} of {stats.capacity if stats.capacity != UNKNOWN else 'unknown'}"


def _span(groups: Groups, group: int) -> str:
    span = groups.sgs[group].span
    cpus = [str(cpu) for cpu in range(64 * len(span)) if plain(cpumask_test_cpu)(cpu, span)]
    return "{" + ",".join(cpus) + "}"
