# SPDX-License-Identifier: GPL-2.0-only
"""select_task_rq_fair: the CPU of one wakeup, fork or exec, and how it came about."""

from __future__ import annotations

from typing import NamedTuple

from .affine import Affine, wake_affine
from .compiled import compiled
from .flips import flips_after, wake_wide
from .idle import Path, choose_idle_cpu, select_idle_sibling
from .idlest import find_idlest_cpu
from .policy import Policy
from .topo import SD_WAKE_AFFINE, Groups, Machine, cpumask_test_cpu
from .wakeup import NO_CPU, UNKNOWN, Doubt, Wakeup, either


class Decision(NamedTuple):
    """What the model says of one wakeup. wide is -1 if wake_wide was not asked; target is where the search began."""

    cpu: int
    path: int
    wide: int
    affine: int
    target: int


@compiled
def select_task_rq_fair(policy: Policy, machine: Machine, w: Wakeup, hz: int) -> Decision:
    """The Decision for a wakeup (v5.10 fair.c:6696 to v7.3; energy-aware placement is not modelled)."""
    flips, wakee_flips = flips_after(policy, w, hz)
    allowed = cpumask_test_cpu(w.cpu, w.allowed)
    if w.current_cpu and allowed:  # ab83f455f04d, v6.6
        return Decision(w.cpu, Path.CURRENT_CPU, -1, Affine.NONE, w.cpu)
    wide = wake_wide(policy, w, flips, wakee_flips)
    want_affine = allowed and (policy.wide_in_affine != 0 or not wide)
    target, rule, slow = walk_domains(policy, machine, w, want_affine, wide)
    if not want_affine:
        rule = Affine.WIDE if wide and not policy.wide_in_affine else Affine.DISALLOWED
    verdict = int(wide) if asks_wide(policy, w, allowed, rule) else -1
    # Until v4.2 wakeups never took the slow path, and want-affine-rework keeps them from it again.
    if slow and not policy.wide_in_affine and not policy.affine_rework and not policy.prefer_idle:
        return Decision(NO_CPU, Path.SLOW, verdict, rule, target)
    cpu, path = select_idle_sibling(policy, machine, w, _prev(policy, w), target)
    dispatcher = flips == UNKNOWN or wakee_flips == UNKNOWN or wakee_flips > flips
    goes_on = (policy.prefer_idle and slow) or (policy.wide_idle and wide and dispatcher)
    if goes_on and cpu != NO_CPU and not choose_idle_cpu(policy, w, cpu):
        return Decision(NO_CPU, Path.SLOW, verdict, rule, target)
    return Decision(cpu, path, verdict, rule, target)


@compiled
def asks_wide(policy: Policy, w: Wakeup, allowed: bool, rule: Affine) -> bool:
    """Whether wake_wide is asked: until v4.2 by wake_affine, once two CPUs are to be chosen between; want-affine-rework
    leaves before it for prev and where the waker's CPU is not allowed.
    """
    if policy.wide_in_affine:
        return rule not in (Affine.SAME, Affine.NO_DOMAIN, Affine.DISALLOWED)
    return not policy.affine_rework or (allowed and w.cpu != w.prev_cpu)


@compiled
def select_new(policy: Policy, machine: Machine, groups: Groups, w: Wakeup) -> Decision:
    """select_task_rq_fair for a fork or exec: find_idlest_cpu from the highest domain on that balances at it, if all
    domains below do.
    """
    w.moved = w.nr_steps = 0
    chain = machine.cpus[w.cpu]
    level = -1
    while level + 1 < chain.domains and chain.sd_flags[level + 1] & w.sd_flag:
        level += 1
    if level < 0:
        return Decision(w.prev_cpu, Path.NO_BALANCE, -1, Affine.NONE, w.cpu)
    cpu, path = find_idlest_cpu(policy, machine, groups, w, level)
    return Decision(cpu, path, -1, Affine.NONE, w.cpu)


@compiled
def _prev(policy: Policy, w: Wakeup) -> int:
    """What wake_affine and select_idle_sibling take for prev: prev_cpu is p.wake_cpu, which may differ from its CPU."""
    return int(w.wakee_cpu) if policy.task_cpu else int(w.prev_cpu)


@compiled
def walk_domains(
    policy: Policy, machine: Machine, w: Wakeup, want_affine: bool, wide: bool
) -> tuple[int, Affine, bool]:
    """(target, rule, slow): up this CPU's domains to the first that lets wakes be affine and holds prev.

    slow says that a domain with w.sd_flag was met and no affine one (until v4.2 and with prefer-idle-cpu: none below
    it): the idlest CPU below it is sought then. By default no domain has SD_BALANCE_WAKE.
    """
    slow = False
    both = policy.wide_in_affine != 0 or policy.prefer_idle != 0
    chain = machine.cpus[w.cpu]
    for level in range(chain.domains):
        flags = chain.sd_flags[level]
        if want_affine and flags & SD_WAKE_AFFINE and cpumask_test_cpu(w.prev_cpu, chain.sd_span[level]):
            slow = slow and both
            if w.cpu == w.prev_cpu:
                return w.prev_cpu, Affine.SAME, slow
            if policy.wide_in_affine and wide:
                return w.prev_cpu, Affine.WIDE, slow
            sync = either(w, Doubt.SYNC) if w.sync == UNKNOWN else w.sync != 0
            target, rule = wake_affine(policy, machine, w, level, w.cpu, w.prev_cpu, sync)
            return target, rule, slow
        if policy.balance_wake or flags & w.sd_flag:
            slow = True
        elif not want_affine and not policy.wide_in_affine:
            break
    return w.prev_cpu, Affine.NO_DOMAIN, slow
