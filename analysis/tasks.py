# SPDX-License-Identifier: GPL-2.0-only
"""Who is who: tasks by (pid, start), their names over time, and the choice of some of them by pid or name.

Everywhere else in analysis a task is its code, a row number of df_tasks. The idle tasks all have pid 0; each CPU's is
a task of its own, with flips of its own, so its CPU stands in for its start.
"""

from __future__ import annotations

import fnmatch
from typing import Any

import numba
import numpy as np
import pandas as pd

from ..errors import UsageError
from ..schema import TaskEvent
from ..trace import Trace
from .inputs import columns, once
from .match import Ints, Rows, last_before

UNKNOWN_NAME = "?"


@once
def _identities(trace: Trace) -> tuple[pd.DataFrame, dict[str, Rows]]:
    """Distinct (pid, start) and, for tasks rows, wakers and wakees, each row's code."""
    trace.require("tasks", "wakeups")
    events = columns(trace, "tasks", "pid", "start")
    wakeups = columns(trace, "wakeups", "cpu", "waker_pid", "waker_start", "wakee_pid", "wakee_start")
    waker_start = np.where(wakeups["waker_pid"] == 0, wakeups["cpu"], wakeups["waker_start"])
    pid = np.concatenate([events["pid"], wakeups["waker_pid"], wakeups["wakee_pid"]], dtype=np.int64)
    start = np.concatenate([events["start"], waker_start, wakeups["wakee_start"]], dtype=np.int64, casting="unsafe")
    codes, firsts = _number(pid, start, int(pid.max(initial=0)) + 1)
    parts = np.split(codes, [len(events), len(events) + len(wakeups)])
    return pd.DataFrame({"pid": pid[firsts], "start": start[firsts]}), dict(
        zip(("events", "waker", "wakee"), parts, strict=True)
    )


@once
def df_tasks(trace: Trace) -> pd.DataFrame:
    """Tasks seen in the trace, one row each, numbered by code. Needs tables tasks and wakeups.

    Columns: pid; start (ns; the CPU for an idle task); tgid and parent_pid (-1 unknown); comm: last name; names: how
    many names it had; exit_ts: when it exited (ns, 0 if it did not); recorder (bool): a thread of the recorder; label:
    name:pid, with #2, #3 … for the later holders of a pid used again, and the recorder's marked.
    """
    tasks, codes = _identities(trace)
    tasks = tasks.copy()
    events = columns(trace, "tasks", "tgid", "parent_pid", "event", "comm").assign(code=codes["events"])
    events["comm"] = events["comm"].astype(object)
    by_task = events.groupby("code")
    tasks["tgid"] = by_task["tgid"].last().reindex(tasks.index, fill_value=-1)
    tasks["parent_pid"] = by_task["parent_pid"].last().reindex(tasks.index, fill_value=-1)
    tasks["comm"] = by_task["comm"].last().reindex(tasks.index, fill_value=UNKNOWN_NAME).astype(object)
    tasks["names"] = by_task["comm"].nunique().reindex(tasks.index, fill_value=0)
    exits = events[events["event"] == TaskEvent.EXIT].groupby("code")["ts"].last()
    tasks["exit_ts"] = exits.reindex(tasks.index, fill_value=0)
    idle = tasks["pid"] == 0
    tasks.loc[idle, "comm"] = "swapper/" + tasks.loc[idle, "start"].astype(str).astype(object)
    again = tasks.sort_values("start").groupby("pid").cumcount().reindex(tasks.index)
    suffix = np.where((again > 0) & ~idle, "#" + (again + 1).astype(str).astype(object), "")
    tasks["label"] = tasks["comm"] + ":" + tasks["pid"].astype(str).astype(object) + suffix
    tasks.loc[idle, "label"] = tasks.loc[idle, "comm"]
    recorder = trace.meta.get("recorder_pid", -2)  # -1 is a tgid that is not known
    tasks["recorder"] = (tasks["tgid"] == recorder) | ((tasks["pid"] == recorder) & ~idle)
    tasks.loc[tasks["recorder"], "label"] += " (recorder)"
    return tasks


def waker_codes(trace: Trace) -> Rows:
    """Task code of each wakeups row's waker, int64."""
    return _identities(trace)[1]["waker"]


def wakee_codes(trace: Trace) -> Rows:
    """Task code of each wakeups row's wakee, int64."""
    return _identities(trace)[1]["wakee"]


def births(trace: Trace, pids: int) -> pd.DataFrame:
    """Tasks with pids from 1 to below pids in the order of their start: start (ns) and pid, indexed by code.

    A task's start is the CLOCK_MONOTONIC time of its fork, so a pid's holder is the latest born.
    """
    tasks = df_tasks(trace)
    return tasks.loc[tasks["pid"].between(1, pids - 1), ["start", "pid"]].sort_values("start", kind="stable")


def codes_at(trace: Trace, pid: Ints, ts: Ints) -> Rows:
    """Task code of whoever held each pid at each moment (ns, ascending); -1 if unknown or pid 0."""
    born = births(trace, 1 + int(pid.max(initial=0)))
    found = last_before(born["pid"].to_numpy(), born["start"].to_numpy(), np.where(pid > 0, pid, -1), ts)
    return np.append(born.index.to_numpy(), -1)[found]


def comms_at(trace: Trace, code: Ints, ts: Ints) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Name each task had at each moment (ns, ascending); its first known name before any record of it."""
    codes = _identities(trace)[1]["events"]
    events = columns(trace, "tasks", "comm")
    found = last_before(codes, events["ts"].to_numpy(), code, ts)
    first = pd.Series(np.arange(len(codes))).groupby(codes).first().reindex(range(len(df_tasks(trace))), fill_value=-1)
    found = np.where(found < 0, first.to_numpy()[code] if len(first) else -1, found)
    names = np.append(events["comm"].to_numpy(object), UNKNOWN_NAME)
    return np.where(found < 0, df_tasks(trace)["comm"].to_numpy(object)[code], names[found])


def named(name: str, pattern: str) -> bool:
    """Whether a task's name is the pattern to the letter, or fits it as a shell pattern."""
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def selected(trace: Trace, task: str | None) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which tasks (by code) a user means: a pid, or a name it had or its label, which may hold * and ?.

    None means all. Raises UsageError if no task matches.
    """
    tasks = df_tasks(trace)
    if task is None:
        return np.ones(len(tasks), bool)
    chosen = (tasks["pid"].astype(str) == task).to_numpy(copy=True)
    if not chosen.any():
        codes = _identities(trace)[1]["events"]
        names = columns(trace, "tasks", "comm")["comm"].to_numpy(object)
        hit = [named(name, task) for name in names]
        chosen = np.isin(np.arange(len(tasks)), codes[np.array(hit, bool)])
        for column in ("comm", "label"):
            chosen |= [named(name, task) for name in tasks[column]]
    if not chosen.any():
        raise UsageError(
            f"no task in {trace.path} has the pid, name or label {task!r}: 'wakescope report' without --task lists"
        )
    return chosen


def of_selected(trace: Trace, rows: pd.DataFrame, code: Ints, task: str | None) -> pd.DataFrame:
    """The rows whose task, by code, is selected; all are not copied."""
    if task is None:
        return rows
    kept: pd.DataFrame = rows[selected(trace, task)[code]]
    return kept


@numba.njit(cache=True)
def _number(pid, start, size):  # type: ignore[no-untyped-def]
    """Code of each (pid, start) in order of appearance, and the row each code first appears in.

    The codes of one pid form a chain: newest[pid], then older[code].
    """
    newest = np.full(size, -1, np.int64)
    older = np.empty(len(pid), np.int64)
    starts = np.empty(len(pid), np.int64)
    firsts = np.empty(len(pid), np.int64)
    codes = np.empty(len(pid), np.int64)
    count = 0
    for i in range(len(pid)):
        code = newest[pid[i]]
        while code >= 0 and starts[code] != start[i]:
            code = older[code]
        if code < 0:
            code = count
            count += 1
            starts[code], firsts[code], older[code] = start[i], i, newest[pid[i]]
            newest[pid[i]] = code
        codes[i] = code
    return codes, firsts[:count].copy()
