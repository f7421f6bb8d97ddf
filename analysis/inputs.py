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
from .match import next_same

CPU_COLUMNS = {"cpu", "prev_cpu", "chosen_cpu", "wakee_cpu", "orig_cpu", "dest_cpu", "src_cpu", "dst_cpu", "target_cpu"}

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

    Raises TraceError if the table is absent, out of order, or names a CPU the topology does not have.
    """
    trace.require(table)
    kept = _columns(trace)
    wanted = list(dict.fromkeys(("ts", *names)))
    missing = [name for name in wanted if (table, name) not in kept]
    read = trace.columns(table, missing) if missing else {}
    for name in CPU_COLUMNS.intersection(missing):
        highest = int(read[name].max(initial=0))
        if highest >= trace.topology.nr_cpus:
            raise TraceError(
                f"{trace.path}/{table}.parquet has CPU {highest}, topology.json has not: the trace is damaged"
            )
    if "ts" in missing and (read["ts"][1:] < read["ts"][:-1]).any():
        raise TraceError(f"{trace.path}/{table}.parquet is not in time order: the trace is damaged, record again")
    kept.update({(table, name): values for name, values in read.items()})
    return pd.DataFrame({name: kept[table, name] for name in wanted}, copy=False)


@once
def masks(trace: Trace) -> dict[str, np.ndarray[Any, np.dtype[np.uint64]]]:
    """The wakeups table's masks idle, sched_idle and allowed, each uint64 (rows, words)."""
    return trace.columns("wakeups", ["idle", "sched_idle", "allowed"])


@once
def switches(trace: Trace) -> pd.DataFrame:
    """ts, cpu, prev_pid, next_pid, prev_on_rq of the switches table."""
    return columns(trace, "switches", "cpu", "prev_pid", "next_pid", "prev_on_rq")


@once
def loss_windows(trace: Trace) -> dict[str, pd.DataFrame]:
    """Loss windows per ring that the trace has a table of: cpu, start, end (ns), missing (records).

    Where a ring's CPUs tried as many records as the tables hold, there is no gap to look for.
    """
    windows = {}
    for ring, names in RINGS.items():
        tables = [table for table in names.values() if trace.has(table)]
        tried = [r["tried"] for r in trace.meta.get("rings", []) if r["ring"] == ring]
        if tried and sum(tried) == sum(trace.rows(table) for table in tables):
            windows[ring] = pd.DataFrame(columns=["cpu", "start", "end", "missing"], dtype=np.int64)
        elif tables:
            windows[ring] = trace.loss(tables[0])
    return windows


@once
def losses(trace: Trace) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """Per ring the loss windows of all CPUs merged: int64 (n, 2) (ns), disjoint and sorted."""
    return {
        ring: _merged(windows[["start", "end"]].to_numpy(np.int64)) for ring, windows in loss_windows(trace).items()
    }


@once
def unseen_switches(trace: Trace) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where a CPU's switches do not join: int64 (n, 2), from one switch to the next (ns). Needs table switches.

    Who is switched in is the next to be switched out there; if another is, a switch was not seen. CPUs that went
    offline or came online meanwhile are left out: they begin afresh.
    """
    rows = switches(trace)
    following = next_same(rows["cpu"].to_numpy())
    broken = (following >= 0) & (rows["prev_pid"].to_numpy()[following] != rows["next_pid"].to_numpy())
    if trace.has("hotplugs"):
        broken &= ~np.isin(rows["cpu"], columns(trace, "hotplugs", "target_cpu")["target_cpu"])
    ts = rows["ts"].to_numpy(np.int64)
    return np.column_stack((ts[broken], ts[following[broken]]))


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


def any_loss(
    trace: Trace, rings: tuple[str, ...], start: np.ndarray[Any, Any], end: np.ndarray[Any, Any]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """overlaps_loss() of any of these rings."""
    found: np.ndarray[Any, np.dtype[np.bool_]] = np.logical_or.reduce(
        [overlaps_loss(losses(trace)[ring], start, end) for ring in rings]
    )
    return found


def _merged(windows: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    merged: list[list[int]] = []
    for start, end in sorted(windows.tolist()):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return np.array(merged, np.int64).reshape(-1, 2)
