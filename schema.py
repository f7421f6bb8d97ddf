# SPDX-License-Identifier: GPL-2.0-only
"""The tables of a trace: every column's type, unit and meaning, in one place.

Names and types equal those of tracers/records.h (a test compares the two); what a column means stands here and is
written into each Parquet file's field metadata. Times are CLOCK_MONOTONIC nanoseconds, masks are 64-bit words in
ascending CPU order, jiffies are the kernel's own 64-bit count.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

MASK = "mask"  # stands for ("<u8", (words,)): as many words as the machine's CPUs need
NEVER = 0xFFFFFFFF  # a 32-bit input that could not be read
NEVER64 = 0xFFFFFFFFFFFFFFFF  # a 64-bit input that could not be read


class Outcome(IntEnum):
    """What became of a wakeup in try_to_wake_up(): only PLACED, FORK and EXEC reach select_task_rq_fair()."""

    PLACED = 0
    SELF = 1
    QUEUED = 2
    DELAYED = 3
    PINNED = 4
    MIGRATION_DISABLED = 5
    NOT_FAIR = 6
    WAKELIST = 7
    FORK = 8
    EXEC = 9


class Context(IntEnum):
    """What the waking CPU was doing; in an interrupt the waker is whoever was interrupted."""

    TASK = 0
    SOFTIRQ = 1
    HARDIRQ = 2
    NMI = 3
    UNKNOWN = 4


class Consulted(IntEnum):
    """Kernel functions whose answers the deep tier records."""

    AVAILABLE_IDLE = 0
    IDLE = 1
    SHARE_CACHE = 2
    H_LOAD = 3


class Load(IntEnum):
    """Kinds of row in the loads table."""

    ENTRY = 0  # when the decision began: one row a CPU
    EXIT = 1  # when it ended: of a CPU of which anything was different then


class Running(IntEnum):
    """What runs on a CPU."""

    OTHER = 0
    IDLE = 1  # the idle task
    SELF = 2  # the task that is placed


class NumaEvent(IntEnum):
    """Kinds of row in the numa table."""

    MOVE = 0
    STICK = 1
    SWAP = 2
    FAULT = 3
    FIND = 4  # task_numa_find_cpu() returned


class TaskEvent(IntEnum):
    """Kinds of row in the tasks table."""

    SNAPSHOT = 0
    NEW = 1
    RENAME = 2
    EXIT = 3


@dataclass(frozen=True)
class Column:
    """One column: numpy type (or MASK), unit, meaning."""

    name: str
    dtype: str
    unit: str
    doc: str

    @property
    def is_array(self) -> bool:
        """Whether a row holds several values."""
        return self.dtype == MASK or bool(np.dtype(self.dtype).shape)


def _columns(text: str) -> tuple[Column, ...]:
    rows = [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
    return tuple(Column(*row) for row in rows)


HEADER = _columns(
    """
    ts   | <u8 | ns | when it happened
    seq  | <u4 |    | count of records tried on this CPU for this ring; a gap is loss
    cpu  | <u2 |    | CPU it happened on
    kind | <u2 |    | event kind within a shared ring, else 0
    """
)

# fmt: off
WAKEUPS = HEADER + _columns(
    """
    ts_exit               | <u8  | ns      | when select_task_rq_fair returned (decision) or the wakeup was next seen (tracepoint)
    jiffies               | <u8  | jiffies | jiffies at entry
    waker_start           | <u8  | ns      | start_time of current
    wakee_start           | <u8  | ns      | start_time of p
    waker_pid             | <i4  |         | current's pid; 0 is the CPU's idle task
    wakee_pid             | <i4  |         | p's pid
    waker_tag             | <u4  |         | stands for current's address: (address >> 6), cut to 32 bits
    wakee_tag             | <u4  |         | stands for p's address
    waker_last_wakee      | <u4  |         | tag of current.last_wakee at entry, 0 if none
    wakee_last_wakee      | <u4  |         | tag of p.last_wakee at entry
    waker_flips           | <u4  |         | current.wakee_flips at entry, before record_wakee
    waker_flips_exit      | <u4  |         | current.wakee_flips at ts_exit
    wakee_flips           | <u4  |         | p.wakee_flips at entry
    wakee_flips_exit      | <u4  |         | p.wakee_flips at ts_exit
    waker_decay_ts        | <u8  | jiffies | current.wakee_flip_decay_ts at entry
    wakee_decay_ts        | <u8  | jiffies | p.wakee_flip_decay_ts at entry
    waker_decay_ts_exit   | <u8  | jiffies | current.wakee_flip_decay_ts at ts_exit
    jiffies_exit          | <u8  | jiffies | jiffies at ts_exit
    this_load_exit        | <u8  | load    | this_load at ts_exit, all ones where not read
    prev_load_exit        | <u8  | load    | prev_load at ts_exit, likewise
    waker_last_wakee_exit | <u4  |         | tag of current.last_wakee at ts_exit
    wake_flags            | <u4  |         | wake_flags as passed (bits by kernel version); 4294967295 unknown
    sd_flag               | <u4  |         | sd_flag as passed up to 5.12, else 0
    waker_flags           | <u4  |         | current.flags (PF_*)
    prev_cpu              | <i2  |         | prev_cpu argument (tier tracepoint: p.wake_cpu)
    chosen_cpu            | <i2  |         | what select_task_rq_fair returned (tracepoint: dest of the migration, else p's CPU)
    recent_used_cpu       | <i2  |         | p.recent_used_cpu at entry
    wakee_cpu             | <i2  |         | task_cpu(p) at entry
    waker_prio            | <i2  |         | current.prio
    wakee_prio            | <i2  |         | p.prio
    waker_nr_allowed      | <i2  |         | current.nr_cpus_allowed
    wakee_nr_allowed      | <i2  |         | p.nr_cpus_allowed
    outcome               | u1  |         | see Outcome
    context               | u1  |         | see Context
    waker_policy          | u1  |         | current.policy
    wakee_policy          | u1  |         | p.policy
    llc_size              | <u4  | CPUs    | sd_llc_size of this_cpu: wake_wide's factor
    wakee_load            | <u8  | load    | p.se.avg.load_avg
    wakee_h_load          | <u8  | load    | task_h_load(p) from the fields the kernel reads
    waker_h_load          | <u8  | load    | task_h_load(current)
    this_load             | <u8  | load    | cpu_load(this_cpu) (before 5.5: runnable load)
    prev_load             | <u8  | load    | cpu_load(prev_cpu)
    wakee_util            | <u8  | util    | p.se.avg.util_avg
    this_capacity         | <u4  |         | capacity_of(this_cpu)
    prev_capacity         | <u4  |         | capacity_of(prev_cpu)
    this_nr_running       | <u4  | tasks   | rq(this_cpu).nr_running
    prev_nr_running       | <u4  | tasks   | rq(prev_cpu).nr_running
    this_h_nr_queued      | <u4  | tasks   | rq(this_cpu).cfs.h_nr_queued (6.12.y and later), 4294967295 where absent
    this_h_nr_runnable    | <u4  | tasks   | rq(this_cpu).cfs.h_nr_runnable, likewise
    this_nr_idle_scan     | <i4  | CPUs    | sd_llc_shared(this_cpu).nr_idle_scan, -1 unknown or absent
    prev_nr_idle_scan     | <i4  | CPUs    | sd_llc_shared(prev_cpu).nr_idle_scan
    this_has_idle_cores   | i1  |         | sd_llc_shared(this_cpu).has_idle_cores, -1 unknown
    prev_has_idle_cores   | i1  |         | sd_llc_shared(prev_cpu).has_idle_cores
    load_depth            | i1  |         | levels of task groups walked for h_load; -1 if p's chain was deeper than is read
    has_masks             | i1  |         | 1 if idle words were read from the runqueues, 2 if kept from switches, 0 if none was: then all of runqueues is 0
    wakee_preferred_nid   | <i4  |         | p.numa_preferred_nid, -1 none
    this_avg_idle         | <u8  | ns      | rq(this_cpu).avg_idle
    this_avg_scan_cost    | <u8  | ns      | avg_scan_cost of this_cpu's LLC domain
    waker_migrate_retry   | <u8  | jiffies | current.numa_migrate_retry
    wakee_migrate_retry   | <u8  | jiffies | p.numa_migrate_retry
    waker_scan_period     | <u4  | ms      | current.numa_scan_period
    wakee_scan_period     | <u4  | ms      | p.numa_scan_period
    affine_attempts       | <i4  |         | rise of p's nr_wakeups_affine_attempts within the decision, -1 without schedstats
    affine_moves          | <i4  |         | rise of p's nr_wakeups_affine within the decision, -1 without schedstats
    this_nr_running_exit  | <u4  | tasks   | this_nr_running at ts_exit, 4294967295 where not read
    prev_nr_running_exit  | <u4  | tasks   | prev_nr_running at ts_exit, likewise
    this_nr_idle_scan_exit | <i4 | CPUs    | this_nr_idle_scan at ts_exit, -1 where not read
    prev_nr_idle_scan_exit | <i4 | CPUs    | prev_nr_idle_scan at ts_exit, likewise
    this_has_idle_cores_exit | <i4 |       | this_has_idle_cores at ts_exit (the decision itself may clear it), likewise
    prev_has_idle_cores_exit | <i4 |       | prev_has_idle_cores at ts_exit, likewise
    idle                  | mask |         | CPUs idle at entry, within the LLCs of this_cpu and prev_cpu
    idle_exit             | mask |         | the same at ts_exit
    sched_idle            | mask |         | CPUs running only SCHED_IDLE tasks at entry, same span
    sched_idle_exit       | mask |         | sched_idle at ts_exit
    allowed               | mask |         | p's allowed CPUs (cpus_ptr)
    """
)

SWITCHES = HEADER + _columns(
    """
    prev_pid   | <i4 | | pid switched out, 0 is the idle task
    next_pid   | <i4 | | pid switched in
    prev_state | <u4 | | prev's state bits as the kernel holds them, 0 if runnable
    next_prio  | <i2 | | next's prio
    preempt    | u1 | | 1 if prev was preempted
    prev_on_rq | u1 | | prev.on_rq after the switch decision: 0 means it slept
    """
)

CONSULTS = HEADER + _columns(
    """
    answer     | <u8 | | what the function returned
    wakeup_seq | <u4 | | seq of the wakeup (same CPU) it belongs to
    asked_cpu  | <i2 | | first argument, or -1
    asked_cpu2 | <i2 | | second argument, or -1
    """
)

LOADS = HEADER + _columns(
    """
    load         | <u8 | load  | cfs.avg.load_avg of asked_cpu
    idle_stamp   | <u8 | ns    | rq.idle_stamp, 0 if it is not idle
    wakeup_seq   | <u4 |       | seq of the wakeup (same CPU) it belongs to
    asked_cpu    | <i2 |       | the CPU this row is about
    curr         | u1 |        | see Running
    own_queued   | u1 |        | 1 if the task is queued there (task_running_on_cpu)
    runnable     | <u4 | util  | cfs.avg.runnable_avg
    util         | <u4 | util  | cfs.avg.util_avg
    util_est     | <u4 | util  | cfs.avg.util_est (.enqueued before 6.8)
    nr_running   | <u4 | tasks | rq.nr_running
    nr_idle      | <u4 | tasks | SCHED_IDLE tasks among them
    ttwu_pending | <u4 |       | 1 if a remote wakeup is on its way
    exit_latency | <u4 | us    | exit latency of the idle state it is in, 4294967295 if none
    own_load     | <u4 | load  | of load, the task's own share if it has one here (task_h_load), 4294967295 unknown
    own_runnable | <u4 | util  | likewise of runnable
    own_util     | <u4 | util  | likewise of util
    own_util_est | <u4 | util  | likewise of util_est, if it is queued
    imbalance    | <u4 |       | bit n: sgc.imbalance of the group that holds asked_cpu in its domain of level n
    capacity     | (8,)<u4 |   | sgc.capacity of that group, by level
    """
)

MIGRATIONS = HEADER + _columns(
    """
    pid       | <i4 | | task moved
    by_pid    | <i4 | | current when it was moved
    orig_cpu  | <i2 | | from
    dest_cpu  | <i2 | | to
    in_wakeup | u1 | | 1 if within this CPU's own wakeup of that task
    """
)

NUMA = HEADER + _columns(
    """
    pid           | <i4 |         | task
    dst_pid       | <i4 |         | the other task of a swap, 0 if none (FIND: of the best place so far)
    src_cpu       | <i2 |         | from
    dst_cpu       | <i2 |         | to, -1 if none was found (FIND: the best place so far)
    src_nid       | <i2 |         | from node
    dst_nid       | <i2 |         | to node (FAULT: the node the page is on; FIND: the node searched)
    event         | u1 |         | see NumaEvent
    flags         | u1 |         | FAULT: the TNF_* bits
    preferred_nid | <i2 |         | task's numa_preferred_nid at the event
    scan_period   | <u4 | ms      | task's numa_scan_period
    migrate_retry | <u8 | jiffies | task's numa_migrate_retry
    jiffies       | <u8 | jiffies | jiffies at the event
    pages         | <u4 | pages   | FAULT: pages of the fault
    task_imp      | <i2 | 1/1000  | FIND: share of the task's faults more there than where it runs (taskimp)
    group_imp     | <i2 | 1/1000  | FIND: the same of its numa_group (groupimp)
    """
)

TASKS = HEADER + _columns(
    """
    start      | <u8   | ns | start_time; (pid, start) identifies a task
    pid        | <i4   |    | pid in the initial namespace
    tgid       | <i4   |    | thread group
    parent_pid | <i4   |    | real_parent's pid
    tag        | <u4   |    | stands for the task's address, as in wakeups
    event      | u1   |    | see TaskEvent
    comm       | S16   |    | name from this moment on
    """
)

HOTPLUGS = HEADER + _columns(
    """
    target_cpu | <i4 | | CPU that changed
    online     | u1 | | 1 came online, 0 went offline
    """
)
# fmt: on

TABLES: dict[str, tuple[Column, ...]] = {
    "wakeups": WAKEUPS,
    "switches": SWITCHES,
    "migrations": MIGRATIONS,
    "numa": NUMA,
    "tasks": TASKS,
    "consults": CONSULTS,
    "loads": LOADS,
    "hotplugs": HOTPLUGS,
}
ADDED = {"task_imp", "group_imp"}  # columns that older traces of this format lack; there they read as 0


def dtype(table: str, words: int = 1) -> np.dtype[np.void]:
    """The packed structured dtype of a table, with masks of shape (words,)."""
    fields = [(c.name, "<u8", (words,)) if c.dtype == MASK else (c.name, c.dtype) for c in TABLES[table]]
    return np.dtype(fields)
