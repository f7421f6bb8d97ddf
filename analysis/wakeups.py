# SPDX-License-Identifier: GPL-2.0-only
"""The wakeups of a trace with what every section asks of them: who, where to, how far."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..schema import Context, Outcome
from ..trace import Trace
from .distance import distance
from .inputs import columns, once
from .tasks import df_tasks, wakee_codes, waker_codes

DECISIONS = (Outcome.PLACED, Outcome.FORK, Outcome.EXEC)  # reach select_task_rq_fair


@once
def df_wakeups(trace: Trace) -> pd.DataFrame:
    """Every wakeup, one row per row of the table and in its order. Needs tables wakeups and tasks.

    Columns: ts (ns); cpu: the waker's; waker, wakee: task codes; prev_cpu, chosen_cpu (-1 unknown); outcome, context:
    schema codes; moved: Distance from prev_cpu to chosen_cpu; reach: Distance from the waker's CPU to chosen_cpu;
    decision: reached select_task_rq_fair (bool); by_task: the waker is the task that ran, not whom an interrupt met
    (bool; where the context is unknown, all but idle tasks pass for wakers).
    """
    rows = columns(trace, "wakeups", "cpu", "prev_cpu", "chosen_cpu", "outcome", "context", "waker_pid")
    cpu, prev, chosen = (rows[c].to_numpy() for c in ("cpu", "prev_cpu", "chosen_cpu"))
    return rows.assign(
        cpu=cpu.astype(np.int16),
        waker=waker_codes(trace).astype(np.int32),
        wakee=wakee_codes(trace).astype(np.int32),
        moved=distance(trace.topology, prev, chosen),
        reach=distance(trace.topology, cpu, chosen),
        decision=rows["outcome"].isin([int(o) for o in DECISIONS]),
        by_task=rows["context"].isin([int(Context.TASK), int(Context.UNKNOWN)]) & (rows["waker_pid"] > 0),
    ).drop(columns="waker_pid")


@once
def pair_codes(trace: Trace) -> tuple[np.ndarray[Any, np.dtype[np.int64]], pd.DataFrame]:
    """A number for each (waker, wakee): per row of wakeups, and a table with the task codes waker, wakee of each."""
    rows = df_wakeups(trace)
    waker, wakee = rows["waker"].to_numpy(np.int64), rows["wakee"].to_numpy(np.int64)
    tasks = len(df_tasks(trace))
    codes, keys = pd.factorize(waker * tasks + wakee)
    return codes, pd.DataFrame({"waker": keys // max(1, tasks), "wakee": keys % max(1, tasks)})
