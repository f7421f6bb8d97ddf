# SPDX-License-Identifier: GPL-2.0-only
"""A trace through the model: what the policy would have done with each recorded wakeup.

Replay is open-loop: each decision starts from what the kernel saw, not from what earlier replayed decisions would have
left behind.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from ..topology import Topology
from .compiled import compiled
from .flickers import FLICKERED
from .loads import NONE, Found, Loads, find_loads
from .policy import Policy
from .select import select_task_rq_fair
from .topo import SD_BALANCE_WAKE, Array, Machine, Row, cpumask_test_cpu, machine
from .wakeup import NO_CPU, UNKNOWN, Asked, Doubt, Wakeup, as_ints, fill, placed, scratch


class Certainty(IntEnum):
    """Whether the captured inputs suffice to say what this policy does."""

    EXACT = 0  # yes
    RACED = 1  # yes, but something it looked at (see raced) changed while the kernel decided
    UNDECIDABLE = 2  # no: the CPU depends on a fact that was not captured (see Doubt)
    NOT_PLACED = 3  # the wakeup never came to placement


RESULT = np.dtype(
    [
        ("cpu", "<i2"),  # the policy's CPU; -1 if undecidable or not placed
        ("target", "<i2"),  # where the search for an idle CPU began: what wake_affine chose, else prev
        ("path", "u1"),  # Path: which check returned the CPU
        ("affine", "u1"),  # Affine: the rule by which wake_affine chose, or why it was not asked
        ("wide", "i1"),  # wake_wide's verdict, -1 if not asked
        ("certainty", "u1"),  # Certainty
        ("doubt", "<u2"),  # Doubt: facts that were missed, also where the CPU does not depend on them
        ("possible", "i1"),  # whether the kernel's CPU is one that some value of the missed facts gives
    ]
)


def replay(wakeups: Array, topology: Topology, policy: Policy, hz: int, loads: Loads = NONE) -> Array:
    """What policy does with each wakeup.

    wakeups: rows of schema.WAKEUPS, shape (n,). hz: ticks a second of the traced kernel. loads: of the trace; without
    them forks and execs are undecidable. Returns RESULT rows, (n,).
    """
    results = np.zeros(len(wakeups), RESULT)
    _replay(wakeups, loads.find(wakeups), machine(topology), as_ints(policy), hz, scratch(topology), results)
    return results


@compiled
def _replay(wakeups: Array, found: Found, machine: Machine, policy: Policy, hz: int, w: Wakeup, results: Array) -> None:
    for i in range(len(wakeups)):
        row = wakeups[i]
        result = results[i]
        result["wide"] = -1
        result["cpu"] = NO_CPU
        result["target"] = NO_CPU
        if placed(row):
            fill(w, row, policy, machine)
            find_loads(w, found, i)
            decide(policy, machine, w, hz, row["chosen_cpu"], result)
        else:
            result["certainty"] = Certainty.NOT_PLACED


@compiled
def decide(policy: Policy, machine: Machine, w: Wakeup, hz: int, chosen: int, result: Row) -> None:
    """Fill one RESULT row: decide with every combination of answers to the questions that are asked."""
    w.asked = 0
    w.answers = 0
    w.calls = 0
    first = select_task_rq_fair(policy, machine, w, hz)
    certain = first.cpu != NO_CPU
    possible = first.cpu == chosen or not certain
    moved = raced(w, hz)
    answers = 0
    while w.asked != 0:
        answers = (answers - w.asked) & w.asked  # the next subset of the questions asked so far
        if answers == 0:
            break
        w.answers = answers
        w.calls = 0
        other = select_task_rq_fair(policy, machine, w, hz)
        certain = certain and other.cpu == first.cpu
        possible = possible or other.cpu == chosen or other.cpu == NO_CPU
        moved = moved or raced(w, hz)
    if w.asked & Doubt.IDLE.value:  # idleness is asked CPU by CPU, not once: yes and no are not all there is
        certain = False
        possible = True
    result["cpu"] = first.cpu if certain else NO_CPU
    result["target"] = first.target
    result["path"] = first.path
    result["affine"] = first.affine
    result["wide"] = first.wide
    result["doubt"] = w.asked
    result["possible"] = possible
    if not certain:
        result["certainty"] = Certainty.UNDECIDABLE
    elif moved:
        result["certainty"] = Certainty.RACED
    else:
        result["certainty"] = Certainty.EXACT


@compiled
def raced(w: Wakeup, hz: int) -> bool:
    """Whether something that was looked at differs between entry and exit, as far as both were read."""
    if w.moved:
        return True
    for i in range(w.calls):
        if _raced(w, w.trail[i, 0], w.trail[i, 1]):
            return True
    return w.sd_flag == SD_BALANCE_WAKE and _flips_raced(w, hz)


@compiled
def _raced(w: Wakeup, what: int, cpu: int) -> bool:
    if what == Asked.AVAILABLE_IDLE:
        if w.has_masks == 2 and cpu == w.chosen_cpu:  # seen next when the wakee was there: busy by this very wakeup
            return False
        return cpumask_test_cpu(cpu, w.idle) != cpumask_test_cpu(cpu, w.idle_exit)
    if what == Asked.SCHED_IDLE:
        return w.has_masks == 1 and cpumask_test_cpu(cpu, w.sched_idle) != cpumask_test_cpu(cpu, w.sched_idle_exit)
    if what == Asked.NR_RUNNING:
        return _changed(w.this_nr_running, w.this_nr_running_exit)
    if what == Asked.LOAD:  # h_load is worked out anew in every jiffy
        loads = _changed(w.this_load, w.this_load_exit) or _changed(w.prev_load, w.prev_load_exit)
        return loads or _changed(w.jiffies, w.jiffies_exit)
    here = cpu == w.cpu
    if what == Asked.SCAN_DEPTH:
        if here:
            return _changed(w.this_nr_idle_scan, w.this_nr_idle_scan_exit)
        return _changed(w.prev_nr_idle_scan, w.prev_nr_idle_scan_exit)
    if what == Asked.IDLE_CORES:
        if here:
            return _idle_cores_raced(w.this_has_idle_cores, w.this_has_idle_cores_exit)
        return _idle_cores_raced(w.prev_has_idle_cores, w.prev_has_idle_cores_exit)
    return False


@compiled
def _idle_cores_raced(before: int, after: int) -> bool:
    """The decision's own search clears it when it finds none, so of two readings only a rise tells."""
    return after == FLICKERED or (before == 0 and after == 1)


@compiled
def _changed(before: int, after: int) -> bool:
    return before != UNKNOWN and after != UNKNOWN and before != after


@compiled
def _flips_raced(w: Wakeup, hz: int) -> bool:
    """Whether record_wakee would have halved the flips at exit but not at entry."""
    if w.waker_flips == UNKNOWN or w.jiffies_exit == UNKNOWN:
        return False
    due = w.waker_decay_ts + hz
    return bool(w.jiffies <= due < w.jiffies_exit)
