# SPDX-License-Identifier: GPL-2.0-only
"""Automatic NUMA balancing: preferred nodes, retry timing, attempts and their results (docs/definitions.md, NUMA)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import pandas as pd

from ..schema import NEVER64, NumaEvent
from ..trace import Trace
from .flips import hz
from .inputs import columns, losses, once, overlaps_loss
from .tasks import codes_at, df_tasks, selected
from .wakeups import df_wakeups

UNSEEN = -2  # preferred_nid where a record does not carry it
HUGE = 512  # base pages of a huge page on x86-64; numa_pte_updates counts each (change_pmd_range(), mm/mprotect.c)


class Result(IntEnum):
    """What an attempt of numa_migrate_preferred() came to."""

    SETTLED = 0  # no event: on its preferred node already, or no destination better than where it is
    MOVE = 1
    SWAP = 2
    STICK = 3  # a destination was found, moving there failed
    NO_CPU = 4  # no destination was found
    UNKNOWN = 5  # no event, but one may be lost


@once
def df_numa_rows(trace: Trace) -> pd.DataFrame:
    """The numa table with task codes and nodes, one row each. Needs tables numa, wakeups and tasks.

    Columns: ts (ns); task: code (-1 unknown); event: schema.NumaEvent; failed (bool): a stick without destination;
    from_nid, to_nid (-1 unknown; of CPUs by topology, of a fault the page's node, of a search the node searched);
    jiffies; preferred; retry; period.
    """
    names = (
        "pid",
        "event",
        "src_cpu",
        "dst_cpu",
        "dst_nid",
        "preferred_nid",
        "scan_period",
        "migrate_retry",
        "jiffies",
    )
    rows = columns(trace, "numa", *names)
    node = np.append(trace.topology.by_cpu("node"), -1)
    names_node = rows["event"].isin([int(NumaEvent.FAULT), int(NumaEvent.FIND)])
    return pd.DataFrame(
        {
            "ts": rows["ts"],
            "task": codes_at(trace, rows["pid"].to_numpy(), rows["ts"].to_numpy()),
            "event": rows["event"],
            "failed": (rows["event"] == int(NumaEvent.STICK)) & (rows["dst_cpu"] < 0),
            "from_nid": node[rows["src_cpu"]],
            "to_nid": np.where(names_node, rows["dst_nid"], node[rows["dst_cpu"]]),
            "jiffies": rows["jiffies"].astype(np.int64),
            "preferred": rows["preferred_nid"].astype(np.int32),
            "retry": rows["migrate_retry"].astype(np.int64),
            "period": rows["scan_period"].astype(np.int64),
        }
    )


@once
def df_observations(trace: Trace) -> pd.DataFrame:
    """What records say of the NUMA state of tasks that have one, in time order. Needs tables numa, wakeups and tasks.

    Columns: ts (ns); task: code; jiffies; preferred (nid, -1 none, UNSEEN); retry (jiffies); period (ms); own (bool): a
    record of NUMA balancing itself. A task whose retry is never set is left out.
    """
    trace.require("numa", "wakeups", "tasks")
    retries = [f"{who}_migrate_retry" for who in ("waker", "wakee")]
    periods = [f"{who}_scan_period" for who in ("waker", "wakee")]
    rows = columns(trace, "wakeups", "jiffies", "wakee_preferred_nid", *retries, *periods)
    own = df_numa_rows(trace)
    own = own.loc[own["task"] >= 0, ["ts", "task", "jiffies", "preferred", "retry", "period"]].assign(own=True)
    parts = [own]
    for who, retry, period in zip(("waker", "wakee"), retries, periods, strict=True):
        code = df_wakeups(trace)[who].to_numpy()
        value = rows[retry].to_numpy()
        live = np.zeros(len(df_tasks(trace)), bool)
        live[code[(value != 0) & (value != NEVER64)]] = True
        live[own["task"]] = True
        kept = np.flatnonzero(live[code] & (value != NEVER64))
        part = rows.iloc[kept]
        parts.append(
            pd.DataFrame(
                {
                    "ts": part["ts"],
                    "task": code[kept],
                    "jiffies": part["jiffies"].astype(np.int64),
                    "preferred": part["wakee_preferred_nid"] if who == "wakee" else UNSEEN,
                    "retry": part[retry].astype(np.int64),
                    "period": part[period].astype(np.int64),
                    "own": False,
                }
            )
        )
    return pd.concat(parts).sort_values("ts", kind="stable", ignore_index=True)


def df_preferred(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Changes of each selected task's preferred node, in time order. Needs tables numa, wakeups and tasks.

    Columns: task (label); since_ms, until_ms: times of the last record before the change and of the first that shows
    it, from the trace's begin; from_nid, to_nid (-1 none).
    """
    seen = df_observations(trace)
    seen = seen[(seen["preferred"] != UNSEEN) & selected(trace, task)[seen["task"]]]
    before = seen.groupby("task")[["preferred", "ts"]].shift()
    changed = (before["preferred"].notna() & (before["preferred"] != seen["preferred"])).to_numpy()
    seen, before, begin = seen[changed], before[changed], trace.span[0]
    return pd.DataFrame(
        {
            "task": df_tasks(trace)["label"].to_numpy(object)[seen["task"]],
            "since_ms": (before["ts"] - begin) / 1e6,
            "until_ms": (seen["ts"].astype(np.int64) - begin) / 1e6,
            "from_nid": before["preferred"].astype(np.int64),
            "to_nid": seen["preferred"].astype(np.int64),
        }
    ).reset_index(drop=True)


def jiffies_of(ms: Any, hz: int) -> Any:
    """msecs_to_jiffies(): rounds up. Integers or arrays of them."""
    return -(-np.asarray(ms, np.int64) * hz // 1000)


def interval(period_ms: Any, hz: int) -> Any:
    """min(HZ, msecs_to_jiffies(period) / 16): how long numa_migrate_preferred() puts off the next attempt, in jiffies.

    The same in every release from 4.2 to 6.18.
    """
    return np.minimum(hz, jiffies_of(period_ms, hz) // 16)


@once
def df_attempts(trace: Trace) -> pd.DataFrame:
    """Runs of numa_migrate_preferred(), one per new retry deadline. Needs tables numa, wakeups and tasks.

    Columns: ts (ns): of the first record that shows the deadline; task: code; attempt (jiffies): retry less interval;
    deadline (jiffies; NaN if there was none): the one before; lateness (jiffies): attempt less deadline; retry; period
    (ms); interval (jiffies): by the rule; own (bool): the record is of NUMA balancing itself, so period is the one the
    rule used; seen_late (jiffies): the record's jiffies less attempt, negative if the rule does not hold; result:
    Result.
    """
    seen = df_observations(trace)
    before = seen.groupby("task")["retry"].shift()
    rule = interval(seen["period"].to_numpy(), hz(trace))
    fresh = before.isna() & seen["own"] & (seen["retry"] - rule <= seen["jiffies"]) & (seen["retry"] > seen["jiffies"])
    new = ((before.notna() & (before != seen["retry"])) | fresh).to_numpy()
    rows, before, rule = seen[new], before[new].where(before[new] > 0), rule[new]
    attempt = rows["retry"].to_numpy() - rule
    return pd.DataFrame(
        {
            "ts": rows["ts"],
            "task": rows["task"],
            "attempt": attempt,
            "deadline": before,
            "lateness": attempt - before,
            "retry": rows["retry"],
            "period": rows["period"],
            "interval": rule,
            "own": rows["own"],
            "seen_late": rows["jiffies"] - attempt,
            "result": _results(trace, rows, (rows["jiffies"] - attempt + 1) * 1e9 / hz(trace)),
        }
    ).reset_index(drop=True)


def df_retries(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Attempts by selected task, most first. Needs tables numa, wakeups and tasks.

    Columns: task (label); attempts; settled, move, swap, stick, no_cpu, unknown: results; late_p50_ms, late_max_ms:
    lateness (NaN without a deadline before); interval_p50_ms: the rule's; checked: attempts dated by NUMA balancing's
    own records; off_rule: of these, with a deadline the rule cannot have set.
    """
    rows = df_attempts(trace)
    rows = rows[selected(trace, task)[rows["task"]]]
    ms = 1000 / hz(trace)
    marks = pd.DataFrame({r.name.lower(): rows["result"] == int(r) for r in Result})
    marks = marks.assign(checked=rows["own"], off_rule=rows["own"] & (rows["seen_late"] < 0))
    sums = marks.groupby(rows["task"]).sum()
    grouped = rows.groupby("task")
    table = pd.DataFrame({"attempts": grouped.size()}).join(sums[[r.name.lower() for r in Result]])
    table["late_p50_ms"], table["late_max_ms"] = grouped["lateness"].median() * ms, grouped["lateness"].max() * ms
    table["interval_p50_ms"] = grouped["interval"].median() * ms
    table = table.join(sums[["checked", "off_rule"]])
    table.insert(0, "task", df_tasks(trace)["label"].to_numpy(object)[table.index])
    return table.sort_values("attempts", ascending=False, kind="stable", ignore_index=True)


def df_numa_events(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Moves, swaps, sticks and hint faults of selected tasks by node. Needs tables numa, wakeups and tasks.

    Columns: event: move, swap, stick (a destination was found), no_cpu (none was) or fault; from_nid, to_nid (-1
    unknown); events.
    """
    rows = df_numa_rows(trace)
    rows = rows[np.append(selected(trace, task), task is None)[rows["task"]] & (rows["event"] != int(NumaEvent.FIND))]
    names = np.array([e.name.lower() for e in NumaEvent], object)[rows["event"]]
    names[rows["failed"]] = "no_cpu"
    return rows.assign(event=names).groupby(["event", "from_nid", "to_nid"]).size().rename("events").reset_index()


def df_searches(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Runs of task_numa_find_cpu() for selected tasks by the node searched. Needs tables numa, wakeups and tasks.

    Columns: task (label); to_nid; searches; on_preferred: of the preferred node; cpu, swap: in which a CPU to move to,
    and a task to swap with, was found there; task_imp_p50, group_imp_p50: how much larger a share of the faults is
    there than where the task runs (1/1000). Empty where the function was not hooked.
    """
    raw = columns(trace, "numa", "dst_pid", "dst_cpu", "task_imp", "group_imp")
    seen = df_numa_rows(trace)
    node = np.append(trace.topology.by_cpu("node"), -1)
    kept = ((seen["event"] == int(NumaEvent.FIND)) & np.append(selected(trace, task), False)[seen["task"]]).to_numpy()
    raw, seen = raw[kept], seen[kept]
    found = (raw["dst_cpu"] >= 0) & (node[raw["dst_cpu"]] == seen["to_nid"])  # else of a node searched before
    marks = raw.assign(
        on_preferred=seen["to_nid"] == seen["preferred"],
        cpu=found & (raw["dst_pid"] == 0),
        swap=found & (raw["dst_pid"] > 0),
    )
    grouped = marks.groupby([seen["task"], seen["to_nid"]])
    table = pd.DataFrame({"searches": grouped.size()}).join(grouped[["on_preferred", "cpu", "swap"]].sum())
    table = table.join(grouped[["task_imp", "group_imp"]].median().add_suffix("_p50")).reset_index()
    table["task"] = df_tasks(trace)["label"].to_numpy(object)[table["task"]]
    return table.sort_values("searches", ascending=False, kind="stable", ignore_index=True)


def df_vmstat(trace: Trace) -> pd.DataFrame:
    """NUMA balancing's counters of the whole machine before and after. Needs no table, but meta's vmstat.

    Columns: counter, as the kernel lists' tables name it; before, after, difference.
    """
    ends = [trace.meta.get("vmstat", {}).get(end, {}) for end in ("before", "after")]
    if not all("numa_pte_updates" in end for end in ends):
        return pd.DataFrame(columns=["counter", "before", "after", "difference"])
    values = []
    for end in ends:
        huge = end.get("numa_huge_pte_updates", 0)
        values.append(
            {
                "NUMA base PTE updates": end["numa_pte_updates"] - HUGE * huge,
                "NUMA huge PMD updates": huge,
                "NUMA page range updates": end["numa_pte_updates"],
                "NUMA hint faults": end.get("numa_hint_faults", 0),
                "NUMA hint local faults": end.get("numa_hint_faults_local", 0),
                "NUMA pages migrated": end.get("numa_pages_migrated", 0),
            }
        )
    before, after = values
    rows = [(counter, before[counter], after[counter], after[counter] - before[counter]) for counter in before]
    return pd.DataFrame(rows, columns=["counter", "before", "after", "difference"])


def _results(trace: Trace, attempts: pd.DataFrame, ago: pd.Series[float]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Result of each attempt, made at most so long (ns) before the record that shows it: the last event of its task
    that carries the deadline the attempt set.

    task_numa_migrate() runs after the deadline is stored, so its tracepoints show the new one; a failed move emits
    sched_move_numa first and sched_stick_numa then.
    """
    events = df_numa_rows(trace)
    events = events[~events["event"].isin([int(NumaEvent.FAULT), int(NumaEvent.FIND)])].drop_duplicates(
        ["task", "retry"], keep="last"
    )
    codes = {NumaEvent.MOVE: Result.MOVE, NumaEvent.SWAP: Result.SWAP, NumaEvent.STICK: Result.STICK}
    result = (
        events["event"].map({int(k): int(v) for k, v in codes.items()}).where(~events["failed"], int(Result.NO_CPU))
    )
    keyed = pd.Series(result.to_numpy(), index=pd.MultiIndex.from_frame(events[["task", "retry"]]), dtype="float64")
    found = keyed.reindex(pd.MultiIndex.from_frame(attempts[["task", "retry"]]))
    shown = attempts["ts"].to_numpy(np.int64)
    missed = overlaps_loss(losses(trace)["event"], shown - np.maximum(ago.to_numpy(), 0).astype(np.int64), shown)
    no_event = np.where(missed, int(Result.UNKNOWN), int(Result.SETTLED))
    return np.where(found.isna(), no_event, found).astype(np.uint8)
