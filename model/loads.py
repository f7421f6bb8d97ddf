# SPDX-License-Identifier: GPL-2.0-only
"""What a fork or exec found on each CPU: rows of the loads table, by decision."""

from __future__ import annotations

from enum import IntFlag

import numpy as np

from ..schema import NEVER, Load, Running
from ..schema import dtype as table_dtype
from ..trace import Trace
from .compiled import compiled
from .flips import overlaps
from .topo import Array, mask_of
from .wakeup import UNKNOWN, Wakeup


class Changed(IntFlag):
    """Which figures of a CPU differ between entry and exit of the decision."""

    LOAD = 1
    RUNNABLE = 2
    UTIL = 4  # util or util_est
    TASKS = 8  # nr_running, who runs, whether a wakeup is on its way
    STATE = 16  # idle_stamp, exit_latency


def _key(cpu: Array, seq: Array) -> Array:
    return cpu.astype(np.int64) << 32 | seq.astype(np.int64)


Found = tuple[Array, Array, Array]  # rows, and the first and the one after the last of each wakeup's


class Loads:
    """Rows of the loads table in the order of their decisions."""

    def __init__(self, rows: Array, lost: list[tuple[int, int]]) -> None:
        key = _key(rows["cpu"], rows["wakeup_seq"])
        order = np.lexsort((rows["seq"], key))
        self.rows, self.key, self.lost = rows[order], key[order], lost

    @classmethod
    def of(cls, trace: Trace) -> Loads:
        """Those of a trace; none if it was made without."""
        if not trace.has("loads"):
            return cls(np.empty(0, table_dtype("loads")), [])
        windows = trace.loss("loads")[["start", "end"]].itertuples(index=False, name=None)
        return cls(trace.array("loads"), list(windows))

    def find(self, wakeups: Array) -> Found:
        """The rows of each wakeup; none where some of them may be lost."""
        key = _key(wakeups["cpu"], wakeups["seq"])
        first, last = np.searchsorted(self.key, key, "left"), np.searchsorted(self.key, key, "right")
        return self.rows, first, np.where(overlaps(wakeups["ts"], wakeups["ts_exit"], self.lost), first, last)

    def with_idle(self, wakeups: Array) -> Array:
        """The wakeups, with the idle words of forks and execs over all CPUs and not two LLCs alone; those at entry."""
        wakeups = wakeups.copy()
        rows, first, last = self.find(wakeups)
        for i in np.flatnonzero(first < last):
            own = rows[first[i] : last[i]]
            own = own[own["kind"] == Load.ENTRY]
            idle = (own["curr"] == Running.IDLE) & (own["nr_running"] == 0) & (own["ttwu_pending"] == 0)
            sched_idle = (own["nr_running"] > 0) & (own["nr_running"] == own["nr_idle"])
            words = wakeups["idle"].shape[1]
            wakeups["idle"][i] = mask_of(own["asked_cpu"][idle].tolist(), words)
            wakeups["sched_idle"][i] = mask_of(own["asked_cpu"][sched_idle].tolist(), words)
        return wakeups


NONE = Loads(np.empty(0, table_dtype("loads")), [])


@compiled
def find_loads(w: Wakeup, found: Found, i: int) -> None:
    """Give w, filled with wakeup number i, the rows of its decision, if there are any."""
    rows, first, last = found
    if first[i] < last[i]:
        fill_loads(w, rows[first[i] : last[i]])


@compiled
def fill_loads(w: Wakeup, rows: Array) -> None:
    """Give w, filled with a fork or exec, the rows of its decision.

    Figures are those at entry. The task's own share of them is that at exit: sync_entity_load_avg() has brought an
    exec's up to date by then. The idle words, which a record has of two LLCs, become those of all CPUs.
    """
    for word in range(len(w.idle)):
        w.flickered[word] = w.idle[word] ^ w.idle_exit[word]
        w.idle[word] = w.idle_exit[word] = w.sched_idle[word] = w.sched_idle_exit[word] = 0
    w.has_masks = w.figures = 1
    for cpu in range(len(w.known)):
        w.known[cpu] = w.changed[cpu] = w.group_changed[cpu] = 0
    for i in range(len(rows)):
        row = rows[i]
        cpu = row["asked_cpu"]
        word, bit = cpu >> 6, np.uint64(1) << np.uint64(cpu & 63)
        idle = row["curr"] == Running.IDLE and not row["nr_running"] and not row["ttwu_pending"]
        sched_idle = row["nr_running"] > 0 and row["nr_running"] == row["nr_idle"]
        if row["kind"] == Load.ENTRY:
            _enter(w, cpu, row)
            w.idle[word] |= bit if idle else np.uint64(0)
            w.sched_idle[word] |= bit if sched_idle else np.uint64(0)
        else:
            _compare(w, cpu, row)
            w.idle_exit[word] &= ~bit
            w.sched_idle_exit[word] &= ~bit
        w.idle_exit[word] |= bit if idle else np.uint64(0)
        w.sched_idle_exit[word] |= bit if sched_idle else np.uint64(0)
        w.own_load[cpu] = row["own_load"] if row["own_load"] != NEVER else UNKNOWN
        w.own_runnable[cpu] = row["own_runnable"]
        w.own_util[cpu] = row["own_util"]
        w.own_util_est[cpu] = row["own_util_est"]
        w.own_queued[cpu] = row["own_queued"]
    for cpu in range(len(w.known)):
        if w.flickered[cpu >> 6] >> np.uint64(cpu & 63) & np.uint64(1):
            w.changed[cpu] |= Changed.TASKS.value
            bit = np.uint64(1) << np.uint64(cpu & 63)
            w.idle_exit[cpu >> 6] = (w.idle_exit[cpu >> 6] & ~bit) | (~w.idle[cpu >> 6] & bit)


@compiled
def _enter(w: Wakeup, cpu: int, row: Array) -> None:
    w.known[cpu] = 1
    w.load[cpu] = row["load"]
    w.runnable[cpu] = row["runnable"]
    w.util[cpu] = row["util"]
    w.util_est[cpu] = row["util_est"]
    w.nr_running[cpu] = row["nr_running"]
    w.curr[cpu] = row["curr"]
    w.ttwu_pending[cpu] = row["ttwu_pending"]
    w.idle_stamp[cpu] = row["idle_stamp"]
    w.exit_latency[cpu] = row["exit_latency"] if row["exit_latency"] != NEVER else UNKNOWN
    w.imbalance[cpu] = row["imbalance"]
    for level in range(w.capacity.shape[1]):
        w.capacity[cpu, level] = row["capacity"][level]


@compiled
def _compare(w: Wakeup, cpu: int, row: Array) -> None:
    changed = 0
    if w.load[cpu] != row["load"]:
        changed |= Changed.LOAD.value
    if w.runnable[cpu] != row["runnable"]:
        changed |= Changed.RUNNABLE.value
    if w.util[cpu] != row["util"] or w.util_est[cpu] != row["util_est"]:
        changed |= Changed.UTIL.value
    tasks = w.nr_running[cpu] != row["nr_running"] or w.curr[cpu] != row["curr"]
    if tasks or w.ttwu_pending[cpu] != row["ttwu_pending"]:
        changed |= Changed.TASKS.value
    latency = row["exit_latency"] if row["exit_latency"] != NEVER else UNKNOWN
    if w.idle_stamp[cpu] != row["idle_stamp"] or w.exit_latency[cpu] != latency:
        changed |= Changed.STATE.value
    w.changed[cpu] = changed
    w.group_changed[cpu] = w.imbalance[cpu] ^ row["imbalance"]
    for level in range(w.capacity.shape[1]):
        if w.capacity[cpu, level] != row["capacity"][level]:
            w.group_changed[cpu] |= 1 << level
