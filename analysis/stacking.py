# SPDX-License-Identifier: GPL-2.0-only
"""Wakeups sent to a busy CPU though an idle one was allowed, and what that cost (docs/definitions.md, stacking)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numba
import numpy as np
import pandas as pd

from ..schema import NEVER, Outcome
from ..trace import Trace
from .inputs import columns, losses, masks, once, overlaps_loss, switches
from .latency import Wait, df_waits
from .match import first_after
from .occupancy import idle_words, llc_words
from .tasks import df_tasks, of_selected, selected
from .wakeups import df_wakeups, pair_codes


class Stacking(IntEnum):
    """What a decision found on the CPU it chose."""

    IDLE = 0
    NO_OTHER = 1  # busy, and no allowed CPU was known to be idle
    LLC = 2  # stacked: an allowed CPU of its LLC was idle
    MACHINE = 3  # stacked: only outside its LLC was one
    UNKNOWN = 4


IDLE, NO_OTHER, LLC, MACHINE, UNKNOWN = (int(s) for s in Stacking)  # as compiled code takes them


@once
def df_stacked(trace: Trace) -> pd.DataFrame:
    """Stacking of each decision but an exec's, whose task runs already. Needs tables wakeups, switches and tasks.

    Columns: row: row of wakeups; stacking: Stacking; on_waker (bool): the waker's own CPU, in task context; sync (bool:
    WF_SYNC known to be set); ran_on (ns; -1 unless on_waker and seen): time until the waker switched out; slept (bool):
    it left the runqueue then; wait (ns, -1 unless complete and clean).
    """
    wakeups = df_wakeups(trace)
    row = np.flatnonzero(wakeups["decision"] & (wakeups["outcome"] != int(Outcome.EXEC)))
    chosen, cpu = wakeups["chosen_cpu"].to_numpy()[row], wakeups["cpu"].to_numpy()[row]
    flags = columns(trace, "wakeups", "wake_flags", "sd_flag", "waker_pid").iloc[row]
    waits = df_waits(trace)
    wait = np.full(len(wakeups), -1, np.int64)
    run = waits[waits["state"] == Wait.RUN]
    wait[run["row"]] = run["wait"]
    on_waker = (chosen == cpu) & wakeups["by_task"].to_numpy()[row]
    out = first_after(
        switches(trace)["cpu"].to_numpy(), switches(trace)["ts"].to_numpy(), cpu, wakeups["ts"].to_numpy()[row]
    )
    seen = on_waker & (out >= 0) & (np.append(switches(trace)["prev_pid"], -1)[out] == flags["waker_pid"])
    woke, left = wakeups["ts"].to_numpy(np.int64)[row], np.append(switches(trace)["ts"].to_numpy(np.int64), 0)[out]
    seen &= ~overlaps_loss(losses(trace)["switch"], woke, left)
    return pd.DataFrame(
        {
            "row": row,
            "stacking": _stacking(trace, row, chosen),
            "on_waker": on_waker,
            "sync": is_sync(flags["wake_flags"].to_numpy(), flags["sd_flag"].to_numpy()),
            "ran_on": np.where(seen, left - woke, -1),
            "slept": seen & (np.append(switches(trace)["prev_on_rq"], 1)[out] == 0),
            "wait": wait[row],
        }
    )


def df_stacking(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Decisions for selected wakees by what they found. Needs tables wakeups, switches and tasks.

    Columns: stacking (name, lower case); decisions; share; on_waker; wait_p50, wait_p99 (us, of complete waits).
    """
    rows = df_stacked(trace)
    rows = of_selected(trace, rows, df_wakeups(trace)["wakee"].to_numpy()[rows["row"]], task)
    waits = (rows["wait"] / 1e3).where(rows["wait"] >= 0)
    grouped = rows.assign(us=waits).groupby("stacking")
    table = pd.DataFrame(
        {
            "decisions": grouped.size(),
            "share": grouped.size() / max(1, len(rows)),
            "on_waker": grouped["on_waker"].sum(),
            "wait_p50": grouped["us"].quantile(0.5, interpolation="lower"),
            "wait_p99": grouped["us"].quantile(0.99, interpolation="lower"),
        }
    ).reset_index()
    table["stacking"] = np.array([s.name.lower() for s in Stacking], object)[table["stacking"]]
    return table


def df_stacking_pairs(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Stacked decisions by pair with a selected task, dearest first. Needs tables wakeups, switches and tasks.

    Columns: waker, wakee (labels); decisions; stacked; stacked_share; wait_p50: of stacked, and other_p50: of those
    known to be neither stacked nor awake (us, complete waits; NaN if there are none); cost_ms: sum over stacked
    decisions of wait less other_p50 (NaN if that is); on_waker; ran_on_p50 (us); awake: of on_waker, the waker switched
    out without sleeping; sync_awake: of these, WF_SYNC was set; awake_p50 and awake_cost_ms: of awake, as wait_p50 and
    cost_ms.
    """
    rows = df_stacked(trace)
    codes, pairs = pair_codes(trace)
    pair = codes[rows["row"]]
    stacked = rows["stacking"].isin([LLC, MACHINE])
    known = (rows["wait"] / 1e3).where(rows["wait"] >= 0)
    awake = rows["on_waker"] & (rows["ran_on"] >= 0) & ~rows["slept"]
    marks = pd.DataFrame(
        {
            "stacked": stacked,
            "stacked_us": known.where(stacked),
            "other_us": known.where(rows["stacking"].isin([IDLE, NO_OTHER]) & ~awake),
            "awake_us": known.where(awake),
            "on_waker": rows["on_waker"],
            "ran_on_us": (rows["ran_on"] / 1e3).where(rows["ran_on"] >= 0),
            "awake": awake,
            "sync_awake": awake & rows["sync"],
        }
    )
    grouped = marks.groupby(pair)
    sums = grouped[["stacked", "on_waker", "awake", "sync_awake"]].sum()
    p50 = grouped[["stacked_us", "other_us", "awake_us", "ran_on_us"]].median()
    waits = grouped[["stacked_us", "awake_us"]]
    cost = (waits.sum() - waits.count().mul(p50["other_us"], axis=0)) / 1e3
    table = pd.DataFrame({"decisions": grouped.size(), "stacked": sums["stacked"]})
    table["stacked_share"] = table["stacked"] / table["decisions"]
    table["wait_p50"], table["other_p50"] = p50["stacked_us"], p50["other_us"]
    table["cost_ms"] = cost["stacked_us"]
    table["on_waker"], table["ran_on_p50"] = sums["on_waker"], p50["ran_on_us"]
    table["awake"], table["sync_awake"] = sums["awake"], sums["sync_awake"]
    table["awake_p50"], table["awake_cost_ms"] = p50["awake_us"], cost["awake_us"]
    waker, wakee = pairs["waker"].to_numpy()[table.index], pairs["wakee"].to_numpy()[table.index]
    labels, chosen = df_tasks(trace)["label"].to_numpy(object), selected(trace, task)
    table.insert(0, "waker", labels[waker])
    table.insert(1, "wakee", labels[wakee])
    kept = (chosen[waker] | chosen[wakee]) & (table["stacked"] + table["on_waker"] > 0)
    found: pd.DataFrame = table.loc[kept]
    return found.sort_values(["cost_ms", "stacked"], ascending=False, kind="stable", ignore_index=True)


def is_sync(wake_flags: np.ndarray[Any, Any], sd_flag: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether WF_SYNC is known to be set: 1 while sd_flag was an argument of its own, 0x10 since, when the wake flags
    took in the SD_BALANCE bits (v5.15 kernel/sched/sched.h).
    """
    bit = np.where(sd_flag != 0, 1, 0x10)
    sync: np.ndarray[Any, np.dtype[np.bool_]] = (wake_flags != NEVER) & (wake_flags & bit != 0)
    return sync


def _stacking(trace: Trace, row: np.ndarray[Any, Any], chosen: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    idle, known = idle_words(trace)
    has = columns(trace, "wakeups", "has_masks")["has_masks"].to_numpy()
    sched_idle, allowed = masks(trace)["sched_idle"], masks(trace)["allowed"]
    found = np.empty(len(row), np.uint8)
    _find(row, chosen, idle, known, sched_idle, has, allowed, llc_words(trace.topology), found)
    return found


@numba.njit(cache=True)
def _find(row, chosen, idle, known, sched_idle, has, allowed, llc, found):  # type: ignore[no-untyped-def]
    """Stacking of each row into found."""
    for i in range(len(row)):
        r, cpu = row[i], chosen[i]
        word, bit = cpu // 64, np.uint64(1) << np.uint64(cpu % 64)
        if cpu < 0 or not known[r, word] & bit:
            found[i] = UNKNOWN
            continue
        if idle[r, word] & bit or (has[r] > 0 and sched_idle[r, word] & bit):
            found[i] = IDLE
            continue
        found[i] = NO_OTHER
        for w in range(idle.shape[1]):
            free = idle[r, w] & allowed[r, w]
            if free & llc[cpu, w]:
                found[i] = LLC
                break
            if free:
                found[i] = MACHINE
