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
from ..trace import RINGS, Trace

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


@once
def _columns(trace: Trace) -> dict[tuple[str, str], np.ndarray[Any, Any]]:
    """Columns read so far, by table and name."""
    return {}


def columns(trace: Trace, table: str, *names: str) -> pd.DataFrame:
    """These columns and ts of a table, in time order; each is read from the file once.

    Raises TraceError if the table is absent or out of order.
    """
    trace.require(table)
    kept = _columns(trace)
    wanted = list(dict.fromkeys(("ts", *names)))
    missing = [name for name in wanted if (table, name) not in kept]
    if missing:
        rows = trace.df(table, missing)
        kept.update({(table, name): rows[name].to_numpy() for name in missing})
    ts = kept[table, "ts"]
    if "ts" in missing and (ts[1:] < ts[:-1]).any():
        raise TraceError(f"{trace.path}/{table}.parquet is not in time order: the trace is damaged, record again")
    return pd.DataFrame({name: kept[table, name] for name in wanted}, copy=False)


@once
def masks(trace: Trace) -> dict[str, np.ndarray[Any, np.dtype[np.uint64]]]:
    """The wakeups table's masks idle, sched_idle and allowed, each uint64 (rows, words)."""
    rows = trace.array("wakeups", ["idle", "sched_idle", "allowed"])
    return {name: np.ascontiguousarray(rows[name]) for name in ("idle", "sched_idle", "allowed")}


@once
def switches(trace: Trace) -> pd.DataFrame:
    """ts, cpu, prev_pid, next_pid, prev_on_rq of the switches table."""
    return columns(trace, "switches", "cpu", "prev_pid", "next_pid", "prev_on_rq")


@once
def loss_windows(trace: Trace) -> dict[str, pd.DataFrame]:
    """Loss windows per ring that the trace has a table of: cpu, start, end (ns), missing (records)."""
    firsts = {ring: [table for table in tables.values() if trace.has(table)] for ring, tables in RINGS.items()}
    return {ring: trace.loss(tables[0]) for ring, tables in firsts.items() if tables}


@once
def losses(trace: Trace) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """Per ring the loss windows of all CPUs merged: int64 (n, 2), disjoint and sorted."""
    return {
        ring: _merged(windows[["start", "end"]].to_numpy(np.int64)) for ring, windows in loss_windows(trace).items()
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
