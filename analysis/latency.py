# SPDX-License-Identifier: GPL-2.0-only
"""How long a woken task waited to run (docs/definitions.md, latency)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numba
import numpy as np
import pandas as pd

from ..errors import UsageError
from ..trace import Trace
from .distance import NAMES, distance
from .inputs import columns, losses, once, overlaps_loss, switches
from .occupancy import BEGINS_WAIT, Sibling, sibling_states
from .placement import path_codes
from .tasks import of_selected
from .wakeups import df_wakeups

PERCENTILES = (50, 75, 90, 95, 99, 99.5, 99.9)  # schbench's
CENSORED_RUN, UNSEEN_RUN = -1, -2  # in place of a row of switches: there is none, or it was not seen
GROUPS = {"moved": NAMES, "sibling": [s.name.lower() for s in Sibling]}


class Wait(IntEnum):
    """What became of a wait."""

    RUN = 0
    CENSORED = 1
    UNCLEAN = 2


@once
def df_waits(trace: Trace) -> pd.DataFrame:
    """Waits from wakeup to run, one row each, in time order. Needs tables wakeups and switches.

    Columns: row: row of wakeups; wait (ns; so far, if censored); state: Wait; run: row of switches in which it ran (-1
    if it did not); moved: Distance of the decision; sibling: Sibling.
    """
    trace.require("wakeups", "switches")
    rows, switched = columns(trace, "wakeups", "wakee_pid", "outcome", "prev_cpu", "chosen_cpu"), switches(trace)
    begins = np.isin(np.arange(256), [int(o) for o in BEGINS_WAIT])[rows["outcome"].to_numpy()]
    ts, end = rows["ts"].to_numpy(np.int64), switched["ts"].to_numpy(np.int64)
    pid, prev, following = (
        rows["wakee_pid"].to_numpy(),
        switched["prev_pid"].to_numpy(),
        switched["next_pid"].to_numpy(),
    )
    pids = 1 + int(max(p.max(initial=0) for p in (pid, prev, following)))
    row, run = _first_runs(ts, pid, begins, end, prev, following, pids)
    begin, until = ts[row], np.append(end, trace.span[1])[np.maximum(run, -1)]
    state = np.select([run == CENSORED_RUN, run == UNSEEN_RUN], [Wait.CENSORED, Wait.UNCLEAN], Wait.RUN).astype(
        np.uint8
    )
    state[overlaps_loss(losses(trace)["switch"], begin, until)] = Wait.UNCLEAN
    return pd.DataFrame(
        {
            "row": row,
            "wait": np.maximum(until - begin, 0),
            "state": state,
            "run": np.maximum(run, -1),
            "moved": distance(trace.topology, rows["prev_cpu"].to_numpy(), rows["chosen_cpu"].to_numpy())[row],
            "sibling": sibling_states(trace)[row],
        },
        copy=False,
    )


def df_latency(
    trace: Trace, by: str | None = None, replay: pd.DataFrame | None = None, task: str | None = None
) -> pd.DataFrame:
    """Percentiles of the waits of wakees selected by task. Needs tables wakeups and switches; tasks to select by.

    by: None for all together, else 'moved', 'sibling' or 'path' (replay as in df_paths). Columns: the group (named as
    by); waits: complete and censored; censored; unclean: left out; min, p50 … p99.9, max (us, nearest rank, a
    censored wait at its length so far); exact_below (us): percentiles below it are exact, the others lower bounds;
    NaN if all are exact.
    """
    waits = df_waits(trace)
    if task is not None:
        waits = of_selected(trace, waits, df_wakeups(trace)["wakee"].to_numpy()[waits["row"]], task)
    if by is None:
        return pd.DataFrame([_percentiles(waits["wait"].to_numpy(), waits["state"].to_numpy())])
    codes, names = _groups(trace, waits, by, replay)
    wait, state = waits["wait"].to_numpy(), waits["state"].to_numpy()
    present = np.unique(codes)
    rows = [{by: names[c], **_percentiles(wait[codes == c], state[codes == c])} for c in present]
    return pd.DataFrame(rows, columns=[by, *_percentiles(wait[:0], state[:0])])


def _groups(
    trace: Trace, waits: pd.DataFrame, by: str, replay: pd.DataFrame | None
) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Group code of each wait and the names of the codes."""
    if by in GROUPS:
        return waits[by].to_numpy(), GROUPS[by]
    if by != "path":
        raise UsageError(f"latency cannot be split by {by!r}: choose moved, sibling or path")
    codes, names = path_codes(replay, len(df_wakeups(trace)))
    return codes[waits["row"]], names


def _percentiles(wait: np.ndarray[Any, Any], state: np.ndarray[Any, Any]) -> dict[str, Any]:
    unclean = int((state == Wait.UNCLEAN).sum())
    kept = wait[state != Wait.UNCLEAN] if unclean else wait.copy()
    censored = wait[state == Wait.CENSORED]
    n = len(kept)
    rank = {p: -(-round(p * 10) * n // 1000) - 1 for p in PERCENTILES}  # whole numbers: 99.9 % of 1000 is the 999th
    if n:
        kept.partition([0, *rank.values(), n - 1])
    at = {f"p{p:g}": kept[rank[p]] / 1e3 if n else np.nan for p in PERCENTILES}
    return {
        "waits": n,
        "censored": len(censored),
        "unclean": unclean,
        "min": kept[0] / 1e3 if n else np.nan,
        **at,
        "max": kept[-1] / 1e3 if n else np.nan,
        "exact_below": censored.min() / 1e3 if len(censored) else np.nan,
    }


@numba.njit(cache=True)
def _first_runs(wk_ts, wk_pid, begins, sw_ts, sw_prev, sw_next, pids):  # type: ignore[no-untyped-def]
    """Rows of wakeups that begin a wait, in order, and for each the row of switches that ends it.

    A run was not seen if its end was (a task switched out twice over), or if another wait of the task begins.
    """
    waiting = np.full(pids, -1, np.int64)  # number of the wait each pid is in
    out = np.zeros(pids, np.bool_)  # whether it was last seen to be switched out
    row = np.empty(len(wk_ts), np.int64)
    run = np.full(len(wk_ts), CENSORED_RUN, np.int64)
    count = 0
    i = 0
    for j in range(len(sw_ts) + 1):
        while i < len(wk_ts) and (j == len(sw_ts) or wk_ts[i] < sw_ts[j]):
            if begins[i]:
                if waiting[wk_pid[i]] >= 0:
                    run[waiting[wk_pid[i]]] = UNSEEN_RUN
                waiting[wk_pid[i]] = count
                row[count] = i
                count += 1
            i += 1
        if j == len(sw_ts):
            break
        pid = sw_prev[j]
        if out[pid] and waiting[pid] >= 0:
            run[waiting[pid]] = UNSEEN_RUN
            waiting[pid] = -1
        out[pid] = True
        pid = sw_next[j]
        out[pid] = False
        if waiting[pid] >= 0:
            run[waiting[pid]] = j
            waiting[pid] = -1
    return row[:count].copy(), run[:count].copy()
