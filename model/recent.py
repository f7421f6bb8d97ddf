# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel's decisions leave in recent_used_cpu, carried from one wakeup of a trace to the next."""

from __future__ import annotations

from enum import IntFlag
from typing import NamedTuple

import numpy as np

from ..schema import Outcome
from .affine import Affine
from .compiled import compiled
from .idle import Path
from .policy import RecentUsed
from .races import Change
from .topo import Array, Row, cpumask_test_cpu
from .wakeup import ANY_CPU, Doubt, Wakeup


class Left(IntFlag):
    """What a decision did that leaves something in a recent_used_cpu."""

    LOOKED = 1  # at the wakee's
    TOOK = 2  # it
    WANTED = 4  # to be affine: the wakee might have been pulled to the waking CPU
    ALL = 7


class Recents(NamedTuple):
    """recent_used_cpu of every task as a policy's decisions leave it.

    rule: RecentUsed of the policy, NEVER if nothing is to be carried and every wakeup has what the traced kernel had.
    wakers, wakees: codes of tasks, int64 by row; blind: whether decisions before may be lost, bool by row; places:
    whether the policy's kernel comes to placement there, bool by row; cpus: by task, int64, ANY_CPU where not known;
    seen: what each decision finds, int16 by row, to be filled in.
    """

    rule: int
    wakers: Array
    wakees: Array
    blind: Array
    places: Array
    cpus: Array
    seen: Array


def _none() -> Recents:
    codes, flags = np.empty(0, np.int64), np.empty(0, np.bool_)
    return Recents(int(RecentUsed.NEVER), codes, codes, flags, flags, codes, np.empty(0, np.int16))


AS_RECORDED = _none()


@compiled
def forget_recent(recents: Recents, i: int) -> None:
    """What is known no more at wakeup number i, whatever it is."""
    if recents.blind[i]:
        recents.cpus[:] = ANY_CPU


@compiled
def take_recent(recents: Recents, i: int, w: Wakeup) -> None:
    """Give the wakeup, number i, the recent_used_cpu that earlier decisions left."""
    w.recent_used_cpu = recents.seen[i] = recents.cpus[recents.wakees[i]]


@compiled
def left_by(path: int, affine: int) -> int:
    """Left, of a decision that came about like this."""
    left = 0
    if path not in (Path.CURRENT_CPU, Path.TARGET, Path.PREV, Path.KTHREAD, Path.SLOW, Path.ASYM):
        left |= Left.LOOKED.value
    if path in (Path.RECENT, Path.FALLBACK_RECENT):
        left |= Left.TOOK.value
    if affine not in (Affine.WIDE, Affine.DISALLOWED, Affine.NONE):
        left |= Left.WANTED.value
    return left


@compiled
def unsure_of(w: Wakeup, changed: int) -> int:
    """Left that is not certain of a decision: the kernel may have seen what changed as it was before or after."""
    unsure, cpu = 0, w.recent_used_cpu
    if changed or w.asked & Doubt.IDLE.value:
        unsure = Left.LOOKED.value
        if cpu == ANY_CPU or w.asked & Doubt.IDLE.value or (cpu >= 0 and _ever_idle(w, cpu)):
            unsure |= Left.TOOK.value
    if changed & Change.FLIPS.value:
        unsure |= Left.WANTED.value
    return unsure


@compiled
def _ever_idle(w: Wakeup, cpu: int) -> bool:
    idle = cpumask_test_cpu(cpu, w.idle) or cpumask_test_cpu(cpu, w.idle_exit)
    return idle or cpumask_test_cpu(cpu, w.sched_idle) or cpumask_test_cpu(cpu, w.sched_idle_exit)


@compiled
def leave_recent(recents: Recents, i: int, prev: int, cpu: int, surely: int, maybe: int) -> None:
    """What a wakeup leaves in the wakee's recent_used_cpu and, until 89aafd67f28c (v5.15), in current's.

    Since then the wakee's becomes prev whenever it is looked at; before, if it is taken, and current's the waking CPU
    whenever the wakee might be pulled there (select_task_rq_fair, v5.10 fair.c). surely and maybe: Left.
    """
    sets = Left.TOOK.value if recents.rule == RecentUsed.ON_HIT else Left.LOOKED.value
    _set(recents.cpus, recents.wakees[i], prev, surely & sets != 0, maybe & sets != 0)
    if recents.rule == RecentUsed.ON_HIT:
        wanted = Left.WANTED.value
        _set(recents.cpus, recents.wakers[i], cpu, surely & wanted != 0, maybe & wanted != 0)


@compiled
def pass_recent(recents: Recents, i: int, row: Row) -> None:
    """A wakeup that is not replayed: a fork begins anew (wake_up_new_task); of others that the policy's kernel would
    have placed nothing is known.
    """
    if row["outcome"] == Outcome.FORK:
        recents.cpus[recents.wakees[i]] = row["recent_used_cpu"]
    elif recents.places[i]:
        leave_recent(recents, i, int(row["prev_cpu"]), int(row["cpu"]), 0, Left.ALL.value)


@compiled
def _set(cpus: Array, task: int, cpu: int, surely: bool, maybe: bool) -> None:
    """Set a task's CPU; if it is not certain that it is set, it may be another and is not known any more."""
    if task < 0:
        return
    if surely:
        cpus[task] = cpu
    elif maybe and cpus[task] != cpu:
        cpus[task] = ANY_CPU
