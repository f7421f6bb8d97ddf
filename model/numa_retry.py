# SPDX-License-Identifier: GPL-2.0-only
"""When NUMA balancing places tasks: numa_migrate_retry replayed over time under a policy.

What drives it is taken from the trace: every NUMA hint fault (task_numa_fault, a task's chance of being placed), every
fork, and the wakeups for which the policy's wake_affine picks a CPU. What a fault leads to is decided anew from the
deadline each task has under the policy. Like the replay of wakeups it is open-loop: tasks stay where the trace has
them, and their scan periods are the kernel's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.inputs import columns
from ..analysis.numa import UNSEEN, df_numa_rows, df_observations, interval, jiffies_of
from ..analysis.tasks import codes_at, df_tasks, wakee_codes, waker_codes
from ..schema import NumaEvent, TaskEvent
from ..trace import Trace
from .affine import Affine
from .compiled import compiled
from .policy import Backoff, Compare, Policy
from .replay import Certainty
from .topo import Array
from .wakeup import Doubt

SCAN_DELAY = 1000  # ms: numa_balancing's scan_delay_ms, the default of every release
NO_NODE = -1

FAULT, WAKE, FORK, SEEN = 0, 1, 2, 3
EVENT = np.dtype(
    [
        ("ts", "<i8"),
        ("kind", "i1"),
        ("task", "<i4"),  # who faults, is woken, is born or is seen first
        ("other", "<i4"),  # waker or parent, -1 unknown
        ("jiffies", "<i8"),
        ("delay", "<i8"),  # jiffies: FAULT: until the next attempt; WAKE: by which the task is put off
        ("other_delay", "<i8"),
        ("retry", "<i8"),  # jiffies: the kernel's deadline, after a fault
        ("preferred", "<i4"),  # preferred node after the fault
        ("node", "<i4"),  # the task's
        ("fresh", "?"),  # the preferred node is another than before
        ("made", "?"),  # the kernel made an attempt
    ]
)
COUNTS = ("faults", "due", "attempts", "away", "gave_up", "put_off", "held")
FAULTS, DUE, ATTEMPTS, AWAY, GAVE_UP, PUT_OFF, HELD = range(len(COUNTS))
PICKS = (Affine.THIS_IDLE, Affine.BOTH_IDLE, Affine.SYNC, Affine.PREV_IDLE, Affine.SYNC_LOAD, Affine.WEIGHT_THIS)
OPEN = Doubt.SYNC | Doubt.WIDE | Doubt.ALONE | Doubt.WEIGHT  # doubts that leave wake_affine's choice open


@dataclass(frozen=True)
class Retries:
    """NUMA placement under a policy.

    tasks: by task with a fault, columns task (label) and COUNTS, most faults first. faults: hint faults; due: at which
    its deadline had passed; attempts: at which a new deadline was set, and of these away: the task was not on its
    preferred node, so that task_numa_migrate runs; gave_up: numa_migrate_preferred returned because of its comparison;
    put_off: times wake_affine set a later deadline; held: faults that came before such a deadline. last_attempt: ns
    from the trace's begin, None if there was none. as_kernel: faults at which the kernel, too, made an attempt or, too,
    made none. open: wakeups whose wake_affine could not be decided, and so did not
    put anything off.
    """

    tasks: pd.DataFrame
    last_attempt: int | None
    as_kernel: int
    open: int

    def to_json(self) -> dict[str, Any]:
        """COUNTS in sum, last_attempt_ms, as_kernel, open, tasks [{task, COUNTS}]."""
        sums = {name: int(self.tasks[name].sum()) for name in COUNTS}
        last = None if self.last_attempt is None else self.last_attempt / 1e6
        facts = {"last_attempt_ms": last, "as_kernel": self.as_kernel, "open": self.open}
        return {**sums, **facts, "tasks": self.tasks.to_dict("records")}


class NumaHistory:
    """What the trace says of NUMA placement, to be replayed under any policy. Needs tables numa, wakeups and tasks."""

    def __init__(self, trace: Trace, hz: int) -> None:
        self.trace, self.hz = trace, hz
        self.faults = self._faults()
        self.others = np.concatenate([self._first_seen(), self._forks()])

    def __bool__(self) -> bool:
        return len(self.faults) > 0

    def replay(self, policy: Policy, results: Array) -> Retries:
        """Retries under a policy; results: its RESULT rows, one per row of wakeups."""
        wakes, unsure = self._wakes(policy, results)
        events = np.concatenate([self.others, wakes, self.faults])
        events = events[np.argsort(events["ts"], kind="stable")]
        tasks = df_tasks(self.trace)
        counts = np.zeros((len(tasks), len(COUNTS)), np.int64)
        attempted = np.zeros(len(events), np.bool_)
        features = (int(policy.numa_compare), int(policy.numa_placed), int(policy.numa_fork_reset))
        replay_retry(events, features, np.full(len(tasks), -1, np.int64), counts, attempted)
        table = pd.DataFrame(counts, columns=list(COUNTS))
        table.insert(0, "task", tasks["label"].to_numpy(object))
        table = table[table["faults"] > 0].sort_values("faults", ascending=False, kind="stable", ignore_index=True)
        made = events["ts"][attempted]
        last = int(made[-1]) - self.trace.span[0] if len(made) else None
        same = (events["kind"] == FAULT) & (attempted == events["made"])
        return Retries(table, last, int(same.sum()), unsure)

    def _events(self, kind: int, ts: Any, task: Any) -> Array:
        events = np.zeros(len(ts), EVENT)
        events["kind"], events["ts"], events["task"], events["other"] = kind, ts, task, -1
        return events

    def _faults(self) -> Array:
        rows = df_numa_rows(self.trace)
        moves = rows[rows["event"].isin([int(NumaEvent.MOVE), int(NumaEvent.SWAP)])]
        moves = moves.drop_duplicates(["task", "retry"])[["task", "retry", "from_nid"]]
        rows = rows[(rows["event"] == int(NumaEvent.FAULT)) & (rows["task"] >= 0)].reset_index(drop=True)
        events = self._events(FAULT, rows["ts"], rows["task"])
        events["delay"] = interval(rows["period"].to_numpy(), self.hz)
        events["retry"] = rows["retry"]
        before = self._before(rows)
        attempt = rows["retry"].to_numpy() - events["delay"]
        since = rows.groupby("task")["jiffies"].shift(fill_value=0).to_numpy()
        within = (since <= attempt) & (attempt <= rows["jiffies"].to_numpy())
        events["made"] = within & (rows["retry"].to_numpy() != before["retry"])
        events["jiffies"] = np.where(events["made"], attempt, rows["jiffies"])  # its deadline says when it was made
        events["preferred"] = rows["preferred"]
        events["fresh"] = rows["preferred"].to_numpy() != before["preferred"]
        left = rows.merge(moves, "left", ["task", "retry"], suffixes=("", "_left"))["from_nid_left"]
        events["node"] = left.fillna(rows["from_nid"])
        return events

    def _before(self, faults: pd.DataFrame) -> pd.DataFrame:
        """retry and preferred as they were before each fault: as the task's last one left them, or as first seen.

        Records in between are of no use: a fault that migrates its task wakes others and sleeps itself.
        """
        first = self._first_records().set_index("task")[["retry", "preferred"]]
        before = faults.groupby("task")[["retry", "preferred"]].shift()
        return before.where(before.notna(), first.reindex(faults["task"]).reset_index(drop=True))

    def _first_records(self) -> pd.DataFrame:
        seen = df_observations(self.trace)
        return seen[~seen["own"] & (seen["preferred"] != UNSEEN)].drop_duplicates("task")

    def _first_seen(self) -> Array:
        first = self._first_records()
        events = self._events(SEEN, first["ts"], first["task"])
        events["retry"] = first["retry"]
        return events

    def _forks(self) -> Array:
        rows = columns(self.trace, "tasks", "event", "parent_pid", "pid")
        rows = rows[rows["event"] == int(TaskEvent.NEW)]
        ts = rows["ts"].to_numpy(np.int64)
        events = self._events(FORK, ts, codes_at(self.trace, rows["pid"].to_numpy(), ts))
        events["other"] = codes_at(self.trace, rows["parent_pid"].to_numpy(), ts)
        return events[(events["task"] >= 0) & (events["other"] >= 0)]

    def _wakes(self, policy: Policy, results: Array) -> tuple[Array, int]:
        """Wakeups for which wake_affine picks a CPU that counts as far from prev, and how many may or may not."""
        if policy.numa_backoff == Backoff.NEVER:
            return self._events(WAKE, [], []), 0
        names = ("prev_cpu", "jiffies", "wakee_preferred_nid", "wakee_scan_period", "waker_scan_period")
        rows = columns(self.trace, "wakeups", *names)
        placed = (results["certainty"] != Certainty.NOT_PLACED) & (rows["wakee_preferred_nid"].to_numpy() != NO_NODE)
        unsure = placed & (results["doubt"] & OPEN.value != 0)
        of = self.trace.topology.by_cpu("llc" if policy.numa_backoff == Backoff.CACHE else "node")
        far = of[results["target"]] != of[rows["prev_cpu"].to_numpy()]
        chosen = np.flatnonzero(placed & ~unsure & far & np.isin(results["affine"], [int(rule) for rule in PICKS]))
        events = self._events(WAKE, rows["ts"].to_numpy()[chosen], wakee_codes(self.trace)[chosen])
        events["other"] = waker_codes(self.trace)[chosen]
        events["jiffies"] = rows["jiffies"].to_numpy()[chosen]
        for delay, period in (("delay", "wakee_scan_period"), ("other_delay", "waker_scan_period")):
            ms = np.maximum(SCAN_DELAY, 4 * rows[period].to_numpy(np.int64)[chosen])
            events[delay] = jiffies_of(ms, self.hz)
        return events, int(unsure.sum())


@compiled
def replay_retry(events: Array, features: tuple[int, int, int], retry: Array, counts: Array, attempted: Array) -> None:
    """Carry every task's numa_migrate_retry through the events (EVENT, in time order).

    features: Compare, numa_placed and numa_fork_reset of the policy. retry: int64 per task, -1 where not known yet;
    counts: COUNTS per task, added to; attempted: set for faults that set a new deadline.
    """
    compare, placed, fork_reset = features
    put_off = np.full(len(retry), -1, np.int64)  # the deadline wake_affine set, where it set one
    for i in range(len(events)):
        event = events[i]
        task, other = event["task"], event["other"]
        if event["kind"] == SEEN:
            if retry[task] < 0:
                retry[task] = event["retry"]
        elif event["kind"] == FORK:
            retry[task] = 0 if fork_reset else retry[other]
        elif event["kind"] == WAKE:
            retry[task] = put_off[task] = event["jiffies"] + event["delay"]
            retry[other] = put_off[other] = event["jiffies"] + event["other_delay"]
            counts[task, PUT_OFF] += 1
            counts[other, PUT_OFF] += 1
        else:
            attempted[i] = _fault(event, compare, placed, retry, put_off, counts[task])


@compiled
def _fault(event: Any, compare: int, placed: int, retry: Array, put_off: Array, counts: Array) -> bool:
    """task_numa_fault: whether numa_migrate_preferred set a new deadline.

    It is called once the deadline has passed, and until v4.18 (numa_placed) also by task_numa_placement when that finds
    a preferred node other than the task's; the trace shows that only where the preferred node changed.
    """
    task = event["task"]
    counts[FAULTS] += 1
    if retry[task] < 0:
        retry[task] = event["retry"]
        return False
    away = event["node"] != event["preferred"]
    made = False
    if placed and event["fresh"] and away:
        made = migrate_preferred(event, compare, retry, counts)
    if event["jiffies"] > retry[task]:  # time_after()
        counts[DUE] += 1
        made = migrate_preferred(event, compare, retry, counts) or made
    elif not made and retry[task] == put_off[task]:
        counts[HELD] += 1
    if made:
        counts[AWAY] += away
    return made


@compiled
def migrate_preferred(event: Any, compare: int, retry: Array, counts: Array) -> bool:
    """numa_migrate_preferred: whether it got as far as setting a new deadline (jiffies as the kernel compares them)."""
    task = event["task"]
    if event["preferred"] == NO_NODE:
        return False
    new = event["jiffies"] + event["delay"]
    if (compare == Compare.INVERTED and new > retry[task]) or (compare == Compare.RIGHT and retry[task] > new):
        counts[GAVE_UP] += 1
        return False
    retry[task] = new
    counts[ATTEMPTS] += 1
    return True
