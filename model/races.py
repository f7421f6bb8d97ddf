# SPDX-License-Identifier: GPL-2.0-only
"""What a decision looked at and what changed while the kernel decided, as far as both were captured."""

from __future__ import annotations

from enum import IntFlag

from .compiled import compiled
from .flickers import FLICKERED
from .topo import SD_BALANCE_WAKE, cpumask_test_cpu
from .wakeup import UNKNOWN, Asked, Wakeup


class Change(IntFlag):
    """What changed; numbers are bits of a result's changed."""

    IDLE = 1  # whether a CPU is idle
    SCHED_IDLE = 2  # whether a CPU runs SCHED_IDLE tasks only
    NR_RUNNING = 4  # the waking CPU's
    LOAD = 8  # of the waking CPU, of prev, or by a tick of the wakee
    SCAN_DEPTH = 16  # nr_idle_scan
    IDLE_CORES = 32  # has_idle_cores
    FLIPS = 64  # they were due to be halved meanwhile
    FIGURES = 128  # of a CPU or group, in a fork or exec


@compiled
def changes(w: Wakeup, hz: int) -> int:
    """Change: what was looked at and differs between entry and exit, or was seen to have differed in between."""
    found = 0
    if w.moved:
        found |= Change.FIGURES.value
    for i in range(w.calls):
        found |= _change(w, w.trail[i, 0], w.trail[i, 1])
    if w.sd_flag == SD_BALANCE_WAKE and _halved(w, hz):
        found |= Change.FLIPS.value
    return found


@compiled
def _change(w: Wakeup, what: int, cpu: int) -> int:
    here = cpu == w.cpu
    changed = False
    bit = 0
    if what == Asked.AVAILABLE_IDLE:
        bit = Change.IDLE.value
        # seen next when the wakee was there: busy by this very wakeup
        own = w.has_masks == 2 and cpu == w.chosen_cpu
        changed = not own and cpumask_test_cpu(cpu, w.idle) != cpumask_test_cpu(cpu, w.idle_exit)
    elif what == Asked.SCHED_IDLE:
        bit = Change.SCHED_IDLE.value
        changed = w.has_masks == 1 and cpumask_test_cpu(cpu, w.sched_idle) != cpumask_test_cpu(cpu, w.sched_idle_exit)
    elif what == Asked.NR_RUNNING:
        bit = Change.NR_RUNNING.value
        changed = _differ(w.this_nr_running, w.this_nr_running_exit)
    elif what == Asked.LOAD:
        bit = Change.LOAD.value
        changed = _differ(w.this_load, w.this_load_exit) or _differ(w.prev_load, w.prev_load_exit)
        changed = changed or _differ(w.jiffies, w.jiffies_exit)  # h_load is worked out anew in every jiffy
    elif what == Asked.SCAN_DEPTH:
        bit = Change.SCAN_DEPTH.value
        if here:
            changed = _differ(w.this_nr_idle_scan, w.this_nr_idle_scan_exit)
        else:
            changed = _differ(w.prev_nr_idle_scan, w.prev_nr_idle_scan_exit)
    elif what == Asked.IDLE_CORES:
        bit = Change.IDLE_CORES.value
        if here:
            changed = _idle_cores_differ(w.this_has_idle_cores, w.this_has_idle_cores_exit)
        else:
            changed = _idle_cores_differ(w.prev_has_idle_cores, w.prev_has_idle_cores_exit)
    return bit if changed else 0


@compiled
def _differ(before: int, after: int) -> bool:
    return before != UNKNOWN and after != UNKNOWN and before != after


@compiled
def _idle_cores_differ(before: int, after: int) -> bool:
    """The decision's own search clears it when it finds none, so of two readings only a rise tells."""
    return after == FLICKERED or (before == 0 and after == 1)


@compiled
def _halved(w: Wakeup, hz: int) -> bool:
    """Whether record_wakee would have halved the flips at exit but not at entry."""
    if w.waker_flips == UNKNOWN or w.jiffies_exit == UNKNOWN:
        return False
    due = w.waker_decay_ts + hz
    return bool(w.recorded <= due < w.jiffies_exit)
