# SPDX-License-Identifier: GPL-2.0-only
"""The inputs of one decision, and what is not known of them.

A fact that was not captured is a question. Code that meets one asks `either(w, Doubt.…)` and goes on with the answer
it is given; replay.py then gives every combination of answers and looks whether the CPU depends on them.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Any

import numpy as np

from ..schema import NEVER, Context, Outcome
from ..topology import Topology
from .compiled import compiled
from .policy import LlcFactor, Policy, WakeFlags
from .topo import LEVELS, SD_BALANCE_EXEC, SD_BALANCE_FORK, SD_BALANCE_WAKE, Machine, Row, cpumask_test_cpu

UNKNOWN = -1
NO_CPU = -1  # where the kernel has nr_cpumask_bits or -1: no CPU found or chosen
ANY_CPU = -2  # as recent_used_cpu: not known which

PF_EXITING = 0x4
PF_KTHREAD = 0x200000
SCHED_IDLE = 5
WF_CURRENT_CPU = 0x40

Wakeup = Any  # a record of wakeup_dtype

STEPS = 32  # domains that a fork or exec may be moved in: every step leads to a smaller one

TRAIL = 256  # calls noted for each 64 CPUs: a wakeup looks at a CPU two or three times at most


class Doubt(IntFlag):
    """Questions that stay open for want of a fact; the fact each needs is in brackets."""

    NONE = 0
    SYNC = 1  # is it a sync wakeup? [wake_flags, current.flags]
    WIDE = 2  # is it wide? [flips]
    ALONE = 4  # is current the only runnable task here? [rq.nr_running, h_nr_queued, h_nr_runnable]
    WEIGHT = 8  # do the loads favour the waker's CPU? [loads, h_loads, capacities]
    KTHREAD = 16  # is current a per-CPU kthread waking from its own work? [current.flags, context, nr_running]
    IDLE_CORES = 32  # has the LLC idle cores? [has_idle_cores]
    SCAN_DEPTH = 64  # does the scan go all the way, not stop at its least depth? [nr_idle_scan, avg_idle, scan cost]
    IDLE = 128  # which CPUs are idle? [idle words]
    CAPACITY = 256  # which CPUs fit the task? [utilisation and clamps: not captured]
    SUMS = 512  # do the loads of whole nodes or LLCs favour the waker's CPU? [not captured]
    GROUPS = 1024  # which group of CPUs is the idlest, and which CPU in it? [loads table, rings of groups]
    RECENT = 2048  # which CPU is recent_used_cpu? [what another kernel's earlier decisions left in it]


class Asked(IntEnum):
    """What the trail of a decision consists of; calls as in schema.Consulted."""

    AVAILABLE_IDLE = 0
    SHARE_CACHE = 2
    H_LOAD = 3
    # Not calls, but looks at what may change meanwhile:
    LOAD = 100  # the loads of both runqueues
    NR_RUNNING = 101  # the number of tasks on this runqueue
    SCHED_IDLE = 102  # whether a CPU runs only SCHED_IDLE tasks
    IDLE_CORES = 103  # has_idle_cores of a CPU's LLC
    SCAN_DEPTH = 104  # nr_idle_scan of a CPU's LLC


def wakeup_dtype(words: int) -> np.dtype[Any]:
    """One wakeup as select_task_rq_fair meets it, and room to work. UNKNOWN (-1) where a fact was not captured."""
    facts = """
        cpu prev_cpu chosen_cpu wakee_cpu jiffies wakee_tag waker_last_wakee waker_flips wakee_flips
        waker_decay_ts wakee_decay_ts recent_used_cpu this_load prev_load waker_h_load wakee_h_load
        this_capacity prev_capacity this_nr_running this_nr_idle_scan
        prev_nr_idle_scan this_has_idle_cores prev_has_idle_cores this_avg_idle this_avg_scan_cost has_masks
        jiffies_exit this_load_exit prev_load_exit this_nr_running_exit this_nr_idle_scan_exit prev_nr_idle_scan_exit
        this_has_idle_cores_exit prev_has_idle_cores_exit wakee_nr_allowed
        """  # as in schema.WAKEUPS
    fields: list[Any] = [(name, "<i8") for name in facts.split()]
    fields += [
        ("sd_flag", "<i8"),  # SD_BALANCE_WAKE, _FORK or _EXEC
        ("recorded", "<i8"),  # jiffies as record_wakee reads them
        ("sync", "<i8"),  # WF_SYNC and current is not exiting
        ("current_cpu", "<i8"),  # WF_CURRENT_CPU
        ("factor", "<i8"),  # sd_llc_size of the waking CPU
        ("kthread", "<i8"),  # current is a kthread bound to one CPU
        ("in_task", "<i8"),
        ("wakee_sched_idle", "<i8"),  # p has policy SCHED_IDLE
        ("this_nr_delayed", "<i8"),  # tasks on this runqueue whose dequeue is delayed
        ("answers", "<i8"),  # Doubt: questions to answer with yes
        ("asked", "<i8"),  # Doubt: questions asked so far
        ("calls", "<i8"),  # rows of trail in use
        ("idle", "<u8", (words,)),  # CPUs for which available_idle_cpu() holds
        ("idle_exit", "<u8", (words,)),
        ("sched_idle", "<u8", (words,)),
        ("sched_idle_exit", "<u8", (words,)),
        ("allowed", "<u8", (words,)),  # p.cpus_ptr
        ("flickered", "<u8", (words,)),  # CPUs seen to begin or cease to idle meanwhile, in a fork or exec
        ("select_rq_mask", "<u8", (words,)),  # scratch, as the kernel's per-CPU mask of that name
        ("trail", "<i4", (TRAIL * words, 3)),  # functions called, in order: Asked, CPU, second CPU or -1
        ("figures", "<i8"),  # a fork's or exec's figures, below, were captured
        ("preferred_nid", "<i8"),
        ("moved", "<i8"),  # one of those looked at changed meanwhile
        ("nr_steps", "<i8"),  # rows of steps in use
        ("steps", "<i4", (STEPS, 5)),  # of find_idlest_cpu: CPU, level, group or -1, Rule, CPU found
        ("capacity", "<i8", (64 * words, LEVELS)),  # of the CPU's own group at each level
    ]
    figures = """
        known changed load runnable util util_est nr_running curr ttwu_pending idle_stamp exit_latency
        own_load own_runnable own_util own_util_est own_queued imbalance group_changed
        """  # by CPU; as in schema.LOADS, but for known, changed (loads.Changed) and group_changed (bit: level)
    fields += [(name, "<i8", (64 * words,)) for name in figures.split()]
    return np.dtype((np.record, fields))


def scratch(topology: Topology) -> Wakeup:
    """A wakeup record to fill()."""
    return np.zeros(1, wakeup_dtype(topology.words)).view(np.recarray)[0]


def as_ints(policy: Policy) -> Policy:
    """The policy with plain ints for enums and bools, so that every policy runs the same compiled code."""
    return Policy(*(int(feature) for feature in policy))


@compiled
def either(w: Wakeup, doubt: Doubt) -> bool:
    """The answer to take for a question whose facts were not captured; notes that it was asked."""
    w.asked |= doubt.value
    return bool(w.answers & doubt.value)


@compiled
def asked(w: Wakeup, function: Asked, cpu: int, cpu2: int) -> None:
    """Add a call to the trail."""
    if w.calls < len(w.trail):
        call = w.trail[w.calls]
        call[0] = function
        call[1] = cpu
        call[2] = cpu2
        w.calls += 1


@compiled
def available_idle_cpu(w: Wakeup, cpu: int) -> bool:
    """Nothing runs or waits on the CPU."""
    if not w.has_masks:
        return either(w, Doubt.IDLE)
    asked(w, Asked.AVAILABLE_IDLE, cpu, -1)
    return cpumask_test_cpu(cpu, w.idle)


@compiled
def _known(value: int) -> int:
    """A 32-bit column's value, UNKNOWN where it could not be read."""
    return UNKNOWN if value == NEVER else int(value)


@compiled
def is_sync(policy: Policy, wake_flags: int, waker_flags: int) -> int:
    """WF_SYNC and not current exiting (since v4.17; before, exiting or not): 1, 0 or UNKNOWN."""
    exiting = 0
    if not policy.exiting_sync:
        exiting = UNKNOWN if waker_flags == UNKNOWN else waker_flags & PF_EXITING
    if exiting > 0:
        return 0
    if wake_flags == UNKNOWN:
        return UNKNOWN
    wf_sync = 0x10 if policy.wake_flags == WakeFlags.SD_FLAG_WITHIN else 0x1
    if not wake_flags & wf_sync:
        return 0
    return UNKNOWN if exiting == UNKNOWN else 1


@compiled
def _current_cpu(policy: Policy, wake_flags: int) -> int:
    """WF_CURRENT_CPU, where the kernel heeds it. Where wake_flags are unknown it is taken to be clear: only seccomp's
    user notifier sets it, for sync wakeups that were asked for by name (48a1084a8b74, v6.6)."""
    return 1 if policy.current_cpu and wake_flags != UNKNOWN and wake_flags & WF_CURRENT_CPU else 0


@compiled
def _kthread(waker_flags: int, waker_nr_allowed: int) -> int:
    """is_per_cpu_kthread(current): 1, 0 or UNKNOWN."""
    if waker_flags == UNKNOWN:
        return UNKNOWN
    return 1 if waker_flags & PF_KTHREAD and waker_nr_allowed == 1 else 0


@compiled
def _in_task(context: int) -> int:
    if context == Context.UNKNOWN:
        return UNKNOWN
    return 1 if context == Context.TASK else 0


@compiled
def _delayed(queued: int, runnable: int) -> int:
    """cfs_h_nr_delayed(): tasks on the runqueue whose dequeue is delayed."""
    return UNKNOWN if queued == UNKNOWN or runnable == UNKNOWN else queued - runnable


@compiled
def record_jiffies(row: Row) -> int:
    """jiffies as record_wakee read them: where it halved the flips its stamp says, else as they were at entry."""
    stamp = np.int64(row["waker_decay_ts_exit"])
    halved = row["waker_flips_exit"] != NEVER and row["waker_decay_ts_exit"] != row["waker_decay_ts"]
    if halved and np.int64(row["jiffies"]) < stamp <= np.int64(row["jiffies_exit"]):
        return int(stamp)
    return int(np.int64(row["jiffies"]))


@compiled
def fill(w: Wakeup, row: Row, policy: Policy, machine: Machine) -> None:
    """Make w the wakeup of one row of schema.WAKEUPS. 64-bit unknowns, all ones, become -1 by being read as signed."""
    wake_flags = _known(row["wake_flags"])
    waker_flags = _known(row["waker_flags"])
    w.cpu = row["cpu"]
    w.prev_cpu = row["prev_cpu"]
    w.chosen_cpu = row["chosen_cpu"]
    w.wakee_cpu = row["wakee_cpu"]
    w.sd_flag = SD_BALANCE_WAKE
    if row["outcome"] == Outcome.FORK:
        w.sd_flag = SD_BALANCE_FORK
    elif row["outcome"] == Outcome.EXEC:
        w.sd_flag = SD_BALANCE_EXEC
    w.wakee_nr_allowed = row["wakee_nr_allowed"]
    w.preferred_nid = row["wakee_preferred_nid"]
    w.figures = 0
    w.moved = 0
    w.sync = is_sync(policy, wake_flags, waker_flags)
    w.current_cpu = _current_cpu(policy, wake_flags)
    w.jiffies = np.int64(row["jiffies"])
    w.recorded = record_jiffies(row)
    w.wakee_tag = row["wakee_tag"]
    w.waker_last_wakee = row["waker_last_wakee"]
    w.waker_flips = _known(row["waker_flips"])
    w.wakee_flips = _known(row["wakee_flips"])
    w.waker_decay_ts = np.int64(row["waker_decay_ts"])
    w.wakee_decay_ts = np.int64(row["wakee_decay_ts"])
    llc_size = _known(row["llc_size"])
    w.factor = llc_size if llc_size != UNKNOWN else np.int64(machine.cpus[w.cpu].llc_size)
    if policy.llc_factor == LlcFactor.GROUPS:
        w.factor = np.int64(machine.cpus[w.cpu].llc_groups)
    w.recent_used_cpu = row["recent_used_cpu"]
    w.kthread = _kthread(waker_flags, row["waker_nr_allowed"])
    w.in_task = _in_task(row["context"])
    w.wakee_sched_idle = row["wakee_policy"] == SCHED_IDLE
    w.this_load = np.int64(row["this_load"])
    w.prev_load = np.int64(row["prev_load"])
    w.waker_h_load = np.int64(row["waker_h_load"])
    w.wakee_h_load = np.int64(row["wakee_h_load"]) if row["load_depth"] >= 0 else UNKNOWN
    w.this_capacity = _known(row["this_capacity"])
    w.prev_capacity = _known(row["prev_capacity"])
    w.this_nr_running = _known(row["this_nr_running"])
    w.this_nr_delayed = _delayed(_known(row["this_h_nr_queued"]), _known(row["this_h_nr_runnable"]))
    w.this_nr_idle_scan = row["this_nr_idle_scan"]
    w.prev_nr_idle_scan = row["prev_nr_idle_scan"]
    w.this_has_idle_cores = row["this_has_idle_cores"]
    w.prev_has_idle_cores = row["prev_has_idle_cores"]
    w.this_avg_idle = np.int64(row["this_avg_idle"])
    w.this_avg_scan_cost = np.int64(row["this_avg_scan_cost"])
    w.has_masks = row["has_masks"]
    w.jiffies_exit = np.int64(row["jiffies_exit"])
    w.this_load_exit = np.int64(row["this_load_exit"])
    w.prev_load_exit = np.int64(row["prev_load_exit"])
    w.this_nr_running_exit = _known(row["this_nr_running_exit"])
    w.this_nr_idle_scan_exit = row["this_nr_idle_scan_exit"]
    w.prev_nr_idle_scan_exit = row["prev_nr_idle_scan_exit"]
    w.this_has_idle_cores_exit = row["this_has_idle_cores_exit"]
    w.prev_has_idle_cores_exit = row["prev_has_idle_cores_exit"]
    for word in range(len(w.idle)):
        w.idle[word] = row["idle"][word]
        w.idle_exit[word] = row["idle_exit"][word]
        w.sched_idle[word] = row["sched_idle"][word]
        w.sched_idle_exit[word] = row["sched_idle_exit"][word]
        w.allowed[word] = row["allowed"][word]


@compiled
def placed(row: Row) -> bool:
    """Whether the wakeup reached select_task_rq_fair as a wakeup."""
    return bool(row["outcome"] == Outcome.PLACED)


@compiled
def new(row: Row) -> bool:
    """Whether it is a fork or exec."""
    return bool(row["outcome"] == Outcome.FORK or row["outcome"] == Outcome.EXEC)
