# SPDX-License-Identifier: GPL-2.0-only
"""What every analysis needs of a trace: columns checked for order, loss windows, results kept per trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

from ..errors import TraceError
from ..trace import Trace

Result = TypeVar("Result")


def once(function: Callable[[Trace], Result]) -> Callable[[Trace], Result]:
    """Keep a function's result for as long as its trace lives: sections of a report share what they build on.

    The result is shared, so nobody may write to it.
    """
    kept: WeakKeyDictionary[Trace, Result] = WeakKeyDictionary()

    @functools.wraps(function)
    def wrapper(trace: Trace) -> Result:
        if trace not in kept:
            kept[trace] = function(trace)
        return kept[trace]

    return wrapper


def columns(trace: Trace, table: str, *names: str) -> pd.DataFrame:
    """These columns and ts of a table, in time order. Raises TraceError if the table is absent or out of order."""
    rows = trace.df(table, list(dict.fromkeys(("ts", *names))))
    ts = rows["ts"].to_numpy()
    if (ts[1:] < ts[:-1]).any():
        raise TraceError(f"{trace.path}/{table}.parquet is not in time order: the trace is damaged, record again")
    return rows


@once
def switches(trace: Trace) -> pd.DataFrame:
    """ts, cpu, prev_pid, next_pid, prev_on_rq, preempt of the switches table."""
    return columns(trace, "switches", "cpu", "prev_pid", "next_pid", "prev_on_rq", "preempt")


@once
def losses(trace: Trace) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """For wakeups and switches, where present: loss windows of all CPUs merged, int64 (n, 2), disjoint and sorted."""
    return {
        table: _merged(trace.loss(table)[["start", "end"]].to_numpy(np.int64))
        for table in ("wakeups", "switches")
        if trace.has(table)
    }


def overlaps_loss(
    windows: np.ndarray[Any, np.dtype[np.int64]], start: np.ndarray[Any, Any], end: np.ndarray[Any, Any]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether a record may be missing between start and end (ns, same shape), by the windows losses() gives.

    What is lost lies strictly inside a window: at its ends stand the records around the gap.
    """
    if not len(windows):
        return np.zeros(len(start), bool)
    following = np.searchsorted(windows[:, 1], start.astype(np.int64), side="right")  # first window to end later
    opens = np.append(windows[:, 0], np.iinfo(np.int64).max)
    return opens[following] < end.astype(np.int64)


def _merged(windows: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    merged: list[list[int]] = []
    for start, end in sorted(windows.tolist()):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return np.array(merged, np.int64).reshape(-1, 2)
