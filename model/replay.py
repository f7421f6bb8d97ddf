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
from .loads import NONE, Found, Loads, find_loads
from .policy import Policy, RecentUsed
from .races import changes
from .recent import AS_RECORDED, Recents, forget_recent, leave_recent, left_by, pass_recent, take_recent, unsure_of
from .select import select_new, select_task_rq_fair
from .topo import Array, Groups, Machine, Row, groups, machine
from .wakeup import NO_CPU, Doubt, Wakeup, as_ints, fill, new, placed, scratch


class Certainty(IntEnum):
    """Whether the captured inputs suffice to say what this policy does."""

    EXACT = 0  # yes
    RACED = 1  # yes, but something it looked at (see races.Change) changed while the kernel decided
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
        ("changed", "u1"),  # Change: what it looked at changed while the kernel decided
        ("possible", "i1"),  # whether the kernel's CPU is one that some value of the missed facts gives
    ]
)


def replay(
    wakeups: Array, topology: Topology, policy: Policy, hz: int, loads: Loads = NONE, recents: Recents = AS_RECORDED
) -> Array:
    """What policy does with each wakeup.

    wakeups: rows of schema.WAKEUPS, shape (n,). hz: ticks a second of the traced kernel. loads: of the trace; without
    them forks and execs are undecidable. recents: to carry recent_used_cpu from one to the next.
    Returns RESULT rows, (n,).
    """
    results = np.zeros(len(wakeups), RESULT)
    where = (machine(topology), groups(topology))
    _replay(wakeups, loads.find(wakeups), *where, as_ints(policy), hz, recents, scratch(topology), results)
    return results


@compiled
def _replay(
    wakeups: Array,
    found: Found,
    machine: Machine,
    groups: Groups,
    policy: Policy,
    hz: int,
    recents: Recents,
    w: Wakeup,
    results: Array,
) -> None:
    carries = recents.rule != RecentUsed.NEVER  # else not even called: the calls cost a fifth of a replay
    for i in range(len(wakeups)):
        row = wakeups[i]
        result = results[i]
        result["wide"] = -1
        result["cpu"] = NO_CPU
        result["target"] = NO_CPU
        if carries:
            forget_recent(recents, i)
        if placed(row):
            fill(w, row, policy, machine)
            if carries:
                take_recent(recents, i, w)
            surely, maybe = decide(policy, machine, w, hz, row["chosen_cpu"], result)
            if carries:
                leave_recent(recents, i, w.prev_cpu, w.cpu, surely, maybe)
            continue
        if carries:
            pass_recent(recents, i, row)
        if new(row):
            fill(w, row, policy, machine)
            find_loads(w, found, i)
            decide_new(policy, machine, groups, w, row["chosen_cpu"], result)
        else:
            result["certainty"] = Certainty.NOT_PLACED


@compiled
def decide(policy: Policy, machine: Machine, w: Wakeup, hz: int, chosen: int, result: Row) -> tuple[int, int]:
    """Fill one RESULT row: decide with every combination of answers to the questions that are asked.

    Returns what the decision surely leaves and what it may leave (Left).
    """
    w.asked = 0
    w.answers = 0
    w.calls = 0
    first = select_task_rq_fair(policy, machine, w, hz)
    certain = first.cpu != NO_CPU
    possible = first.cpu == chosen or not certain
    moved = changes(w, hz)
    surely = maybe = left_by(first.path, first.affine)
    answers = 0
    while w.asked != 0:
        answers = (answers - w.asked) & w.asked  # the next subset of the questions asked so far
        if answers == 0:
            break
        w.answers = answers
        w.calls = 0
        other = select_task_rq_fair(policy, machine, w, hz)
        certain = certain and other.cpu == first.cpu
        left = left_by(other.path, other.affine)
        surely, maybe = surely & left, maybe | left
        possible = possible or other.cpu == chosen or other.cpu == NO_CPU
        moved = moved | changes(w, hz)
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
    result["changed"] = moved
    if not certain:
        result["certainty"] = Certainty.UNDECIDABLE
    elif moved != 0:
        result["certainty"] = Certainty.RACED
    else:
        result["certainty"] = Certainty.EXACT
    unsure = unsure_of(w, moved)
    return surely & ~unsure, maybe | unsure


@compiled
def decide_new(policy: Policy, machine: Machine, groups: Groups, w: Wakeup, chosen: int, result: Row) -> None:
    """Fill one RESULT row for a fork or exec, which is undecidable if anything that it needs is missing."""
    w.asked = 0
    w.calls = 0
    found = select_new(policy, machine, groups, w)
    certain = found.cpu != NO_CPU
    result["cpu"] = found.cpu
    result["target"] = found.target
    result["path"] = found.path
    result["affine"] = found.affine
    result["wide"] = found.wide
    result["doubt"] = w.asked
    result["possible"] = found.cpu == chosen or not certain
    moved = changes(w, 0)
    result["changed"] = moved
    if not certain:
        result["certainty"] = Certainty.UNDECIDABLE
    elif moved != 0:
        result["certainty"] = Certainty.RACED
    else:
        result["certainty"] = Certainty.EXACT
