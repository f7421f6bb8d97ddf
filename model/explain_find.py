# SPDX-License-Identifier: GPL-2.0-only
"""Which wakeup a user means, and who wakes whom in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..analysis.tasks import comms_at, df_tasks, named, wakee_codes, waker_codes
from ..errors import TraceError, UsageError
from ..schema import Context, Outcome
from ..trace import Trace

RECORDER = " (recorder)"  # what df_tasks puts after the labels of the recorder's threads


def find_wakeup(trace: Trace, task: str | None, at: float | None) -> int:
    """Number of the first placed wakeup of a task from a moment on, seconds in the trace.

    task: a pid, or a pattern of the names that tasks have when they are woken, or of labels.
    Raises UsageError if neither is given or cannot be meant, TraceError if there is no such wakeup.
    """
    if task is None and at is None:
        raise UsageError("say which wakeup: --wakeup N, or --task NAME, or --at SECONDS, or the last two together")
    if task is not None and not task.strip():
        raise UsageError("--task is empty: give a pid, or a pattern of names or labels")
    start, stop = trace.span
    seconds = (stop - start) / 1e9
    if at is not None and not 0 <= at <= seconds:
        raise UsageError(f"--at {at:g} is outside {trace.path}, which goes from 0 to {seconds:.3f} s")
    rows = trace.array("wakeups", ["ts", "wakee_pid", "outcome"])
    fits = (rows["outcome"] == Outcome.PLACED) & (rows["ts"] >= start + round((at or 0) * 1e9))
    found = np.flatnonzero(fits)
    if task is not None:
        found = found[_of_task(trace, rows, found, task)]
    if not len(found):
        raise TraceError(f"{trace.path} has no placed wakeup of {task or 'any task'} from {at or 0:g} s on")
    return int(found[0])


def _of_task(trace: Trace, rows: Any, found: Any, task: str) -> Any:
    """Which of the wakeups found are of a task."""
    if task.isascii() and task.isdigit():
        of_pid = rows["wakee_pid"] == int(task)
        if of_pid.any():
            return of_pid[found]
    code = wakee_codes(trace)[found]
    names = pd.Series(comms_at(trace, code, rows["ts"][found]), dtype=object)
    fits = names.isin([name for name in names.unique() if named(name, task)]).to_numpy()
    if ":" not in task:  # a label has the task's last name: a pattern of names alone is not to match it
        return fits
    labels = df_tasks(trace)["label"].to_numpy(object)
    return fits | np.array([named(label, task) or named(label.removesuffix(RECORDER), task) for label in labels])[code]


def parties(trace: Trace, number: int) -> tuple[str, str]:
    """Labels of a wakeup's waker and wakee, each with the name it had then, if that was another."""
    row = trace.array("wakeups", ["ts", "waker_pid", "wakee_pid"])[number]
    if not trace.has("tasks"):
        return f"pid {row['waker_pid']}", f"pid {row['wakee_pid']}"
    code = np.array([waker_codes(trace)[number], wakee_codes(trace)[number]])
    tasks = df_tasks(trace).iloc[code]
    then = comms_at(trace, code, np.repeat(row["ts"], 2))
    known = zip(tasks["label"], tasks["comm"], tasks["pid"], then, strict=True)
    waker, wakee = (label if name == comm or not pid else f"{label} (then {name})" for label, comm, pid, name in known)
    return waker, wakee


def who(trace: Trace, number: int) -> str:
    """Who wakes, forks or is whom, in words."""
    waker, wakee = parties(trace, number)
    row = trace.array("wakeups", ["outcome", "context"])[number]
    if row["outcome"] == Outcome.EXEC:
        return f"wakeup {number}: {wakee} execs"
    if row["outcome"] == Outcome.FORK:
        return f"wakeup {number}: {waker} forks {wakee}"
    interrupt = row["context"] not in (Context.TASK, Context.UNKNOWN)
    context = f", in {Context(row['context']).name.lower()}" if interrupt else ""
    return f"wakeup {number}: {waker} wakes {wakee}{context}"
