# SPDX-License-Identifier: GPL-2.0-only
"""select_task_rq_fair: one wakeup's CPU, and how it came about."""

from __future__ import annotations

from typing import NamedTuple

from .affine import Affine, wake_affine
from .compiled import compiled
from .flips import record_wakee, wake_wide
from .idle import Path, select_idle_sibling
from .policy import Policy
from .topo import SD_WAKE_AFFINE, Machine, cpumask_test_cpu
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
    flips = w.waker_flips
    if flips != UNKNOWN:
        flips, _, _ = record_wakee(w.jiffies, hz, flips, w.waker_decay_ts, w.waker_last_wakee, w.wakee_tag)
    allowed = cpumask_test_cpu(w.cpu, w.allowed)
    if w.current_cpu and allowed:  # ab83f455f04d, v6.6
        return Decision(w.cpu, Path.CURRENT_CPU, -1, Affine.NONE, w.cpu)
    wide = wake_wide(w, flips, w.wakee_flips)
    want_affine = not wide and allowed
    target, rule, slow = walk_domains(policy, machine, w, want_affine)
    if slow:
        return Decision(NO_CPU, Path.SLOW, int(wide), rule, target)
    if not want_affine:
        rule = Affine.WIDE if wide else Affine.DISALLOWED
    cpu, path = select_idle_sibling(policy, machine, w, w.prev_cpu, target)
    return Decision(cpu, path, int(wide), rule, target)


@compiled
def walk_domains(policy: Policy, machine: Machine, w: Wakeup, want_affine: bool) -> tuple[int, Affine, bool]:
    """(target, rule, slow): up this CPU's domains to the first that lets wakes be affine and holds prev.

    slow says that a domain with w.sd_flag was met and no affine one: the idlest CPU below it is sought then. By
    default no domain has SD_BALANCE_WAKE.
    """
    slow = False
    chain = machine.cpus[w.cpu]
    for level in range(chain.domains):
        flags = chain.sd_flags[level]
        if want_affine and flags & SD_WAKE_AFFINE and cpumask_test_cpu(w.prev_cpu, chain.sd_span[level]):
            if w.cpu == w.prev_cpu:
                return w.prev_cpu, Affine.SAME, False
            sync = either(w, Doubt.SYNC) if w.sync == UNKNOWN else w.sync != 0
            target, rule = wake_affine(policy, machine, w, level, w.cpu, w.prev_cpu, sync)
            return target, rule, False
        if flags & w.sd_flag:
            slow = True
        elif not want_affine:
            break
    return w.prev_cpu, Affine.NO_DOMAIN, slow
