# SPDX-License-Identifier: GPL-2.0-only
"""wakee_flips rebuilt from wakeups and checked against the kernel's own (docs/definitions.md, flips)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import pandas as pd

from ..errors import NotRecordedError
from ..model.compiled import compiled
from ..model.flips import record_wakee
from ..schema import Outcome
from ..trace import Trace
from .inputs import columns, losses, once, overlaps_loss
from .match import next_same
from .tasks import df_tasks, of_selected, selected
from .wakeups import df_wakeups

BINS = 50

Array = np.ndarray[Any, np.dtype[Any]]


class Check(IntEnum):
    """How the state after a wakeup compares with what record_wakee()'s rule gives."""

    RULE = 0
    TICK = 1
    UNCHANGED = 2
    REACHED = 3
    LAST = 4
    LOSS = 5
    UNEXPLAINED = 6
    EDGE = 7


def hz(trace: Trace) -> int:
    """The kernel's HZ from meta. Raises NotRecordedError if the recorder did not note it."""
    value = trace.meta.get("hz")
    if not value:
        raise NotRecordedError(f"{trace.path} does not say the kernel's HZ: flips and NUMA timing cannot be rebuilt")
    return int(value)


@once
def df_flips(trace: Trace) -> pd.DataFrame:
    """record_wakee() applied to each wakeup, one row per row of wakeups. Needs tables wakeups and tasks.

    Columns: ts (ns); waker: task code; before: waker's flips at entry; after: what the rule makes of them; decayed,
    flipped: which of its two steps act; check: Check, against the same task's state at its next wakeup; drift: flips
    found there less flips by the rule (0 unless check is UNCHANGED, REACHED or UNEXPLAINED).
    """
    rows = _state(trace)
    runs = (rows["outcome"] == int(Outcome.PLACED)).to_numpy()
    after, stamp = _rule(rows, hz(trace))
    decayed = stamp != rows["waker_decay_ts"].to_numpy(np.int64)
    flipped = (rows["waker_last_wakee"] != rows["wakee_tag"]).to_numpy()
    following = next_same(rows["waker"].to_numpy())
    check = _compare(rows, runs, after, stamp, following, hz(trace))
    inside = overlaps_loss(losses(trace)["wakeup"], rows["ts"].to_numpy(), rows["ts"].to_numpy()[following])
    check[inside & (following >= 0)] = Check.LOSS
    # While probes are attached and detached one after the other an outcome may be wrong.
    outside = rows["ts"] < trace.meta.get("attached_ts", 0)
    if "detach_ts" in trace.meta:
        outside |= rows["ts_exit"] > trace.meta["detach_ts"]
    check[outside] = Check.EDGE
    before = rows["waker_flips"].to_numpy(np.int64)
    drift = before[following] - np.where(runs, after, before)
    drift[~np.isin(check, (Check.UNCHANGED, Check.REACHED, Check.UNEXPLAINED))] = 0
    return pd.DataFrame(
        {
            "ts": rows["ts"],
            "waker": rows["waker"],
            "before": rows["waker_flips"],
            "after": np.where(runs, after, before).astype(np.uint32),
            "decayed": decayed & runs,
            "flipped": flipped & runs,
            "check": check,
            "drift": drift,
        }
    )


def df_flip_check(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """How many wakeups of selected wakers are in each class of Check. Needs tables wakeups and tasks.

    Columns: check (name, lower case); wakeups; share.
    """
    flips = df_flips(trace)
    checks = flips["check"].to_numpy()[selected(trace, task)[flips["waker"]]]
    counts = np.bincount(checks, minlength=len(Check))
    return pd.DataFrame(
        {"check": [c.name.lower() for c in Check], "wakeups": counts, "share": counts / max(1, len(checks))}
    )


def df_flips_over_time(trace: Trace, bins: int = BINS, task: str | None = None) -> pd.DataFrame:
    """Each selected waker's flips in equal bins of the trace's span, those with the highest flips first, in time order.

    Needs tables wakeups and tasks.
    Columns: task (label); code; bin (0 … bins - 1); start_ms (since the trace began); wakeups; flipped; decayed;
    highest: most flips seen in the bin; last: flips after its last wakeup of the bin.
    """
    flips = df_flips(trace)
    flips = of_selected(trace, flips, flips["waker"].to_numpy(), task)
    begin, end = trace.span
    width = max(1, -(-(end - begin + 1) // bins))
    grouped = flips.assign(bin=np.clip((flips["ts"].astype(np.int64) - begin) // width, 0, bins - 1)).groupby(
        ["waker", "bin"], sort=True
    )
    table = grouped.agg(
        wakeups=("after", "size"),
        flipped=("flipped", "sum"),
        decayed=("decayed", "sum"),
        highest=("after", "max"),
        last=("after", "last"),
    ).reset_index(names=["code", "bin"])
    table.insert(0, "task", df_tasks(trace)["label"].to_numpy(object)[table["code"]])
    table.insert(3, "start_ms", table["bin"] * width / 1e6)
    peak = table.groupby("code")["highest"].transform("max")
    rank = table.assign(peak=peak).sort_values(["peak", "code", "bin"], ascending=[False, True, True], kind="stable")
    return rank.drop(columns="peak").reset_index(drop=True)


def df_flippers(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Selected wakers by their highest flips. Needs tables wakeups and tasks.

    Columns: task (label); wakeups; flipped; decayed; first, highest, last: flips; drift: sum of differences between
    the kernel's flips and the rule's.
    """
    flips = df_flips(trace)
    flips = of_selected(trace, flips, flips["waker"].to_numpy(), task)
    table = (
        flips.groupby("waker")
        .agg(
            wakeups=("after", "size"),
            flipped=("flipped", "sum"),
            decayed=("decayed", "sum"),
            first=("before", "first"),
            highest=("after", "max"),
            last=("after", "last"),
            drift=("drift", "sum"),
        )
        .reset_index(names="task")
    )
    table["task"] = df_tasks(trace)["label"].to_numpy(object)[table["task"]]
    return table.sort_values(["highest", "wakeups"], ascending=False, kind="stable", ignore_index=True)


@once
def _state(trace: Trace) -> pd.DataFrame:
    """What record_wakee() reads and writes, at entry."""
    names = (
        "ts_exit",
        "outcome",
        "jiffies",
        "jiffies_exit",
        "waker_flips",
        "waker_decay_ts",
        "waker_last_wakee",
        "wakee_tag",
    )
    return columns(trace, "wakeups", *names).assign(waker=df_wakeups(trace)["waker"])


def _compare(
    rows: pd.DataFrame, runs: Array, after: Array, stamp: Array, following: Array, hz: int
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Check of each row: the state at the task's next wakeup against this one's, changed by the rule or not."""
    state = [rows[name].to_numpy(np.int64) for name in ("waker_flips", "waker_decay_ts", "waker_last_wakee")]
    flips, decay_ts, last = (values[following] for values in state)
    same = (flips == state[0]) & (decay_ts == state[1]) & (last == state[2])
    noted = last == rows["wakee_tag"].to_numpy()
    ruled = (flips == after) & (decay_ts == stamp) & noted
    later = (rows["jiffies"].to_numpy(np.int64) < decay_ts) & (decay_ts <= rows["jiffies_exit"].to_numpy(np.int64))
    then, then_stamp = _rule(rows, hz, decay_ts)
    tick = later & (flips == then) & (decay_ts == then_stamp) & noted
    classes = [following < 0, runs & ruled, runs & tick, runs & same, ~runs & same, ~runs & (ruled | tick)]
    names = [Check.LAST, Check.RULE, Check.TICK, Check.UNCHANGED, Check.RULE, Check.REACHED]
    return np.select(classes, [int(n) for n in names], Check.UNEXPLAINED).astype(np.uint8)


def _rule(rows: pd.DataFrame, hz: int, jiffies: Array | None = None) -> tuple[Array, Array]:
    """Flips and decay stamp that record_wakee() leaves after each wakeup, int64; jiffies as given, or as at entry."""
    read, flips, decay_ts, last_wakee, wakee = (
        rows[name].to_numpy(np.int64)
        for name in ("jiffies", "waker_flips", "waker_decay_ts", "waker_last_wakee", "wakee_tag")
    )
    after, stamp = np.empty_like(read), np.empty_like(read)
    _record_wakees(read if jiffies is None else jiffies, hz, flips, decay_ts, last_wakee, wakee, after, stamp)
    return after, stamp


@compiled
def _record_wakees(  # type: ignore[no-untyped-def]
    jiffies, hz, flips, decay_ts, last_wakee, wakee, after, stamp
) -> None:
    for i in range(len(jiffies)):
        after[i], stamp[i], _ = record_wakee(jiffies[i], hz, flips[i], decay_ts[i], last_wakee[i], wakee[i])
