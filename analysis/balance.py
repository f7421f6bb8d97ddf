# SPDX-License-Identifier: GPL-2.0-only
"""Migrations outside wakeups: who moved tasks, and which wakeup's choice they undid (docs/definitions.md)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import pandas as pd

from ..schema import NumaEvent, Outcome
from ..trace import Trace
from .distance import NAMES, distance
from .inputs import columns, losses, once, overlaps_loss
from .match import last_before
from .tasks import codes_at, comms_at, df_tasks, selected
from .wakeups import df_wakeups

NUMA_DELAY = 10_000_000  # ns from sched_move_numa to the stopper's migration: a millisecond's work, doubled thrice
WITHIN_MS = 10.0


class Mover(IntEnum):
    """Who migrated a task."""

    WAKEUP = 0
    NUMA = 1
    BALANCE = 2  # in another task's, or the idle task's, time
    STOPPER = 3  # active balance, or an affinity change
    SELF = 4  # exec, or its own affinity call


class Undone(IntEnum):
    """Where a migration took a task off the CPU its last decision chose."""

    BACK = 0
    BACK_LLC = 1
    BACK_NODE = 2
    AWAY = 3
    UNCLEAN = 4  # a later decision of the task may be lost


@once
def df_moved(trace: Trace) -> pd.DataFrame:
    """Every migration outside wakeups, one row each. Needs tables migrations, wakeups and tasks; numa if there is one.

    Columns: ts (ns); pid; task: code (-1 unknown); orig_cpu, dest_cpu; mover: Mover; row: row of wakeups of the task's
    last wakeup (-1 if none); in_wakeup: the migration is that wakeup's own, to another CPU than was chosen.
    """
    trace.require("migrations", "wakeups", "tasks")
    moved = columns(trace, "migrations", "pid", "by_pid", "orig_cpu", "dest_cpu", "in_wakeup")
    ts, pid, by_pid = (moved[c].to_numpy() for c in ("ts", "pid", "by_pid"))
    code = codes_at(trace, pid, ts)
    mover = np.full(len(moved), Mover.BALANCE, np.uint8)
    mover[_is_stopper(trace, by_pid, ts)] = Mover.STOPPER
    mover[by_pid == pid] = Mover.SELF
    mover[_follows_numa(trace, pid, ts)] = Mover.NUMA
    mover[moved["in_wakeup"] > 0] = Mover.WAKEUP
    wakeups = df_wakeups(trace)
    row = last_before(wakeups["wakee"].to_numpy(), wakeups["ts"].to_numpy(), code, ts)
    return pd.DataFrame(
        {
            "ts": ts,
            "pid": pid,
            "task": code,
            "orig_cpu": moved["orig_cpu"],
            "dest_cpu": moved["dest_cpu"],
            "mover": mover,
            "row": row,
            "in_wakeup": moved["in_wakeup"] > 0,
        }
    )


@once
def df_all_moved(trace: Trace) -> pd.DataFrame:
    """Every migration, as many as sched_migrate_task fired, those of wakeups first.

    Needs tables migrations, wakeups and tasks. Columns: ts (ns); task: code (-1 unknown); mover: Mover; orig_cpu,
    dest_cpu.
    """
    moved, rows = df_moved(trace), df_wakeups(trace)
    home = columns(trace, "wakeups", "wakee_cpu")["wakee_cpu"]
    # a fork migrates nobody, and an exec's migration is in moved
    woken = ~rows["outcome"].isin([int(Outcome.FORK), int(Outcome.EXEC)]) & (rows["chosen_cpu"] >= 0)
    own = (woken & (rows["chosen_cpu"] != home)).to_numpy(copy=True)
    fallback = moved["row"].to_numpy()[(moved["in_wakeup"] & (moved["row"] >= 0)).to_numpy()]
    own[fallback] = False  # select_task_rq() fell back to another CPU: the migration is recorded apart
    mine = rows.loc[own, ["ts", "wakee", "chosen_cpu"]].rename(columns={"wakee": "task", "chosen_cpu": "dest_cpu"})
    mine = mine.assign(mover=np.uint8(Mover.WAKEUP), orig_cpu=home[own])
    names = ["ts", "task", "mover", "orig_cpu", "dest_cpu"]
    return pd.concat([mine[names], moved[names]], ignore_index=True)


def df_migrations(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Migrations of selected tasks by mover and distance: as many as sched_migrate_task fired.

    Needs tables migrations, wakeups and tasks. Columns: mover (name, lower case); migrations; then one per distance
    between the CPUs left and reached.
    """
    moved, chosen = df_all_moved(trace), np.append(selected(trace, task), task is None)
    moved = moved[chosen[moved["task"]]]
    far = distance(trace.topology, moved["orig_cpu"].to_numpy(), moved["dest_cpu"].to_numpy())
    key = moved["mover"].to_numpy(np.int64) * len(NAMES) + far
    counts = np.bincount(key, minlength=len(Mover) * len(NAMES)).reshape(len(Mover), len(NAMES))
    table = pd.DataFrame({"mover": [m.name.lower() for m in Mover], "migrations": counts.sum(axis=1)})
    table[NAMES] = counts
    return table.loc[table["migrations"] > 0].reset_index(drop=True)


def df_crossings(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Migrations of selected tasks to another node, in time order. Needs tables migrations, wakeups and tasks.

    Columns: task (label); code; at_ms (since the trace began); mover (name, lower case); from_nid, to_nid.
    """
    moved, node = df_all_moved(trace), np.append(trace.topology.by_cpu("node"), -1)
    left, reached = node[moved["orig_cpu"]], node[moved["dest_cpu"]]
    kept = np.append(selected(trace, task), False)[moved["task"]] & (left != reached) & (left >= 0) & (reached >= 0)
    moved, code = moved[kept], moved["task"].to_numpy()[kept]
    table = pd.DataFrame(
        {
            "task": df_tasks(trace)["label"].to_numpy(object)[code],
            "code": code,
            "at_ms": (moved["ts"].to_numpy(np.int64) - trace.span[0]) / 1e6,
            "mover": np.array([m.name.lower() for m in Mover], object)[moved["mover"]],
            "from_nid": left[kept],
            "to_nid": reached[kept],
        }
    )
    return table.sort_values("at_ms", kind="stable", ignore_index=True)


def df_undone(trace: Trace, within_ms: float = WITHIN_MS) -> pd.DataFrame:
    """Migrations that took a task off the CPU its last decision chose, within so many ms of it.

    Needs tables migrations, wakeups and tasks. Columns: ts (ns); task: code; row: row of wakeups; after (us since the
    wakeup); mover: Mover; undone: Undone; orig_cpu, dest_cpu.
    """
    moved, wakeups = df_moved(trace), df_wakeups(trace)
    # a wakeup that met the task on a runqueue, or delayed there, chose nothing: the decision before it stands
    decided = np.where(wakeups["decision"], wakeups["wakee"], -1)
    row = last_before(decided, wakeups["ts"].to_numpy(), moved["task"].to_numpy(), moved["ts"].to_numpy())
    prev, chosen = (np.append(wakeups[c].to_numpy(), -1)[row].astype(np.int64) for c in ("prev_cpu", "chosen_cpu"))
    after = moved["ts"].to_numpy(np.int64) - np.append(wakeups["ts"].to_numpy(np.int64), 0)[row]
    orig, dest = moved["orig_cpu"].to_numpy(), moved["dest_cpu"].to_numpy()
    kept = (row >= 0) & (chosen >= 0) & (chosen == orig)
    kept &= (after <= within_ms * 1e6) & (moved["mover"] != Mover.WAKEUP).to_numpy()
    undone = np.full(len(moved), Undone.AWAY, np.uint8)
    for kind, attribute in ((Undone.BACK_NODE, "node"), (Undone.BACK_LLC, "llc")):
        group = np.append(trace.topology.by_cpu(attribute), -1)
        undone[(group[dest] == group[prev]) & (group[prev] != group[chosen])] = kind
    undone[(dest == prev) & (prev != chosen)] = Undone.BACK
    since = np.append(wakeups["ts"].to_numpy(), 0)[row]
    undone[overlaps_loss(losses(trace)["wakeup"], since, moved["ts"].to_numpy())] = Undone.UNCLEAN
    table = pd.DataFrame({"ts": moved["ts"], "task": moved["task"], "row": row, "after": after / 1e3})
    table = table.assign(mover=moved["mover"], undone=undone, orig_cpu=orig, dest_cpu=dest)
    found: pd.DataFrame = table.loc[kept]
    return found.reset_index(drop=True)


def df_undone_counts(trace: Trace, within_ms: float = WITHIN_MS, task: str | None = None) -> pd.DataFrame:
    """df_undone of selected tasks counted by kind and mover. Needs tables migrations, wakeups and tasks.

    Columns: undone, mover (names, lower case); migrations; share: of the selected tasks' decisions; after_p50 (us).
    """
    chosen = selected(trace, task)
    undone = df_undone(trace, within_ms)
    undone = undone[chosen[undone["task"]]]
    wakeups = df_wakeups(trace)
    decisions = int((wakeups["decision"] & chosen[wakeups["wakee"]]).sum())
    grouped = undone.groupby(["undone", "mover"])["after"]
    table = pd.DataFrame({"migrations": grouped.size(), "after_p50": grouped.median()}).reset_index()
    table.insert(3, "share", table["migrations"] / max(1, decisions))
    table["undone"] = np.array([u.name.lower() for u in Undone], object)[table["undone"]]
    table["mover"] = np.array([m.name.lower() for m in Mover], object)[table["mover"]]
    return table


def _is_stopper(trace: Trace, by_pid: Any, ts: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether whoever moved the task was a migration thread, by name."""
    code = codes_at(trace, by_pid, ts)
    stopper = np.zeros(len(code), bool)
    known = code >= 0
    stopper[known] = [str(name).startswith("migration/") for name in comms_at(trace, code[known], ts[known])]
    return stopper


def _follows_numa(trace: Trace, pid: Any, ts: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether NUMA balancing had just announced a move or swap of the task."""
    if not trace.has("numa"):
        return np.zeros(len(pid), bool)
    events = columns(trace, "numa", "pid", "dst_pid", "event")
    events = events[events["event"].isin([int(NumaEvent.MOVE), int(NumaEvent.SWAP)])]
    both = pd.concat([events[["ts", "pid"]], events[["ts", "dst_pid"]].rename(columns={"dst_pid": "pid"})])
    both = both[both["pid"] > 0].sort_values("ts", kind="stable")
    at = both["ts"].to_numpy(np.int64)
    found = last_before(both["pid"].to_numpy(), at, pid, ts)
    soon: np.ndarray[Any, np.dtype[np.bool_]] = ts.astype(np.int64) - np.append(at, 0)[found] <= NUMA_DELAY
    return soon & (found >= 0)
