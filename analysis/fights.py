# SPDX-License-Identifier: GPL-2.0-only
"""Wakeups that pull a task to another node against balancing that takes it back (docs/definitions.md, NUMA)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..schema import NumaEvent
from ..trace import Trace
from .affine import Affine, df_affine
from .balance import Mover, df_moved
from .distance import Distance
from .flips import hz
from .inputs import any_loss, columns
from .match import last_before
from .numa import df_attempts, df_numa_rows, jiffies_of
from .tasks import df_tasks, selected
from .wakeups import df_wakeups

WITHIN_MS = 1000.0
SCAN_DELAY_MS = 1000  # sysctl_numa_balancing_scan_delay's default


def df_fights(trace: Trace, within_ms: float = WITHIN_MS, task: str | None = None) -> pd.DataFrame:
    """Cross-node pulls of selected tasks that balancing undid within so many ms, one row per cycle, in time order.

    Needs tables wakeups, migrations and tasks; numa to count faults. Columns: task, waker (labels); pulled_ms, back_ms
    (from the trace's begin); held_ms: between them; home_nid, pulled_nid; mover: of the way back (name, lower case);
    faults: hint faults of the task meanwhile (NaN if the trace records none); unclean (bool): a record between the two
    may be lost.
    """
    wakeups, moved = df_wakeups(trace), df_moved(trace)
    node = np.append(trace.topology.by_cpu("node"), -1)
    crossed = np.flatnonzero(wakeups["decision"] & (wakeups["moved"] == int(Distance.CROSS)))
    away = wakeups.iloc[crossed]
    last = last_before(
        away["wakee"].to_numpy(), away["ts"].to_numpy(), moved["task"].to_numpy(), moved["ts"].to_numpy()
    )
    chosen = np.append(selected(trace, task), False)
    back = np.flatnonzero((last >= 0) & chosen[moved["task"]] & (moved["mover"] != int(Mover.WAKEUP)))
    away, back_rows = away.iloc[last[back]], moved.iloc[back]
    home, pulled = node[away["prev_cpu"]], node[away["chosen_cpu"]]
    held = back_rows["ts"].to_numpy(np.int64) - away["ts"].to_numpy(np.int64)
    fight = (home == node[back_rows["dest_cpu"]]) & (pulled == node[back_rows["orig_cpu"]]) & (held <= within_ms * 1e6)
    fight &= pulled == node[away["cpu"]]
    labels, begin = df_tasks(trace)["label"].to_numpy(object), trace.span[0]
    table = pd.DataFrame(
        {
            "task": labels[away["wakee"]],
            "waker": labels[away["waker"]],
            "pulled_ms": (away["ts"].to_numpy(np.int64) - begin) / 1e6,
            "back_ms": (back_rows["ts"].to_numpy(np.int64) - begin) / 1e6,
            "held_ms": held / 1e6,
            "home_nid": home,
            "pulled_nid": pulled,
            "mover": np.array([m.name.lower() for m in Mover], object)[back_rows["mover"]],
            "faults": _faults_between(trace, away["wakee"].to_numpy(), away["ts"], back_rows["ts"]),
            "unclean": any_loss(trace, ("wakeup", "event"), away["ts"].to_numpy(), back_rows["ts"].to_numpy()),
        }
    )
    found: pd.DataFrame = table.loc[fight]
    return found.reset_index(drop=True)


def df_fight_sums(trace: Trace, within_ms: float = WITHIN_MS, task: str | None = None) -> pd.DataFrame:
    """df_fights of selected tasks summed by task and mover, most cycles first.

    Needs tables wakeups, migrations and tasks. Columns: task (label); mover; cycles; unclean: of these, perhaps not one
    cycle; held_ms: time spent on the other node; faults: hint faults there (NaN if the trace records none).
    """
    grouped = df_fights(trace, within_ms, task).groupby(["task", "mover"])
    sums = grouped[["unclean", "held_ms"]].sum()
    table = pd.DataFrame({"cycles": grouped.size(), "unclean": sums["unclean"], "held_ms": sums["held_ms"]})
    table["faults"] = grouped["faults"].sum(min_count=1)
    return table.reset_index().sort_values("cycles", ascending=False, kind="stable", ignore_index=True)


def _back_offs(trace: Trace, replay: pd.DataFrame | None) -> pd.DataFrame:
    """Back-offs the patch would have set: task, jiffies, until (jiffies), in the order of jiffies.

    One for each side of a wakeup that wake_affine() moved to another node, if the wakee has a preferred node; known
    grants only.
    """
    affine = df_affine(trace, replay)
    row = affine["row"][
        (affine["verdict"] == int(Affine.GRANTED)) & (affine["start"] == int(Distance.CROSS))
    ].to_numpy()
    names = ("jiffies", "wakee_preferred_nid", "waker_scan_period", "wakee_scan_period")
    rows = columns(trace, "wakeups", *names).iloc[row]
    rows = rows[rows["wakee_preferred_nid"] >= 0]
    parts = []
    for who in ("waker", "wakee"):
        wait = jiffies_of(np.maximum(SCAN_DELAY_MS, 4 * rows[f"{who}_scan_period"].astype(np.int64)), hz(trace))
        jiffies = rows["jiffies"].to_numpy(np.int64)
        code = df_wakeups(trace)[who].to_numpy(np.int64)[rows.index]
        parts.append(pd.DataFrame({"task": code, "jiffies": jiffies, "until": jiffies + wait}))
    return pd.concat(parts).sort_values("jiffies", kind="stable", ignore_index=True)


def df_delay_retry(trace: Trace, replay: pd.DataFrame | None = None, task: str | None = None) -> pd.DataFrame:
    """What a back-off after cross-node pulls would have suppressed, by selected task.

    replay: as in df_affine. Needs tables numa, wakeups and tasks. Columns: task (label); attempts; back_offs: set by
    pulls of or by the task; meant: attempts within a back-off, which the patch means to suppress; merged: attempts that
    7347fc87dfe6 as merged suppresses, which is all but those whose new deadline still lies within a back-off. Open
    loop: each attempt is judged by itself.
    """
    attempts, back_offs = df_attempts(trace).sort_values("attempt", kind="stable"), _back_offs(trace, replay)
    found = last_before(
        back_offs["task"].to_numpy(),
        back_offs["jiffies"].to_numpy(),
        attempts["task"].to_numpy(),
        attempts["attempt"].to_numpy(),
    )
    until = np.append(back_offs["until"].to_numpy(np.int64), np.iinfo(np.int64).min)[found]
    attempts = attempts.assign(meant=attempts["attempt"] < until, merged=attempts["retry"] > until)
    table = attempts.groupby("task").agg(attempts=("meant", "size"), meant=("meant", "sum"), merged=("merged", "sum"))
    table = table[selected(trace, task)[table.index]]
    table.insert(1, "back_offs", np.bincount(back_offs["task"], minlength=len(df_tasks(trace)))[table.index])
    table.insert(0, "task", df_tasks(trace)["label"].to_numpy(object)[table.index])
    return table.sort_values("attempts", ascending=False, kind="stable", ignore_index=True)


def _faults_between(trace: Trace, code: Any, begin: pd.Series[Any], end: pd.Series[Any]) -> np.ndarray[Any, Any]:
    """Hint faults of each task in (begin, end], NaN if the trace has none at all."""
    if not trace.has("numa"):
        return np.full(len(code), np.nan)
    rows = df_numa_rows(trace)
    faults = rows[(rows["event"] == int(NumaEvent.FAULT)) & (rows["task"] >= 0)]
    if not len(faults):
        return np.full(len(code), np.nan)
    per_task = {task: ts.to_numpy(np.int64) for task, ts in faults.groupby("task")["ts"]}
    none = np.empty(0, np.int64)
    return np.array(
        [
            np.searchsorted(per_task.get(c, none), e, side="right")
            - np.searchsorted(per_task.get(c, none), b, side="right")
            for c, b, e in zip(code.tolist(), begin.tolist(), end.tolist(), strict=True)
        ],
        float,
    )
