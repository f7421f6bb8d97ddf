# SPDX-License-Identifier: GPL-2.0-only
"""Where a fork or exec goes, domain by domain, in words."""

from __future__ import annotations

from .compiled import plain
from .idle import Path
from .idlest import NO_GROUP, GroupType, Rule, Stats, update_sg_wakeup_stats
from .policy import NumaSpare, Policy
from .reasons import Reason, Source
from .topo import Machine, cpumask_intersects, cpumask_test_cpu
from .wakeup import UNKNOWN, Wakeup

RULES = {
    Rule.ALONE: "no other group is better than overloaded: stay",
    Rule.NOT_ALLOWED: "no CPU of its own group is allowed: {there}",
    Rule.LOCAL_TYPE: "its own group is of a better type: stay",
    Rule.OTHER_TYPE: "{there} is of a better type: go",
    Rule.NUMA_LOAD: "on another node, avg_load {idle_load} + imbalance >= {load}: stay",
    Rule.LOCAL_LOAD: "avg_load {idle_load} >= {load} + imbalance: stay",
    Rule.EVEN_LOAD: "avg_load {load} is within imbalance_pct {pct} of {idle_load}: stay",
    Rule.OTHER_LOAD: "avg_load {load} exceeds {idle_load} by imbalance_pct {pct}: {there}",
    Rule.IMBALANCE: "both are imbalanced: stay",
    Rule.PREFERRED_HERE: "this is the task's preferred node: stay",
    Rule.PREFERRED_THERE: "{there} is the task's preferred node: go",
    Rule.NUMA_SPARE: "on a node, {numa}: stay",
    Rule.LOCAL_IDLE: "its {idle} idle CPUs are no fewer than the {idle_idle} of {there}: stay",
    Rule.OTHER_IDLE: "{there} has {idle_idle} idle CPUs, its own {idle}: go",
}
NUMA = {
    NumaSpare.IDLE: "its own group has an idle CPU",
    NumaSpare.QUARTER_SPAN: "{running} tasks are fewer than a quarter of the domain's CPUs",
    NumaSpare.QUARTER_GROUP: "{running} tasks and this one are fewer than a quarter of the group's CPUs",
    NumaSpare.IMB_NUMA_NR: "{running} tasks and this one are within imb_numa_nr {imb}",
    NumaSpare.ADJUST: "{running} tasks and this one are within imb_numa_nr {imb}, and idle CPUs differ by at most 2",
}
PICKS = {
    Path.IDLEST_ONLY: "the only CPU of the group",
    Path.IDLEST_SCHED_IDLE: "it runs only SCHED_IDLE tasks",
    Path.IDLEST_IDLE: "of the idle ones it wakes fastest, or became idle last",
    Path.IDLEST_LOAD: "none is idle, and it has the least load",
}


def idlest_reasons(policy: Policy, machine: Machine, w: Wakeup, path: Path) -> list[Reason]:
    """The steps that find_idlest_cpu noted in w: at each domain what its groups were and which rule decided.

    Which CPU a group is entered at is told by its last pick alone, path.
    """
    if path == Path.NO_BALANCE:
        return [Reason("select_task_rq_fair", "no domain balances at fork or exec: prev", Source.DERIVED)]
    if path == Path.OUTSIDE:
        return [Reason("find_idlest_cpu", "no CPU of the domain is allowed: prev", Source.DERIVED)]
    if not w.figures:
        return [Reason("find_idlest_cpu", "what the CPUs of each group carry was not recorded", Source.UNKNOWN)]
    steps = [tuple(int(value) for value in step) for step in w.steps[: w.nr_steps]]
    chain = []
    for cpu, level, group, rule, new_cpu in steps:
        chain += _group(policy, machine, w, cpu, level, Rule(rule))
        if group != NO_GROUP:
            last = new_cpu == steps[-1][4]
            why = f": {PICKS[path]}" if last and path in PICKS else ""
            text = f"CPU {new_cpu} of {_span(machine, group)}{why}"
            chain.append(Reason("find_idlest_group_cpu", text, Source.DERIVED))
    return chain


def _group(policy: Policy, machine: Machine, w: Wakeup, cpu: int, level: int, rule: Rule) -> list[Reason]:
    """What was found of each group of a domain of a CPU, and the verdict."""
    chain = machine.cpus[cpu]
    pct, first = int(chain.sd_pct[level]), int(chain.sd_ring[level])
    found: list[tuple[int, Stats]] = []
    for group in machine.rings[first : first + int(chain.sd_groups[level])].tolist():
        if plain(cpumask_intersects)(machine.groups[group].span, w.allowed):
            found.append((group, plain(update_sg_wakeup_stats)(policy, machine, w, group, pct)))
    local = [group for group, _ in found if plain(cpumask_test_cpu)(cpu, machine.groups[group].span)]
    said = [f"{_span(machine, group)} {_stats(stats)}" for group, stats in found]
    facts = _facts(found, local)
    numa = NUMA[NumaSpare(policy.numa_spare)].format(imb=int(chain.sd_imb[level]), **facts)
    there = facts.pop("there")
    text = RULES[rule].format(pct=pct, numa=numa, there=_span(machine, int(there)), **facts)
    name = f"level {level} of CPU {cpu}"
    return [
        Reason("update_sg_wakeup_stats", f"{name}: {'; '.join(said)}", Source.MEASURED),
        Reason("find_idlest_group", f"{name}: {text}", Source.DERIVED),
    ]


def _facts(found: list[tuple[int, Stats]], local: list[int]) -> dict[str, int]:
    """Figures of the local group and of the idlest other: as the kernel would pick it, the first of the best."""
    own = [stats for group, stats in found if group in local]
    others = [(group, stats) for group, stats in found if group not in local]
    here = own[0] if own else found[0][1]
    there, idlest = min(others or found, key=lambda pair: _order(pair[1]))
    return {
        "there": there,
        "idle": here.idle_cpus,
        "idle_idle": idlest.idle_cpus,
        "load": here.avg_load,
        "idle_load": idlest.avg_load,
        "running": here.running,
    }


def _order(stats: Stats) -> tuple[int, int, int]:
    spare = stats.type == GroupType.HAS_SPARE
    return stats.type, -stats.idle_cpus if spare else stats.avg_load, stats.util if spare else 0


def _stats(stats: Stats) -> str:
    kind = GroupType(stats.type)
    text = f"{kind.name.lower()}, {stats.running} tasks, {stats.idle_cpus} idle CPUs"
    if kind in (GroupType.FULLY_BUSY, GroupType.OVERLOADED):
        return f"{text}, avg_load {stats.avg_load}"
    return f"{text}, util {stats.util} of {stats.capacity if stats.capacity != UNKNOWN else 'unknown'}"


def _span(machine: Machine, group: int) -> str:
    span = machine.groups[group].span
    cpus = [str(cpu) for cpu in range(len(machine.cpus)) if plain(cpumask_test_cpu)(cpu, span)]
    return "{" + ",".join(cpus) + "}"
