# SPDX-License-Identifier: GPL-2.0-only
"""Where each task's time went: running, waiting, sleeping (docs/definitions.md, latency)."""

from __future__ import annotations

import numba
import numpy as np
import pandas as pd

from ..trace import Trace
from .inputs import losses, switches
from .latency import Wait, df_waits
from .tasks import births, df_tasks, selected

RUNNING, WAKE_WAIT, PREEMPT_WAIT, SLEEP, CUT = range(5)


def df_runqueue(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Time of each selected task by what it did, longest waiting first. Needs tables switches, wakeups and tasks.

    Columns: task (label); running_ms, wake_wait_ms (after a wakeup), preempt_wait_ms (switched out runnable),
    sleep_ms; runs, wake_waits, preemptions, sleeps: intervals in each sum; cut: intervals in none, because a switch may
    be missing in them or the trace begins in them.
    """
    trace.require("switches", "wakeups", "tasks")
    rows, waits = switches(trace), df_waits(trace)
    waits = waits[waits["state"] == Wait.RUN]
    wait = np.full(len(rows), -1, np.int64)
    wait[waits["run"]] = waits["wait"]
    pids = 1 + int(max(rows[column].max() if len(rows) else 0 for column in ("prev_pid", "next_pid")))
    born = births(trace, pids)
    time, count = _sums(
        rows["ts"].to_numpy(np.int64),
        rows["prev_pid"].to_numpy(),
        rows["next_pid"].to_numpy(),
        rows["prev_on_rq"].to_numpy(),
        wait,
        born["start"].to_numpy(),
        born["pid"].to_numpy(),
        born.index.to_numpy(),
        losses(trace)["switch"],
        pids,
        len(df_tasks(trace)),
    )
    table = pd.DataFrame({"task": df_tasks(trace)["label"]})
    for kind, name in enumerate(("running_ms", "wake_wait_ms", "preempt_wait_ms", "sleep_ms")):
        table[name] = time[kind] / 1e6
    for kind, name in enumerate(("runs", "wake_waits", "preemptions", "sleeps", "cut")):
        table[name] = count[kind]
    seen = table[["runs", "wake_waits", "preemptions", "sleeps"]].sum(axis=1) > 0
    table = table[selected(trace, task) & seen.to_numpy()]
    waiting = (table["wake_wait_ms"] + table["preempt_wait_ms"]).sort_values(ascending=False, kind="stable")
    return table.loc[waiting.index].reset_index(drop=True)


@numba.njit(cache=True)
def _sums(ts, prev, following, on_rq, wait, born_ts, born_pid, born_code, windows, pids, tasks):  # type: ignore[no-untyped-def]
    """ns by kind and task, and intervals by kind and task. wait: of who is switched in, -1 if it was not woken."""
    time = np.zeros((4, tasks), np.int64)
    count = np.zeros((5, tasks), np.int64)
    code = np.full(pids, -1, np.int64)
    since = np.full(pids, -1, np.int64)  # when each pid was last switched in or out, -1 unknown
    inside = np.zeros(pids, np.bool_)  # which of the two
    runnable = np.zeros(pids, np.bool_)  # whether it was switched out runnable
    born = 0
    window = -1  # last window that began before now; being disjoint, none before it ends later
    for i in range(len(ts)):
        now = ts[i]
        while born < len(born_ts) and born_ts[born] <= now:
            code[born_pid[born]] = born_code[born]
            since[born_pid[born]] = -1
            born += 1
        while window + 1 < len(windows) and windows[window + 1, 0] < now:
            window += 1
        blind = max(windows[window, 1] if window >= 0 else 0, 0)  # intervals that began before this are cut
        pid = prev[i]
        task = code[pid]
        if pid > 0 and task >= 0:
            kind = RUNNING if inside[pid] and since[pid] >= blind else CUT
            count[kind, task] += 1
            if kind == RUNNING:
                time[kind, task] += now - since[pid]
        since[pid], inside[pid], runnable[pid] = now, False, on_rq[i] > 0
        pid = following[i]
        task = code[pid]
        if pid > 0 and task >= 0:
            kind = CUT
            if not inside[pid] and since[pid] >= blind:
                kind = PREEMPT_WAIT if runnable[pid] else SLEEP
                slept = 0 if runnable[pid] or wait[i] < 0 else wait[i]
                # a wakeup may come while the sleeper is still switching out
                time[kind, task] += max(now - since[pid] - slept, 0)
            count[kind, task] += 1
            if wait[i] >= 0:
                count[WAKE_WAIT, task] += 1
                time[WAKE_WAIT, task] += wait[i]
        since[pid], inside[pid] = now, True
    return time, count
