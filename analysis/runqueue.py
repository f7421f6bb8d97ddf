# SPDX-License-Identifier: GPL-2.0-only
"""Where each task's time went: running, waiting, sleeping (docs/definitions.md, latency)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..trace import Trace
from .inputs import losses, overlaps_loss, switches
from .latency import Wait, df_waits
from .match import last_before
from .tasks import codes_at, df_tasks, selected
from .wakeups import df_wakeups

Times = np.ndarray[Any, np.dtype[np.int64]]


def df_runqueue(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Time of each selected task by what it did, longest waiting first. Needs tables switches, wakeups and tasks.

    Columns: task (label); running_ms, wake_wait_ms (after a wakeup), preempt_wait_ms (switched out runnable),
    sleep_ms; runs, wake_waits, preemptions, sleeps: intervals in each sum; cut: intervals in none, because a loss
    window overlaps them or the trace begins or ends in them.
    """
    trace.require("switches", "wakeups", "tasks")
    rows = switches(trace)
    ts, prev, following = rows["ts"].to_numpy(np.int64), rows["prev_pid"].to_numpy(), rows["next_pid"].to_numpy()
    began = last_before(following, ts, np.where(prev > 0, prev, -1), ts)  # when who is switched out was switched in
    left = last_before(prev, ts, np.where(following > 0, following, -1), ts)  # when who is switched in was switched out
    out, into = codes_at(trace, prev, ts), codes_at(trace, following, ts)
    runnable = np.append(rows["prev_on_rq"].to_numpy() > 0, False)[left]
    count = len(df_tasks(trace))
    running, runs, cut_runs = _sums(trace, out, ts, began, np.ones(len(ts), bool), count)
    preempted, preemptions, cut_preempted = _sums(trace, into, ts, left, runnable, count)
    waits = df_waits(trace)
    waits = waits[waits["state"] == Wait.RUN]
    waiter = df_wakeups(trace)["wakee"].to_numpy()[waits["row"]]
    woken = ts.copy()
    woken[waits["run"]] -= waits["wait"]
    woken = np.maximum(woken, np.append(ts, 0)[left])  # a wakeup may come while the sleeper is still switching out
    sleeping, sleeps, cut_sleeps = _sums(trace, into, woken, left, ~runnable, count, ts)
    table = pd.DataFrame(
        {
            "task": df_tasks(trace)["label"],
            "running_ms": running,
            "wake_wait_ms": np.bincount(waiter, waits["wait"], minlength=count) / 1e6,
            "preempt_wait_ms": preempted,
            "sleep_ms": sleeping,
            "runs": runs,
            "wake_waits": np.bincount(waiter, minlength=count),
            "preemptions": preemptions,
            "sleeps": sleeps,
            "cut": cut_runs + cut_preempted + cut_sleeps,
        }
    )[selected(trace, task)]
    table = table[table[["runs", "wake_waits", "preemptions", "sleeps"]].sum(axis=1) > 0]
    waiting = (table["wake_wait_ms"] + table["preempt_wait_ms"]).sort_values(ascending=False, kind="stable")
    return table.loc[waiting.index].reset_index(drop=True)


def _sums(
    trace: Trace,
    code: Times,
    end: Times,
    begin_row: Times,
    which: np.ndarray[Any, Any],
    count: int,
    ts: Times | None = None,
) -> tuple[np.ndarray[Any, Any], ...]:
    """Per task: ms in the intervals from switch begin_row to end, how many, and how many were cut.

    ts: times of the switches, if not end itself.
    """
    mine = which & (code >= 0)
    begin = np.append(end if ts is None else ts, 0)[begin_row]
    whole = mine & (begin_row >= 0) & ~overlaps_loss(losses(trace)["switch"], begin, end)
    length = np.bincount(code[whole], (end - begin)[whole], minlength=count) / 1e6
    return length, np.bincount(code[whole], minlength=count), np.bincount(code[mine & ~whole], minlength=count)
