# SPDX-License-Identifier: GPL-2.0-only
"""Searches for an idle CPU that kernels before 4.19 made."""

from __future__ import annotations

from .compiled import compiled
from .topo import Array, Machine, cpumask_test_cpu
from .wakeup import NO_CPU, Wakeup, available_idle_cpu


@compiled
def scan_span(w: Wakeup, n: int, target: int, span: Array, nr: int) -> int:
    """select_idle_cpu until v4.16, from target on, or NO_CPU: CPUs that p may not use count among the nr."""
    for step in range(n):
        cpu = (target + step) % n
        if not cpumask_test_cpu(cpu, span):
            continue
        nr -= 1
        if nr == 0:
            return NO_CPU
        if cpumask_test_cpu(cpu, w.allowed) and available_idle_cpu(w, cpu):
            return cpu
    return NO_CPU


@compiled
def select_idle_group(machine: Machine, w: Wakeup, target: int) -> int:
    """The first allowed CPU of the first group without target that is idle as a whole, or NO_CPU (until v4.8).

    From the LLC domain of target down, in each domain from target's own group on; a group is the span of the domain
    below, and of the lowest domain a CPU.
    """
    n = len(machine.cpus)
    chain = machine.cpus[target]
    for below in range(chain.llc_level - 1, -2, -1):
        own = _leader(machine, target, below)
        for step in range(1, n):
            first = (own + step) % n
            if not cpumask_test_cpu(first, chain.sd_span[below + 1]) or _leader(machine, first, below) != first:
                continue
            chosen = _idle_group(machine, w, first, below, target)
            if chosen != NO_CPU:
                return chosen
    return NO_CPU


@compiled
def _leader(machine: Machine, cpu: int, level: int) -> int:
    """The lowest CPU of a CPU's domain at a level; of level -1 itself."""
    if level < 0:
        return cpu
    for other in range(cpu):
        if cpumask_test_cpu(other, machine.cpus[cpu].sd_span[level]):
            return other
    return cpu


@compiled
def _idle_group(machine: Machine, w: Wakeup, first: int, level: int, target: int) -> int:
    """The first allowed CPU of first's group if all are idle and none is target, else NO_CPU."""
    chosen = NO_CPU
    for cpu in range(first, len(machine.cpus)):
        if cpu == first or (level >= 0 and cpumask_test_cpu(cpu, machine.cpus[first].sd_span[level])):
            if cpu == target or not available_idle_cpu(w, cpu):
                return NO_CPU
            if chosen == NO_CPU and cpumask_test_cpu(cpu, w.allowed):
                chosen = cpu
    return chosen
